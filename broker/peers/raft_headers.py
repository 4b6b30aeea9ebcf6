"""Raft's messages as CBOR headers of the peer protocol, written and read.

A header is an array: the kind, source, target and term, then what the kind has besides. Appends and acknowledgements as
they usually are get the same bytes without a CBOR encoder (broker/peers/append_headers.py).
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import cbor2

from broker.peers.append_headers import encode_acknowledgement, encode_append
from broker.peers.header_fields import INDEX_END, flag_of, index_of, refuse, text_of
from raft.configuration import Configuration
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    RecoveryRequest,
    RecoveryResponse,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

_APPEND_INDICES: Final = ("term", "prev_index", "prev_term", "commit_index", "round")
_RESPONSE_INDICES: Final = ("term", "match_index", "log_index", "round", "hint_index", "hint_term")


class RaftHeader(NamedTuple):
    """A message, and what the header says besides of the frame's body (`broker.peers.protocol.RaftFrame`)."""

    message: Message
    position: int = 0
    applied_index: int = -1


def encode_raft_header(message: Message, position: int, applied_index: int) -> bytes:
    """The header of a frame with this message."""
    if isinstance(message, AppendRequest):
        usual = encode_append(message, position)
        if usual is not None:
            return usual
        configurations = message.configurations and [
            (index, c.voters, c.learners) for index, c in message.configurations
        ]
        return cbor2.dumps(
            (
                "append",
                message.source,
                message.target,
                message.term,
                message.prev_index,
                message.prev_term,
                message.spans,
                message.commit_index,
                message.round,
                configurations,
                position,
            )
        )
    if isinstance(message, AppendResponse):
        usual = encode_acknowledgement(message)
        if usual is not None:
            return usual
        return cbor2.dumps(
            (
                "append_response",
                message.source,
                message.target,
                message.term,
                message.success,
                message.match_index,
                message.log_index,
                message.round,
                message.hint_index,
                message.hint_term,
                message.recovering,
            )
        )
    common = (message.source, message.target, message.term)
    match message:
        case VoteRequest():
            return cbor2.dumps(
                (
                    "vote",
                    *common,
                    message.last_index,
                    message.last_term,
                    message.pre_vote,
                    message.leadership_transfer,
                )
            )
        case VoteResponse():
            return cbor2.dumps(
                (
                    "vote_response",
                    *common,
                    message.request_term,
                    message.granted,
                    message.pre_vote,
                    message.recovering,
                )
            )
        case SnapshotRequest():
            configuration = message.configuration
            return cbor2.dumps(
                (
                    "snapshot",
                    *common,
                    message.first_index,
                    message.prev_term,
                    message.configuration_index,
                    configuration.voters,
                    configuration.learners,
                    position,
                    applied_index,
                )
            )
        case SnapshotResponse():
            return cbor2.dumps(("snapshot_response", *common, message.match_index))
        case TimeoutNow():
            return cbor2.dumps(("timeout_now", *common))
        case RecoveryRequest():
            return cbor2.dumps(("recovery", *common, message.nonce))
        case RecoveryResponse():
            return cbor2.dumps(
                (
                    "recovery_response",
                    *common,
                    message.nonce,
                    message.has_history,
                    message.leads,
                    message.commit_index,
                )
            )


