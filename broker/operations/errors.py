"""The reasons why an operation was not done. All are `ClientError`: whose fault it is and whether a retry helps, each
says.

ClientError
├── NotThere     no such consumer group, message or account: the same call fails again until there is one
└── InUse        something would be taken from under those who use it: stop them first, or insist
"""

# ruff: noqa: N818 - the names say what happened, as those of the client's errors do

from broker.client.errors import ClientError


class NotThere(ClientError):
    """A consumer group, a message, an account or another thing that was asked for does not exist."""


class InUse(ClientError):
    """Clients use what was to be deleted."""


def in_words(error: BaseException) -> str:
    """Return what an error says, and what an operation has noted about it: what was done before it."""
    return "; ".join((str(error), *getattr(error, "__notes__", ())))
