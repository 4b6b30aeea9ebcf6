"""Of a server that ended, the sentence that says why, and not what its traceback is drawn with."""

from __future__ import annotations

import pytest

from broker.tools.cluster.child import last_words_of

GROUP = """
  + Exception Group Traceback (most recent call last):
  |   File "broker/shell/broker_server.py", line 130, in serve
  | ExceptionGroup: Exceptions from Trio nursery (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "log/store.py", line 92, in open
    | log.errors.DiskError: store/lock: writing: no space left on device
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (GROUP, "log.errors.DiskError: store/lock: writing: no space left on device"),
        ("[info] serving\ntrivet: port 10911 is in use\n", "trivet: port 10911 is in use"),
        (GROUP + "trivet: the disk is full\n", "trivet: the disk is full"),
        ("one\n\ntwo\nthree\nfour\n", "two; three; four"),
        ("", ""),
    ],
)
def test_last_words(log: str, words: str) -> None:
    assert last_words_of(log.splitlines()) == words