def _check_indices(names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """As `_index` of each: for the messages of which there are some in every turn."""
    for value in values:
        if type(value) is not int or not -1 <= value < INDEX_END:
            for name, refused in zip(names, values, strict=True):
                index_of(name, refused)


def _check_ends(source: Any, target: Any) -> None:
    if type(source) is not str or type(target) is not str:
        text_of("source", source)
        text_of("target", target)


def _configuration(voters: Any, learners: Any) -> Configuration:
    return Configuration(
        tuple(text_of("voter", node) for node in voters), tuple(text_of("learner", node) for node in learners)
    )


def _decode_append(fields: list[Any]) -> RaftHeader:
    source, target, term, prev_index, prev_term, spans, commit_index, round_, configurations, position = (
        fields
    )
    _check_ends(source, target)
    _check_indices(_APPEND_INDICES, (term, prev_index, prev_term, commit_index, round_))
    message = AppendRequest(
        source,
        target,
        term,
        prev_index,
        prev_term,
        () if spans == [] else tuple([_span(*span) for span in spans]),
        commit_index,
        round_,
        () if configurations == [] else tuple([_configuration_at(*item) for item in configurations]),
    )
    return RaftHeader(message, index_of("position", position, 0))


def _span(term: Any, count: Any) -> tuple[int, int]:
    return index_of("span term", term, 1), index_of("span count", count, 1)


def _configuration_at(index: Any, voters: Any, learners: Any) -> tuple[int, Configuration]:
    return index_of("index", index), _configuration(voters, learners)


def _decode_append_response(fields: list[Any]) -> RaftHeader:
    source, target, term, success, match_index, index, round_, hint_index, hint_term, recovering = fields
    _check_ends(source, target)
    _check_indices(_RESPONSE_INDICES, (term, match_index, index, round_, hint_index, hint_term))
    return RaftHeader(
        AppendResponse(
            source,
            target,
            term,
            flag_of("success", success),
            match_index,
            index,
            round_,
            hint_index,
            hint_term,
            flag_of("recovering", recovering),
        )
    )


def _decode_vote(fields: list[Any]) -> RaftHeader:
    source, target, term, last_index, last_term, pre_vote, transfer = fields
    return RaftHeader(
        VoteRequest(
            text_of("source", source),
            text_of("target", target),
            index_of("term", term),
            index_of("last_index", last_index),
            index_of("last_term", last_term),
            flag_of("pre_vote", pre_vote),
            flag_of("leadership_transfer", transfer),
        )
    )


def _decode_vote_response(fields: list[Any]) -> RaftHeader:
    source, target, term, request_term, granted, pre_vote, recovering = fields
    return RaftHeader(
        VoteResponse(
            text_of("source", source),
            text_of("target", target),
            index_of("term", term),
            index_of("request_term", request_term),
            flag_of("granted", granted),
            flag_of("pre_vote", pre_vote),
            flag_of("recovering", recovering),
        )
    )


def _decode_snapshot(fields: list[Any]) -> RaftHeader:
    source, target, term, first, prev_term, configuration_index, voters, learners, position, applied = fields
    message = SnapshotRequest(
        text_of("source", source),
        text_of("target", target),
        index_of("term", term),
        index_of("first_index", first),
        index_of("prev_term", prev_term),
        index_of("configuration_index", configuration_index),
        _configuration(voters, learners),
    )
    return RaftHeader(message, index_of("position", position, 0), index_of("applied_index", applied))


def _decode_snapshot_response(fields: list[Any]) -> RaftHeader:
    source, target, term, match_index = fields
    return RaftHeader(
        SnapshotResponse(
            text_of("source", source),
            text_of("target", target),
            index_of("term", term),
            index_of("match_index", match_index),
        )
    )


def _decode_timeout_now(fields: list[Any]) -> RaftHeader:
    source, target, term = fields
    return RaftHeader(
        TimeoutNow(text_of("source", source), text_of("target", target), index_of("term", term))
    )


def _decode_recovery(fields: list[Any]) -> RaftHeader:
    source, target, term, nonce = fields
    return RaftHeader(
        RecoveryRequest(
            text_of("source", source),
            text_of("target", target),
            index_of("term", term, 0),
            index_of("nonce", nonce, 0),
        )
    )


def _decode_recovery_response(fields: list[Any]) -> RaftHeader:
    source, target, term, nonce, has_history, leads, commit_index = fields
    term = index_of("term", term, 0)
    if flag_of("has_history", has_history) != (term > 0):
        refuse("has_history", has_history)
    return RaftHeader(
        RecoveryResponse(
            text_of("source", source),
            text_of("target", target),
            term,
            index_of("nonce", nonce, 0),
            has_history,
            flag_of("leads", leads),
            index_of("commit_index", commit_index),
        )
    )


RAFT_HEADERS: Final[dict[object, Callable[[list[Any]], RaftHeader]]] = {
    "append": _decode_append,
    "append_response": _decode_append_response,
    "vote": _decode_vote,
    "vote_response": _decode_vote_response,
    "snapshot": _decode_snapshot,
    "snapshot_response": _decode_snapshot_response,
    "timeout_now": _decode_timeout_now,
    "recovery": _decode_recovery,
    "recovery_response": _decode_recovery_response,
}
"""Reads the fields behind the kind. Raises `FieldError`, ValueError, TypeError."""
