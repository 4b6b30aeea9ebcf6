"""Mistakes about messages that are sent back, each put into the real code by a patch; `planted_bugs` lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import broker.delayed.delays as delays_module
import broker.node.request_states as request_states
import broker.sending.send_back_processor as send_back_module
from broker.client.consuming.intake import QueueReader
from broker.client.consuming.listening import Handled, _Listener
from broker.client.errors import ClientError
from broker.client.message import MessageView
from broker.delayed.delays import DelayService
from broker.remoting.codes import RequestCode
from broker.sending.dead_letters import becomes_dead_letter
from broker.sending.send_back_processor import SendBackProcessor
from broker.state.topic_rules import DEAD_LETTER_PREFIX
from log.dispatching.dispatch import Dispatcher
from log.formats.properties import without_properties
from log.formats.record import Record
from tests.simulation.planting import let_leadership_know_the_clock, planted

Append = Callable[..., None]


def _append_instead(patch: pytest.MonkeyPatch, append: Callable[..., None]) -> None:
    original = SendBackProcessor._append

    def patched(
        self: SendBackProcessor, record: Record, topic: str, queue_id: int, level: int, waiter: Any
    ) -> None:
        append(original, self, record, topic, queue_id, level, waiter)

    patch.setattr(SendBackProcessor, "_append", patched)


@planted("retry: delay dropped", "what is sent back is in the retry topic at once", actor="courier")
def delay_dropped(patch: pytest.MonkeyPatch) -> None:
    """A message that is sent back is in the retry topic at once."""

    def append(
        original: Append,
        self: SendBackProcessor,
        record: Record,
        topic: str,
        queue_id: int,
        _: int,
        waiter: Any,
    ) -> None:
        original(self, record, topic, queue_id, 0, waiter)

    _append_instead(patch, append)


@planted("retry: delays do not grow", "AbstractSendMessageProcessor: level 3 + retries", actor="courier")
def delays_that_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    """Each retry waits as long as the first."""

    def append(
        original: Append,
        self: SendBackProcessor,
        record: Record,
        topic: str,
        queue_id: int,
        level: int,
        waiter: Any,
    ) -> None:
        original(self, record, topic, queue_id, min(level, send_back_module.FIRST_RETRY_LEVEL), waiter)

    _append_instead(patch, append)


@planted("retry: due at once", "a level without its time", actor="courier")
def due_at_once(patch: pytest.MonkeyPatch) -> None:
    """A message of a delay level is due when it is stored."""
    patch.setattr(Dispatcher, "_delay", lambda self, queue_id: 0)


@planted("retry: held up by a clock that was ahead", "found here", actor="courier")
def held_up_by_a_clock_that_was_ahead(patch: pytest.MonkeyPatch) -> None:
    """Found here: what is due later by this leader's own wall clock keeps its whole level waiting until then."""

    def due_ns(self: DelayService, level: int, offset: int, end: int, ahead_ms: int) -> int:
        now_ns, clock = self._time.now_ns, self._leadership.clock  # type: ignore[attr-defined]
        behind_ms = self._time.group_ms - clock._wall_offset_ms - now_ns // 1_000_000
        return int(now_ns + (ahead_ms + max(0, behind_ms)) * 1_000_000)

    let_leadership_know_the_clock(patch)
    patch.setattr(DelayService, "_due_ns", due_ns)


@planted("retry: not counted", "a message that comes for ever", actor="courier")
def retries_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A message comes back with the number that it had, and so for ever."""

    def append(original: Append, self: SendBackProcessor, record: Record, *rest: Any) -> None:
        original(self, replace(record, reconsume_times=record.reconsume_times - 1), *rest)

    _append_instead(patch, append)


@planted("retry: without end", "one more than the group allows", actor="courier")
def retries_without_end(patch: pytest.MonkeyPatch) -> None:
    """The group gets one retry more than it allows."""

    def one_more(retried: int, *arguments: Any) -> bool:
        return becomes_dead_letter(retried - 1, *arguments)

    patch.setattr(send_back_module, "becomes_dead_letter", one_more)


@planted("retry: the last one dropped", "no dead letter", actor="courier")
def last_retry_dropped(patch: pytest.MonkeyPatch) -> None:
    """After the last retry the message is gone, and its consumer told that all is well."""

    def append(original: Append, self: SendBackProcessor, record: Record, topic: str, *rest: Any) -> None:
        if topic.startswith(DEAD_LETTER_PREFIX):
            rest[-1].committed()
        else:
            original(self, record, topic, *rest)

    _append_instead(patch, append)


@planted("retry: confirmed before it is committed", "an answer from the leader's log", actor="courier")
def confirmed_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    """The consumer goes on when the leader has appended the message, which a majority may never hold."""

    class Nobody:
        def committed(self) -> None:
            pass

        def lost(self) -> None:
            pass

    def append(original: Append, self: SendBackProcessor, record: Record, *rest: Any) -> None:
        original(self, record, *rest[:-1], Nobody())
        rest[-1].committed()

    _append_instead(patch, append)


@planted("retry: flag of a compressed body lost", "a body that nobody can read", actor="courier")
def body_lost(patch: pytest.MonkeyPatch) -> None:
    """A compressed body comes back as one that is not: its flag is lost."""

    def append(original: Append, self: SendBackProcessor, record: Record, *rest: Any) -> None:
        original(self, replace(record, sys_flag=0), *rest)

    _append_instead(patch, append)


@planted("retry: property lost", "keys that do not come again", actor="courier")
def property_lost(patch: pytest.MonkeyPatch) -> None:
    """The application's keys are lost with the first retry."""
    original = send_back_module._noted_properties

    def noted(record: Record) -> bytes:
        return without_properties(original(record), b"KEYS")

    patch.setattr(send_back_module, "_noted_properties", noted)


@planted("retry: repeated by the broker", "a forwarded request of unknown outcome", actor="courier")
def repeated_by_the_broker(patch: pytest.MonkeyPatch) -> None:
    """A node that loses its leader asks the next one to take a message back that the last one may have taken."""
    once = request_states.ONCE - {RequestCode.CONSUMER_SEND_MSG_BACK}
    patch.setattr(request_states, "ONCE", once)


@planted("retry: done with before it is confirmed", "a failed request to take it back", actor="courier")
def done_with_before_it_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    """A listener forgets a message that failed although no broker has said that it took it back."""

    async def handle(self: _Listener, reader: QueueReader, message: MessageView) -> None:
        try:
            if await self._handler(message) is not Handled.RETRY:
                return
        except Exception:
            pass
        try:
            await self._consumer.send_back(message)
        except ClientError:
            pass

    patch.setattr(_Listener, "_handle", handle)


@planted(
    "retry: nothing counted at takeover",
    "ScheduleMessageService: progress saved now and then",
    actor="courier",
)
def nothing_counted_at_takeover(patch: pytest.MonkeyPatch) -> None:
    """Progress is saved now and then (ScheduleMessageService): a new leader delivers again what was announced last."""
    patch.setattr(delays_module, "count_delivered", lambda *_: 0)


@planted("retry: announced taken for delivered", "progress saved before delivery", actor="courier")
def announced_taken_for_delivered(patch: pytest.MonkeyPatch) -> None:
    """A new leader believes that what the last one announced came into the log."""

    def all_of_them(replica: object, queue: object, offsets: range, *_: object) -> int:
        return len(offsets)

    patch.setattr(delays_module, "count_delivered", all_of_them)
