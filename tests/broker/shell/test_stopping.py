"""The line that tells why a server has ended."""

import threading
from pathlib import Path

import pytest
import structlog
import trio
import trio.testing
from structlog.testing import capture_logs

from broker.replica import upkeep
from broker.settings.tables import NodeSettings, Settings, StorageSettings
from broker.shell.broker_server import BrokerServer
from broker.shell.stopping import Stopping
from log.errors import DamagedLogError, DiskError, FlushError, MisplacedRangeError
from log.notes.checkpoint import ABORT, CheckpointJob
from tests.broker.shell.servers import LIMIT_S

AGAIN = "started again, it has that from its group (docs/operations.md, damage)"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), "SIGINT"),  # a second Ctrl-C, while the stop is under way
        (BaseExceptionGroup("of a nursery", [KeyboardInterrupt()]), "SIGINT"),
        (
            DiskError("commitlog", "write", "no such device"),
            str(DiskError("commitlog", "write", "no such device")),
        ),
        (
            DamagedLogError("x", 7, "no entry"),
            f"damage on the disk: {DamagedLogError('x', 7, 'no entry')}; {AGAIN}",
        ),
        (
            MisplacedRangeError(0, "entry 7 is elsewhere", 4096),
            str(MisplacedRangeError(0, "entry 7 is elsewhere", 4096)),
        ),
        (ValueError("seven"), "bug: ValueError: seven"),
    ],
)
def test_what_ends_a_stop_under_way_is_its_reason(error: BaseException, reason: str) -> None:
    closed = []
    with capture_logs() as lines:
        stopping = Stopping(structlog.get_logger())
        stopping.begin("SIGTERM")
        with pytest.raises(type(error)), stopping.told(lambda: closed.append(True)):
            raise error
    assert closed == [True]
    assert [line["reason"] for line in lines if line["event"] == "stop"] == [reason]


async def test_a_server_that_is_cancelled_says_so() -> None:
    """Its tasks are cancelled with it, and what they raise comes as a group."""
    stopping = Stopping(structlog.get_logger())

    async def serve() -> None:
        with stopping.told(lambda: None):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()

    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [line["reason"] for line in lines] == ["cancelled"]


async def test_a_disk_that_fails_during_a_stop_is_the_reason_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica was closed all the same, as if nothing had failed, and what that raised was told: a bug."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_INTERVAL_NS", 1)
    began, may_end = threading.Event(), threading.Event()

    def fail(_: CheckpointJob) -> None:
        began.set()
        may_end.wait()
        raise FlushError("consumequeue/T/0", "flushing", "input/output error")

    monkeypatch.setattr(CheckpointJob, "run", fail)
    server = BrokerServer(
        Settings(node=NodeSettings(listen="127.0.0.1:0"), storage=StorageSettings(path=str(tmp_path)))
    )
    with (
        trio.fail_after(LIMIT_S),
        capture_logs() as lines,
        pytest.RaisesGroup(FlushError, flatten_subgroups=True),
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            await trio.to_thread.run_sync(began.wait)
            server.stop("SIGTERM")
            may_end.set()
    (stop,) = (line for line in lines if line["event"] == "stop")
    assert "input/output error" in stop["reason"]
    assert not stop["reason"].startswith("bug")
    assert (tmp_path / ABORT).exists(), "the next start treats it as unclean"
