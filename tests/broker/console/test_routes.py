"""What pages ask and order, over a real group: each question once, each order with its lines in the audit log."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from broker.client.consuming.consumer import Consumer
from broker.client.message import Message
from broker.client.producing.transactions import Decision, TransactionalProducer
from broker.console.audit import AuditError, AuditLog
from broker.remoting.codes import RequestCode
from tests.broker.client.cluster import NAME_SERVER, Broker
from tests.broker.client.links import ClientRuntime, code, reset, silent
from tests.broker.console.conftest import Open, Page


def body_of(shown: Any) -> bytes:
    """The body of a message as a page was told it."""
    return base64.b64decode(shown["message"]["body"])


def audited(page: Page) -> list[dict[str, Any]]:
    """What the audit log says."""
    return [json.loads(line) for line in page.audit_path.read_text("utf-8").splitlines()]


async def done(answer: Any) -> Any:
    """The answer's contents, which must not be an error."""
    assert answer.status_code == 200, answer.text
    return answer.json()


# Topics --------------------------------------------------------------------------------------------------------------


async def test_topics_are_listed_the_users_own_first(open_console: Open, broker: Broker) -> None:
    broker.append("t", 0, b"one")
    page = await open_console()
    topics = await done(await page.get("/api/topics"))
    assert topics[0] | {"newest_ms": None} == {
        "name": "t",
        "kind": "topic",
        "queues": 1,
        "kept": 1,
        "end": 1,
        "newest_ms": None,
    }
    assert {topic["kind"] for topic in topics[1:]} == {"system"}


async def test_a_topic_is_created_changed_and_deleted(open_console: Open, broker: Broker) -> None:
    page = await open_console(writable=True)
    created = await done(await page.post("/api/topics/Orders/create", queues=3))
    assert len(created["brokers"][0]["queues"]) == 3
    assert await done(await page.post("/api/topics/Orders/alter", may_write=False)) == ["g"]
    described = await done(await page.get("/api/topics/Orders"))
    assert (described["brokers"][0]["may_write"], described["brokers"][0]["may_read"]) == (False, True)
    await done(await page.post("/api/topics/Orders/delete"))
    assert (await page.get("/api/topics/Orders")).status_code == 404
    lines = audited(page)
    assert [(line["change"], line["outcome"], line["action"]) for line in lines] == [
        (1, "begun", "create topic"),
        (1, "done", "create topic"),
        (2, "begun", "alter topic"),
        (2, "done", "alter topic"),
        (3, "begun", "delete topic"),
        (3, "done", "delete topic"),
    ]
    assert lines[0]["parameters"] == {"topic": "Orders", "queues": 3, "ordered": False}
    assert lines[0]["account"] == ""
    assert lines[0]["source"] == "127.0.0.1"


async def test_a_new_topic_changes_none_that_is_there(open_console: Open, broker: Broker) -> None:
    """Fewer queues would hide what the last ones keep; whoever means that alters the topic."""
    page = await open_console(writable=True)
    await done(await page.post("/api/topics/Orders/create", queues=3))
    await done(await page.post("/api/topics/Orders/create", queues=3))
    refused = await page.post("/api/topics/Orders/create", queues=2)
    assert (refused.status_code, refused.json()["kind"]) == (409, "in use")
    assert refused.json()["error"] == "topic Orders exists with other settings in g: change it on its page"
    assert len((await done(await page.get("/api/topics/Orders")))["brokers"][0]["queues"]) == 3
    assert audited(page)[-1]["outcome"] == "failed"


# Who may change what -------------------------------------------------------------------------------------------------

ORDERS = [
    ("/api/topics/x/create", {}),
    ("/api/topics/t/alter", {"may_write": False}),
    ("/api/topics/t/delete", {}),
    ("/api/messages/send", {"topic": "t", "body": "x"}),
    (
        "/api/groups/g/reset",
        {"topic": "t", "queues": [{"broker": "g", "queue": 0, "from_offset": 0, "to_offset": 0}]},
    ),
    ("/api/groups/g/delete", {}),
    ("/api/dead-letters/g/redrive", {"limit": 1, "rate_per_s": 1}),
    ("/api/dead-letters/g/purge", {}),
    ("/api/settings/change", {"name": "deleteWhen", "value": "05"}),
    ("/api/cluster/transfer", {"group": "g", "node": "n0"}),
]


