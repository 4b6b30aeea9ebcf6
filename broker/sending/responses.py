"""The responses to sends: encoded when a majority holds the entry, from what was noted when it was written."""

import re
from typing import Final

import msgspec

from broker.remoting.codes import FLAG_ONE_WAY, ResponseCode
from broker.remoting.command import JSON, OWN_LANGUAGE, OWN_VERSION, RemotingCommand
from broker.requests.connection import Connection
from broker.requests.responses import reply, reply_unknown
from broker.statistics.stats import Stats

_JSON: Final = (
    '{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%s%016X",'
    '"transactionId":"%s","queueOffset":"%d"},"flag":1,"language":"'
    + OWN_LANGUAGE
    + '","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":'
    + str(OWN_VERSION)
    + "}"
)
_NEEDS_JSON_ESCAPE: Final = re.compile(r"[^ !#-\[\]-~]")


def send_fields(
    message_ids: str, queue_id: int, queue_offset: int, unique_keys: str | None
) -> dict[str, str]:
    """The fields of the response for a stored message, or for a batch, whose ids and keys are joined by commas.

    A reply has no keys to tell.
    """
    fields = {"msgId": message_ids, "queueId": str(queue_id), "queueOffset": str(queue_offset)}
    if unique_keys is not None:
        fields["transactionId"] = unique_keys
    fields["MSG_REGION"] = "DefaultRegion"
    fields["TRACE_ON"] = "true"
    return fields


class PendingSend(msgspec.Struct):
    """A send, or a batch, whose entries are in the log: it waits for their commit, and answers then.

    `queue_id` is the queue that the producer knows of. `queue_offset` and `physical_offset` are set when the entry is
    written. A struct of msgspec, because one is made for every send. The garbage collector has to know it, unlike
    the others of the send path: a node that ends with sends under way is a circle through them.
    """

    stats: Stats
    connection: Connection
    command: RemotingCommand
    queue_id: int
    unique_keys: str
    host: str
    """This node's address as it stands in message ids, behind the ids of all messages of a batch but the last one."""
    queue_offset: int = -1
    physical_offset: int = -1

    def committed(self) -> None:
        command = self.command
        if command.flag & FLAG_ONE_WAY:
            return
        assert self.queue_offset >= 0, "the entry was written before it is committed"
        keys = self.unique_keys
        is_simple = (keys.isascii() and keys.isalnum()) or not _NEEDS_JSON_ESCAPE.search(keys)
        if is_simple and command.serialization == JSON:
            # What nearly all clients get, in one step.
            header = (
                _JSON
                % (self.queue_id, self.host, self.physical_offset, keys, self.queue_offset, command.opaque)
            ).encode()
            size = len(header)
            self.connection.send((size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + header)
            return
        message_ids = "%s%016X" % (self.host, self.physical_offset)  # noqa: UP031 - the fastest way
        fields = send_fields(message_ids, self.queue_id, self.queue_offset, self.unique_keys)
        reply(self.connection, command, ResponseCode.SUCCESS, None, fields)

    def lost(self) -> None:
        self.stats.puts_failed += 1
        reply_unknown(self.connection, self.command)
