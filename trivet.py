"""Trivet's public face: ``import trivet`` gives the client, ``python -m trivet`` the command.

Whatever is imported from the wheel runs this first, Spark's workers and the command included. So nothing is imported
here but when it is asked for.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from broker.public.client import *  # noqa: F403
    from broker.public.client import __all__ as __all__

# In the wheel this file is trivet/__init__.py, with testing.py beside it, which is `trivet.testing`. In a checkout this
# makes it the same of broker/public/testing.py; the rooms have their own names there, and no others.
__path__ = globals().get("__path__") or [str(Path(__file__).parent / "broker" / "public")]


def main() -> NoReturn:
    """Run the command ``trivet`` with this process's arguments, and exit."""
    from broker.tools.cli import main

    main()


if not TYPE_CHECKING:

    def __getattr__(name):
        if name == "__all__" or not name.startswith("_"):
            client = import_module("trivet.client")
            if name == "__all__" or name in client.__all__:
                return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return [*globals(), *__getattr__("__all__")]


if __name__ == "__main__":
    main()