@pytest.mark.parametrize(("path", "fields"), ORDERS)
async def test_a_console_that_is_read_only_orders_nothing(
    open_console: Open, broker: Broker, path: str, fields: dict[str, Any]
) -> None:
    page = await open_console()
    frames = len(broker.requests)
    answer = await page.post(path, **fields)
    assert (answer.status_code, answer.json()["kind"]) == (403, "read only")
    assert audited(page) == []
    sent = {request.code for request in broker.requests[frames:]}
    assert sent <= {RequestCode.TRIVET_NODE_STATUS, RequestCode.GET_BROKER_RUNTIME_INFO}


@pytest.mark.parametrize(("path", "fields"), ORDERS)
async def test_an_order_without_the_token_is_refused(
    open_console: Open, broker: Broker, path: str, fields: dict[str, Any]
) -> None:
    page = await open_console(writable=True)
    answer = await page.client.post(path, json=fields)
    assert (answer.status_code, answer.json()["kind"]) == (403, "token")
    assert (await page.client.get(path, params={"token": page.session["token"]})).status_code in (
        400,
        404,
        405,
    )
    assert audited(page) == []


async def test_nothing_is_changed_that_cannot_be_written_down(
    open_console: Open, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await open_console(writable=True)

    def full(*arguments: object) -> None:
        raise AuditError(28, "No space left on device")

    monkeypatch.setattr(AuditLog, "_write", full)
    answer = await page.post("/api/topics/Orders/create")
    assert answer.status_code == 503
    assert "nothing was changed" in answer.json()["error"]
    assert (await page.get("/api/topics/Orders")).status_code == 404


async def test_an_order_whose_outcome_is_unknown_is_written_down_as_that(
    open_console: Open, broker: Broker
) -> None:
    page = await open_console(writable=True)
    broker.script(RequestCode.UPDATE_AND_CREATE_TOPIC, broker.instead(reset))
    answer = await page.post("/api/topics/Orders/create")
    assert answer.status_code == 503
    assert audited(page)[-1]["outcome"] == "unknown"
    broker.script(RequestCode.DELETE_TOPIC_IN_BROKER, code(16))
    answer = await page.post("/api/topics/Orders/delete")
    assert (answer.status_code, answer.json()["kind"]) == (403, "no permission")
    assert audited(page)[-1]["outcome"] == "failed"


# Messages ------------------------------------------------------------------------------------------------------------


async def test_a_message_is_sent_found_and_followed(open_console: Open, broker: Broker) -> None:
    page = await open_console(writable=True)
    text = "é <b>" + "x" * 500
    sent = await done(
        await page.post(
            "/api/messages/send", topic="t", body=text, keys=["k1"], tags="red", properties={"a": "b"}
        )
    )
    assert (sent["broker"], sent["queue"], sent["offset"]) == ("g", 0, 0)
    for query in (
        {},
        {"key": "k1"},
        {"message_id": sent["message_id"]},
        {"offset": 0, "queue": 0},
        {"since_ms": 1},
    ):
        (found,) = await done(await page.get("/api/messages", topic="t", **query))
        assert found["body_bytes"] == len(text.encode())
        assert body_of(found) == text.encode()[:160]
    place = {"topic": "t", "broker": "g", "queue": 0, "offset": 0}
    shown = await done(await page.get("/api/message", **place))
    assert body_of(shown).decode() == text
    assert shown["message"]["properties"]["a"] == "b"
    assert (await page.get("/api/message", **{**place, "offset": 1})).status_code == 404
    way = await done(await page.get("/api/way", topic="t", message_id=sent["message_id"]))
    assert [step["what"] for step in way["steps"]] == ["stored"]
    assert "x" * 100 not in page.audit_path.read_text("utf-8"), "bodies are not written down"


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"topic": "a topic"},
        {"topic": "t", "limit": 0},
        {"topic": "t", "limit": 201},
        {"topic": "t", "offset": -1},
        {"topic": "t", "offset": "nan"},
        {"topic": "t", "queue": 1 << 40},
        {"topic": "t", "since_ms": 1 << 62},
        {"topic": "t", "key": "k" * 2000},
        {"topic": "t", "key": "k", "offset": 1},
        {"topic": "t\n", "key": "k"},
    ],
)
async def test_questions_that_make_no_sense_are_refused(
    open_console: Open, broker: Broker, query: dict[str, object]
) -> None:
    page = await open_console()
    assert (await page.get("/api/messages", **query)).status_code == 400
    twice = await page.client.get("/api/messages?topic=t&topic=u")
    assert twice.status_code == 400


