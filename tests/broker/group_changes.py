"""Changes of a group's members, as an operator's client asks for them."""

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from tests.broker.harness import Client, peer_address


def change(client: Client, operation: str, node: str, address: str | None = None) -> RemotingCommand:
    fields = {"operation": operation, "node": node, "address": address}
    return client.call(RequestCode.TRIVET_CHANGE_GROUP, fields)


def done(answer: RemotingCommand) -> None:
    assert answer.code == ResponseCode.SUCCESS, f"code {answer.code}: {answer.remark}"


def add(client: Client, node: str) -> None:
    done(change(client, "add", node, peer_address(node)))


def promote(client: Client, node: str) -> None:
    """Promotes a learner as soon as it has caught up."""
    for _ in range(50):
        answer = change(client, "promote", node)
        if answer.code != ResponseCode.SYSTEM_BUSY:
            break
        client.group.advance(0.1)
    done(answer)
