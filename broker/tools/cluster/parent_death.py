"""A child server must not outlive the process that started it, even if that one is killed with SIGKILL.

On Linux the kernel does it (``PR_SET_PDEATHSIG``). The child asks for it itself, as the first thing it does, rather
than between fork and exec in the parent: code that runs there in a process with threads can deadlock. A parent that
died in the meantime is noticed by comparing parent ids. The signal is bound to the *thread* that forked, so
:mod:`broker.tools.cluster.local` starts children from its main thread.

Elsewhere there is no such request, and the environment variable is ignored.
"""

import os
import signal
import sys

PARENT_VARIABLE = "TRIVET_DIE_WITH_PARENT"
"""Environment variable with the process id of the parent to die with."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Arrange for SIGKILL at the parent's death if the environment asks for it. Raises OSError if Linux refuses."""
    expected = os.environ.pop(PARENT_VARIABLE, "")
    if not expected or sys.platform != "linux":
        return
    import ctypes  # here, as every command comes by

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_PDEATHSIG)")
    if str(os.getppid()) != expected:
        sys.exit("trivet: the process that started this one is gone")