async def test_what_waits_is_shown(
    open_console: Open, broker: Broker, runtime: ClientRuntime, nursery: trio.Nursery
) -> None:
    page = await open_console(writable=True)
    await done(await page.post("/api/messages/send", topic="t", body="later", delay_level=18))

    async def undecided(message: object) -> Decision:
        return Decision.UNKNOWN

    async with TransactionalProducer(NAME_SERVER, group="p", check=undecided, runtime=runtime) as producer:
        await producer.begin(Message("t", b"half"))
        waiting = await done(await page.get("/api/waiting"))
        clients = await done(await page.get("/api/clients"))
    assert waiting["by_level"] == {"18": 1}
    assert body_of(waiting["delayed_messages"][0]["shown"]) == b"later"
    assert waiting["delayed_messages"][0]["home"] == "t"
    assert body_of(waiting["half_messages"][0]["shown"]) == b"half"
    assert [(client["role"], client["group"]) for client in clients if client["group"] == "p"] == [
        ("producer", "p")
    ]


# Consumer groups and dead letters ------------------------------------------------------------------------------------


async def test_a_group_is_sent_elsewhere_as_its_preview_said(
    open_console: Open, broker: Broker, runtime: ClientRuntime
) -> None:
    for number in range(10):
        broker.append("t", 0, b"%d" % number)
    async with Consumer(NAME_SERVER, group="readers", topics="t", start="first", runtime=runtime) as consumer:
        for _ in range(10):
            await anext(consumer)
        await consumer.commit()
    page = await open_console(writable=True)
    groups = await done(await page.get("/api/groups"))
    assert [(group["name"], group["lag"]) for group in groups] == [("readers", 0)]
    preview = await done(await page.get("/api/groups/readers/reset", topic="t", kind="by", value=-4))
    assert [(one["from_offset"], one["to_offset"], one["repeated"]) for one in preview] == [(10, 6, 4)]
    queues = [
        {name: one[name] for name in ("broker", "queue", "from_offset", "to_offset")} for one in preview
    ]
    await done(await page.post("/api/groups/readers/reset", topic="t", queues=queues))
    detail = await done(await page.get("/api/groups/readers"))
    assert {queue["lag"] for queue in detail["queues"] if queue["topic"] == "t"} == {4}
    assert audited(page)[-1]["parameters"]["queues"] == queues
    await done(await page.post("/api/groups/readers/delete"))
    assert (await page.get("/api/groups/readers")).status_code == 404


