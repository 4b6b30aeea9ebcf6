"""The table of what may happen to a request that waits for a leader."""

import pytest

from broker.node.request_states import OF_ONCE, OF_REPEATABLE, ONCE, RequestEvent, State, WaitingRequest
from broker.remoting.codes import RequestCode
from broker.remoting.command import request
from broker.remoting.headers import PullMessageHeader
from broker.requests.connection import Connection, Outgoing

NOT_DONE_YET = {State.RESUMED, State.UNKNOWN, State.REFUSED}
"""What they ask for may be done in a later turn; until then the client may go, and what is repeatable be taken back."""
WAITING = {State.HELD, State.FORWARDED, State.DOUBTED, *NOT_DONE_YET}


def waiting(code: int, state: State) -> WaitingRequest:
    return WaitingRequest(Connection(Outgoing(), "client"), request(code), 0, state, 1)


@pytest.mark.parametrize("table", [OF_ONCE, OF_REPEATABLE])
def test_every_state_is_entered_and_an_end_is_an_end(table: dict[State, dict[RequestEvent, State]]) -> None:
    assert set(table) <= WAITING
    for state in NOT_DONE_YET & set(table):
        assert set(table[state].values()) <= {State.TAKEN_BACK, State.FORGOTTEN}
    reached = {State.HELD, State.FORWARDED} | {state for row in table.values() for state in row.values()}
    of_once_only: set[State] = {State.DOUBTED, State.UNKNOWN} if table is OF_REPEATABLE else set()
    assert reached == set(State) - of_once_only


def test_what_is_done_once_goes_on_after_it_was_forwarded_only_if_it_was_given_back() -> None:
    for state in (State.FORWARDED, State.DOUBTED):
        assert [event for event, after in OF_ONCE[state].items() if after is State.RESUMED] == [
            RequestEvent.NOT_DONE
        ]
        assert State.REFUSED not in OF_ONCE[state].values(), "its client would take it for not done"


def test_a_doubted_send_whose_leader_is_back_is_waited_for_again() -> None:
    send = waiting(RequestCode.SEND_MESSAGE_V2, State.FORWARDED)
    assert send.command.code in ONCE
    assert send.happens(RequestEvent.LEADER_CHANGED) is State.DOUBTED
    assert send.happens(RequestEvent.LEADER_BACK) is State.FORWARDED
    assert send.happens(RequestEvent.RESPONSE) is State.ANSWERED


def test_what_cannot_happen_is_a_bug() -> None:
    answered = waiting(RequestCode.PULL_MESSAGE, State.FORWARDED)
    answered.happens(RequestEvent.RESPONSE)
    with pytest.raises(AssertionError, match="answered already: response"):
        answered.happens(RequestEvent.RESPONSE)
    with pytest.raises(AssertionError, match="held: not done cannot happen"):
        waiting(RequestCode.PULL_MESSAGE, State.HELD).happens(RequestEvent.NOT_DONE)


def test_the_header_of_a_pull_is_read_once() -> None:
    command = request(RequestCode.PULL_MESSAGE, PullMessageHeader("g", "T", 0, 5, 1, 0, 0, 0, 0))
    pull = WaitingRequest(Connection(Outgoing(), "client"), command, 0, State.HELD, 1)
    assert pull.pull is not None
    assert pull.pull is pull.pull
    assert waiting(RequestCode.SEND_MESSAGE, State.HELD).pull is None
