"""Header fields of the requests that most tests send: those of an ordinary one, with the changes that a test wants.

`Client.call` leaves out what is None.
"""

from __future__ import annotations

from typing import Any, Final

from broker.remoting.codes import PullSysFlag

MAY_BE_HELD: Final = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION
"""A pull that brings its subscription and waits for messages."""


def send_fields(**changes: Any) -> dict[str, Any]:
    """A message without properties for queue 0 of T."""
    return {
        "producerGroup": "P",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 0,
        "flag": 0,
        "properties": "",
        **changes,
    }


def pull_fields(**changes: Any) -> dict[str, Any]:
    """A pull of group g from the begin of T's queue 0, which brings its subscription and does not wait."""
    return {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": PullSysFlag.SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subVersion": 0,
        "subscription": "*",
        **changes,
    }


def topic_fields(**changes: Any) -> dict[str, Any]:
    """Topic T of one queue, which may be read and written."""
    return {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
        **changes,
    }