async def test_dead_letters_are_sent_again_and_deleted(
    open_console: Open, broker: Broker, runtime: ClientRuntime
) -> None:
    for number in range(5):
        broker.append("t", 0, b"%d" % number)
    async with Consumer(NAME_SERVER, group="readers", topics="t", start="first", runtime=runtime) as consumer:
        for _ in range(5):
            await consumer.send_back(await anext(consumer), delay_level=-1)
    page = await open_console(writable=True)
    (letters,) = await done(await page.get("/api/dead-letters"))
    assert (letters["group"], letters["kept"], letters["waiting"]) == ("readers", 5, 5)
    shown = await done(await page.get("/api/messages", topic="%DLQ%readers"))
    assert [body_of(one) for one in shown] == [b"%d" % number for number in range(5)]
    redriven = await done(await page.post("/api/dead-letters/readers/redrive", limit=3, rate_per_s=1))
    assert redriven == {"sent": 3, "left": 2, "passed_over": 0}
    too_long = await page.post("/api/dead-letters/readers/redrive", limit=100, rate_per_s=1)
    assert too_long.status_code == 400
    assert await done(await page.post("/api/dead-letters/readers/purge")) == 5
    assert (await done(await page.get("/api/dead-letters/readers")))["kept"] == 0


# Settings, doctor, reports -------------------------------------------------------------------------------------------


async def test_settings_are_shown_with_their_origin_and_changed(open_console: Open, broker: Broker) -> None:
    page = await open_console(writable=True)
    await done(await page.post("/api/settings/change", name="deleteWhen", value="05"))
    (node,) = await done(await page.get("/api/settings"))
    (setting,) = [one for one in node["settings"] if one["name"] == "deleteWhen"]
    assert (setting["value"], setting["origin"]) == ("05", "run time")
    assert (await page.post("/api/settings/change", name="deleteWhen", value="05\nx=1")).status_code == 400


async def test_the_doctor_is_asked(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    diagnosis = await done(await page.get("/api/doctor"))
    assert diagnosis["checks"]


@pytest.fixture
def reports(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> Path:
    """A directory with a report, beside a file that is nobody's business."""
    # Files are read in threads, which the clock does not see: it leaves them some time before each of its jumps.
    autojump_clock.autojump_threshold = 0.01
    directory = tmp_path / "reports"
    (directory / "run").mkdir(parents=True)
    (directory / "run" / "history.html").write_text("<script>alert(1)</script>", "utf-8")
    (directory / "trace.bin").write_bytes(b"\0")
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (directory / "link.txt").symlink_to(tmp_path / "secret.txt")
    (directory / "gone.txt").symlink_to(tmp_path / "nothing.txt")
    return directory


async def test_reports_are_shown_apart_from_the_page(
    open_console: Open, broker: Broker, reports: Path
) -> None:
    page = await open_console(reports=reports)
    listed = await done(await page.get("/api/reports"))
    assert {report["path"] for report in listed["reports"]} == {"run/history.html", "link.txt"}
    answer = await page.get("/reports/run/history.html")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox;")
    assert "script" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "%2e%2e/secret.txt",
        "link.txt",
        "trace.bin",
        "run",
        "/etc/hostname",
        "a%00.txt",
        "none.html",
    ],
)
async def test_nothing_beside_the_reports_is_shown(
    open_console: Open, broker: Broker, reports: Path, path: str
) -> None:
    page = await open_console(reports=reports)
    assert (await page.client.get(f"/reports/{path}")).status_code == 404


async def test_without_a_directory_there_are_no_reports(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    assert (await page.get("/api/reports")).status_code == 404
    assert (await page.get("/reports/x.html")).status_code == 404


async def test_topics_that_an_account_may_not_see_are_left_out(open_console: Open, broker: Broker) -> None:
    page = await open_console()
    all_topics = await done(await page.get("/api/topics"))
    broker.script(RequestCode.GET_TOPIC_STATS_INFO, code(16))
    assert len(await done(await page.get("/api/topics"))) == len(all_topics) - 1
    broker.script(RequestCode.GET_TOPIC_STATS_INFO, *[code(16)] * len(all_topics))
    assert (await page.get("/api/topics")).json()["kind"] == "no permission"


async def test_an_order_that_is_given_up_may_have_been_done(open_console: Open, broker: Broker) -> None:
    page = await open_console(writable=True)
    broker.script(RequestCode.UPDATE_BROKER_CONFIG, *[silent] * 20)
    answer = await page.post("/api/settings/change", name="deleteWhen", value="05")
    assert answer.status_code in (503, 504)
    assert audited(page)[-1]["outcome"] == "unknown"
