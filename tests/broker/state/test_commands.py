"""What goes into the log must be what the state can hold."""

import pytest

from broker.remoting.bodies import SubscriptionGroupConfig
from broker.state.commands import PutGroup, decode_command, encode_command


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_a_command_is_read_as_it_was(number: int) -> None:
    command = PutGroup(
        SubscriptionGroupConfig(group_name="g", group_retry_policy={"x": [number, 1.5, None]}), 7
    )
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize("number", [-(2**63) - 1, 2**64])
def test_a_command_of_which_no_snapshot_could_be_made_is_none(number: int) -> None:
    """It would be found only when it is committed: every node of the group would end, and at each start again."""
    command = PutGroup(SubscriptionGroupConfig(group_name="g", group_retry_policy={"x": number}), 7)
    with pytest.raises(OverflowError):
        encode_command(command)
