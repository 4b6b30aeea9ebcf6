"""The line that tells why a server has ended."""

import pytest
import structlog
from structlog.testing import capture_logs

from broker.shell.stopping import Stopping
from log.errors import DamagedLogError, DiskError

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
