"""A single node, node a of three, driven by hand-made messages."""

import random

from raft import (
    Configuration,
    HardState,
    LogTerms,
    Loss,
    Raft,
    RaftOptions,
    Role,
)
from raft.effects import (
    Effect,
    Send,
)
from raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    VoteRequest,
    VoteResponse,
)
from raft.state import InitialState
from tests.raft.cluster import MILLISECOND, Run

THREE = Configuration(("a", "b", "c"))
OPTIONS = RaftOptions()
SECOND = 1000 * MILLISECOND


def node(
    terms: list[int] | None = None,
    *,
    term: int = 1,
    vote: str | None = None,
    configuration: Configuration = THREE,
    options: RaftOptions = OPTIONS,
    loss: Loss | None = None,
    lost_voters: tuple[str, ...] = (),
) -> Raft:
    """Node a with a log of entries of these terms, all of it on its disk, nothing known to be committed; it may lack
    something that it promised.
    """
    log = LogTerms()
    for entry_term in terms or []:
        log.append(entry_term, 1)
    return Raft(
        options,
        "a",
        InitialState(
            hard_state=HardState(term, vote),
            log=log,
            commit_index=-1,
            configurations=[(-1, configuration)],
            loss=loss,
            lost_voters=lost_voters,
        ),
        random.Random(7),
        0,
        lambda first_index, last_index: Run(last_index),
    )


def step(raft: Raft, message: Message, now: int = 0) -> list[Effect]:
    """The effects of one turn with this message, its writes flushed at once."""
    raft.step(message, now)
    effects = raft.take_effects()
    raft.persisted(raft.log_terms.last_index, raft.log_generation, now)
    raft.replicate(now)
    return effects + raft.take_effects()


def role_of(raft: Raft) -> Role:
    """Its role now; a function, lest type checkers take it for constant."""
    return raft.role


def sent(effects: list[Effect]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def append(prev: tuple[int, int], *spans: tuple[int, int], term: int = 1, commit: int = -1) -> AppendRequest:
    return AppendRequest("b", "a", term, prev[0], prev[1], spans, commit, 1)


def vote_request(
    term: int, last: tuple[int, int], *, pre_vote: bool = False, source: str = "b"
) -> VoteRequest:
    return VoteRequest(source, "a", term, last[0], last[1], pre_vote)


def become_leader(raft: Raft, now: int = 2 * SECOND) -> list[Effect]:
    """Wins an election; the no-op is written and flushed but not committed."""
    raft.tick(now)
    step(raft, VoteResponse("b", "a", raft.term, raft.term + 1, True, pre_vote=True), now)
    effects = step(raft, VoteResponse("b", "a", raft.term, raft.term, True), now)
    assert role_of(raft) is Role.LEADER
    return effects


def agrees(raft: Raft, source: str, index: int, *, round_number: int = 1) -> AppendResponse:
    return AppendResponse(source, "a", raft.term, True, index, index, round_number)
