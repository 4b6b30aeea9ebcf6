"""The clients of a scenario (scenario.py): what they ask, and what they hear of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from broker.remoting.bodies import LockBatchBody, MessageQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.headers import PortionResponseHeader, SendMessageResponseHeader
from broker.remoting.json_body import encode_body
from log.formats.message_id import parse_offset_message_id
from log.formats.record import SYS_FLAG_PREPARED
from tests.broker.harness import Client, Group, peer_address
from tests.broker.transcript import COMMIT, ROLLBACK, UNKNOWN, Asked, Request, request_line, response_line

FIRST_OPAQUE = 1000
"""Smaller ones are for requests that no transcript tells of."""
KEY = {"consumerGroup": "g", "topic": "T", "queueId": 0}


class Clients:
    """The clients of one group. `say` notes a line; within `unseen` nothing is noted."""

    def __init__(
        self,
        group: Group,
        nodes: dict[str, str],
        say: Callable[[str], None],
        unseen: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`nodes` are the ids of nodes by their names."""
        self._group = group
        self._nodes = nodes
        self._say = say
        self._unseen = unseen
        self._by_name: dict[str, Client] = {}
        self.asked: Asked = {}
        self.waiting: set[int] = set()
        """Those of them that are not answered."""
        self._receipts: dict[str, SendMessageResponseHeader] = {}
        self._last_position: dict[str, int] = {}
        self._floors: dict[str, int] = {}
        """The floors of portions, as clients have heard them."""
        self._closed: set[str] = set()
        """The clients whose connections were seen to be closed."""

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def connect(self, name: str, node: str) -> None:
        """Another client of a node, or one of that name anew."""
        self._by_name[name] = self._group.connect(self._nodes[node], name=name)

    def execute(self, name: str, what: str, *words: str) -> None:
        """Has a client ask something."""
        ask: Callable[..., None] = getattr(self, f"ask_{what}")
        ask(self._by_name[name], *words)

    def is_answered(self, name: str) -> bool:
        """True if nothing that this client has asked is under way."""
        return all(self.asked[opaque].client != name for opaque in self.waiting)

    def look(self, *, at_ends: bool) -> None:
        """Notes what clients have received since the last look, and `at_ends` of connections."""
        for name, client in self._by_name.items():
            for notice in client.notices:
                self._say(f"{name} is asked: {request_line(notice)}")
            client.notices.clear()
            if client.closed and at_ends and name not in self._closed:
                self._closed.add(name)
                self._say(f"{name}'s connection is closed")
            for opaque in [opaque for opaque in client.answers if opaque in self.asked]:
                asked = self.asked[opaque]
                response = client.answers.pop(opaque)
                self.waiting.discard(opaque)
                if response.code == ResponseCode.SUCCESS and asked.code == RequestCode.SEND_MESSAGE:
                    receipt = self._receipts[asked.what] = response.decode_fields(SendMessageResponseHeader)
                    self._last_position[name] = parse_offset_message_id(receipt.message_id)[1]
                if response.code == ResponseCode.SUCCESS and asked.code == RequestCode.TRIVET_BEGIN_PORTION:
                    self._floors[name] = response.decode_fields(PortionResponseHeader).position
                self._say(f"{name} hears of {asked.what}: {response_line(asked.code, response)}")

    def _note(self, client: Client, start: Callable[[], int], code: int, what: str) -> None:
        """Sends a request under an opaque of its own and remembers who asked for what."""
        opaque = FIRST_OPAQUE + len(self.asked)
        client.reuse_opaque(opaque)
        self.asked[opaque] = Request(code, self._name(client), what)
        self.waiting.add(opaque)
        assert start() == opaque

    def _name(self, client: Client) -> str:
        return next(name for name, one in self._by_name.items() if one is client)

    def ask_send(self, client: Client, body: str, *options: str) -> None:
        words, values = options_of(options)
        properties = {"DELAY": values["delay"]} if "delay" in values else {}
        if "timer" in values:
            properties["TIMER_DELAY_SEC"] = values["timer"]
        header: dict[str, object] = {}
        if "key" in values:
            properties["UNIQ_KEY"] = values["key"]
            name = self._name(client)
            floor = self._last_position[name] if "floor" in words else 0
            floor = self._floors[name] if "portion" in words else floor
            header = {"once": floor, "again": True if "again" in words else None}
        queue = int(values.get("queue", 0))
        self._note(
            client,
            lambda: client.start_send("T", body.encode(), queue, properties, **header),
            RequestCode.SEND_MESSAGE,
            f"send {body}{', again' if 'again' in words else ''}",
        )

    def ask_half(self, client: Client, body: str) -> None:
        properties = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": f"key-of-{body}"}
        self._note(
            client,
            lambda: client.start_send("T", body.encode(), 0, properties, sysFlag=SYS_FLAG_PREPARED),
            RequestCode.SEND_MESSAGE,
            f"half {body}",
        )

    def _end(self, client: Client, body: str, outcome: int, word: str) -> None:
        half = self._receipts[f"half {body}"]
        fields = {
            "producerGroup": "P",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": parse_offset_message_id(half.message_id)[1],
            "commitOrRollback": outcome,
            "msgId": half.transaction_id,
            "transactionId": half.transaction_id,
            "fromTransactionCheck": False,
        }
        code = RequestCode.END_TRANSACTION
        self._note(client, lambda: client.start_call(code, fields), code, f"{word} {body}")

    def ask_commit(self, client: Client, body: str) -> None:
        self._end(client, body, COMMIT, "commit")

    def ask_rollback(self, client: Client, body: str) -> None:
        self._end(client, body, ROLLBACK, "rollback")

    def ask_leave(self, client: Client, body: str) -> None:
        self._end(client, body, UNKNOWN, "leave")

    def ask_produces(self, client: Client) -> None:
        with self._unseen():
            client.reuse_opaque(1)
            client.heartbeat(producer_group="P")

    def ask_consumes(self, client: Client) -> None:
        with self._unseen():
            client.reuse_opaque(1)
            client.heartbeat("g")

    def ask_pull(self, client: Client, offset: str, *options: str) -> None:
        _, values = options_of(options)
        commit = int(values["commit"]) if "commit" in values else None
        hold_ms, queue = int(values.get("hold", 0)) * 1000, int(values.get("queue", 0))
        self._note(
            client,
            lambda: client.start_pull("T", "g", int(offset), queue, suspend_ms=hold_ms, commit_offset=commit),
            RequestCode.PULL_MESSAGE,
            f"pull {offset}",
        )

    def _call(self, client: Client, code: RequestCode, what: str, **fields: object) -> None:
        self._note(client, lambda: client.start_call(code, {**KEY, **fields}), code, what)

    def ask_report(self, client: Client, offset: str) -> None:
        self._call(client, RequestCode.UPDATE_CONSUMER_OFFSET, f"report {offset}", commitOffset=offset)

    def ask_ask(self, client: Client) -> None:
        self._call(client, RequestCode.QUERY_CONSUMER_OFFSET, "ask")

    def ask_end(self, client: Client) -> None:
        self._call(client, RequestCode.GET_MAX_OFFSET, "end")

    def ask_first(self, client: Client) -> None:
        self._call(client, RequestCode.GET_MIN_OFFSET, "first")

    def ask_reset(self, client: Client, offset: str) -> None:
        fields = {"group": "g", "timestamp": 0, "isForce": False, "offset": offset}
        self._call(client, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, f"reset {offset}", **fields)

    def _change(self, client: Client, operation: str, node: str) -> None:
        fields = {"operation": operation, "node": self._nodes[node]}
        if operation == "add":
            fields["address"] = peer_address(self._nodes[node])
        code = RequestCode.TRIVET_CHANGE_GROUP
        self._note(client, lambda: client.start_call(code, fields), code, f"{operation} {node}")

    def ask_add(self, client: Client, node: str) -> None:
        self._change(client, "add", node)

    def ask_promote(self, client: Client, node: str) -> None:
        self._change(client, "promote", node)

    def ask_remove(self, client: Client, node: str) -> None:
        self._change(client, "remove", node)

    def _portion(self, client: Client, code: RequestCode, what: str, number: str) -> None:
        fields = {"topic": "T", "writer": "W", "number": number}
        self._note(client, lambda: client.start_call(code, fields), code, f"{what} {number}")

    def ask_begin(self, client: Client, number: str) -> None:
        self._portion(client, RequestCode.TRIVET_BEGIN_PORTION, "begin", number)

    def ask_finish(self, client: Client, number: str) -> None:
        self._portion(client, RequestCode.TRIVET_END_PORTION, "finish", number)

    def _lock(self, client: Client, code: RequestCode, what: str) -> None:
        queues = [MessageQueue("broker-a", 0, "T")]
        body = encode_body(LockBatchBody(client_id=self._name(client), consumer_group="g", queues=queues))
        self._note(client, lambda: client.start_call(code, None, body), code, what)

    def ask_lock(self, client: Client) -> None:
        self._lock(client, RequestCode.LOCK_BATCH_MQ, "lock")

    def ask_unlock(self, client: Client) -> None:
        self._lock(client, RequestCode.UNLOCK_BATCH_MQ, "unlock")

    def ask_close(self, client: Client) -> None:
        client.close()


def options_of(words: tuple[str, ...]) -> tuple[set[str], dict[str, str]]:
    """Bare words, and values by name."""
    pairs = [word.split("=") for word in words if "=" in word]
    return {word for word in words if "=" not in word}, dict(pairs)
