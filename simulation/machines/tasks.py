"""Coroutines on virtual time: the tasks, events and cancel scopes that the client's logic is written against.

The semantics are those of `broker.client.transport.runtime`, Trio's: a group ends when all its tasks have ended,
cancellation is an exception that belongs to a scope and strikes at awaits only, again and again until the scope is
left. Tasks run in the order in which they became ready, a batch of them per step of the process, and a step takes a few
microseconds of virtual time, so that nothing can spin without time passing.

A `TaskProcess` can be killed like a real process: its tasks end where they stand, without another visible act.
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any

from simulation.machines.clock import HostClock
from simulation.scheduler import MICROSECOND, Scheduler, Timer, nothing

_STEP_NS = 5 * MICROSECOND


class Cancelled(BaseException):
    """Raised at an await in a cancelled scope; caught by that scope and by nobody else."""


class ProcessKilled(BaseException):
    """Ends a task of a killed process; every further await raises it again."""


@types.coroutine
def _suspended() -> Generator[None, Any, Any]:
    return (yield)


@dataclass(slots=True, eq=False)
class _Task:
    coroutine: Coroutine[Any, Any, None]
    group: TaskGroup | None
    scope: Scope | None
    waiting: bool = False
    abort: Callable[[], object] = nothing


@dataclass(slots=True, eq=False)
class SimulatedEvent:
    """`broker.client.transport.runtime.Event`."""

    _process: TaskProcess
    _flag: bool = False
    _waiters: dict[_Task, None] = field(default_factory=dict)

    def set(self) -> None:
        """Wakes everyone who waits, in the order in which they came."""
        if not self._flag:
            self._flag = True
            waiters, self._waiters = self._waiters, {}
            for task in waiters:
                self._process.wake(task)

    def is_set(self) -> bool:
        """True once `set` was called."""
        return self._flag

    async def wait(self) -> None:
        """Returns once the flag is set."""
        process = self._process
        if self._flag:
            await process.checkpoint()
            return
        task = process.running
        assert task is not None, "outside of any task"
        self._waiters[task] = None
        process.suspend(task, lambda: self._waiters.pop(task, None))
        await _suspended()


@dataclass(slots=True, eq=False)
class Scope:
    """`broker.client.transport.runtime.CancelScope`."""

    _process: TaskProcess
    _seconds: float = math.inf
    shield: bool = False
    cancel_called: bool = False
    cancelled_caught: bool = False
    parent: Scope | None = None
    _task: _Task | None = None
    _timer: Timer | None = None

    def cancel(self) -> None:
        """Cancels the block now."""
        if not self.cancel_called:
            self.cancel_called = True
            self._process.deliver_cancellations()

    def is_cancelled(self) -> bool:
        """True if awaits directly inside are to be cancelled, by this scope or by one around it."""
        scope: Scope | None = self
        while scope is not None:
            if scope.cancel_called:
                return True
            if scope.shield:
                return False
            scope = scope.parent
        return False

    def __enter__(self) -> Scope:
        process = self._process
        task = process.current()
        self._task = task
        self.parent = task.scope
        task.scope = self
        if self._seconds != math.inf:
            self._timer = process.call_after(max(self._seconds, 0.0), self.cancel)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        assert self._task is not None
        assert self._task.scope is self, "scopes nest"
        self._task.scope = self.parent
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(error, Cancelled) and self.cancel_called:
            self.cancelled_caught = True
            return True
        return False


class TaskGroup:
    """`broker.client.transport.runtime.TaskGroup`, and the context manager around it."""

    __slots__ = ("_children", "_emptied", "_errors", "_process", "_scope", "_task_scope")

    def __init__(self, process: TaskProcess, *, shielded: bool = False) -> None:
        """`shielded`: only `cancel` cancels the tasks, whatever becomes of the body."""
        self._process = process
        self._scope = Scope(process)
        self._task_scope = self._scope
        if shielded:
            self._task_scope = Scope(process, shield=True)
            self._task_scope.parent = self._scope
        self._children: dict[_Task, None] = {}
        self._errors: list[BaseException] = []
        self._emptied: SimulatedEvent | None = None

    def start_soon(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Starts a task of the group; it runs first in the process's next step."""
        coroutine = function(*arguments)
        assert isinstance(coroutine, Coroutine)
        task = _Task(coroutine, self, self._task_scope)
        self._children[task] = None
        self._process.start(task)

    def cancel(self) -> None:
        """Cancels all tasks and the body."""
        self._scope.cancel()
        self._task_scope.cancel()

    def ended(self, task: _Task, error: BaseException | None) -> None:
        """Notes that a task has ended; for the process."""
        del self._children[task]
        if error is not None and not isinstance(error, Cancelled):
            self._errors.append(error)
            self.cancel()
        if not self._children and self._emptied is not None:
            self._emptied.set()

    async def __aenter__(self) -> TaskGroup:
        self._scope.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        process = self._process
        # Nothing is waited for: every task of the process is ended in the same way (`TaskProcess.kill`).
        if isinstance(error, ProcessKilled):
            return False
        if error is not None:
            if not isinstance(error, Cancelled):
                self._errors.append(error)
            self.cancel()
        while self._children:
            self._emptied = SimulatedEvent(process)
            try:
                await self._emptied.wait()
            except Cancelled as cancelled:
                # From outside: the children are cancelled by the same scope; their end is waited for all the same.
                error = error or cancelled
                with Scope(process, shield=True):
                    while self._children:
                        self._emptied = SimulatedEvent(process)
                        await self._emptied.wait()
        # Asked before the scope is left; whose cancellation it was decides whether it ends here or goes on outwards.
        own = self._scope.cancel_called
        self._scope.__exit__(None, None, None)
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise BaseExceptionGroup("several tasks failed", self._errors)
        if isinstance(error, Cancelled):
            if own and not (self._scope.parent is not None and self._scope.parent.is_cancelled()):
                return True
            raise error
        return False


class TaskProcess:
    """The tasks of one process. `clock` is its host's; `failed` is told what the main task raised, None for nothing."""

    def __init__(
        self, scheduler: Scheduler, clock: HostClock, failed: Callable[[BaseException | None], object]
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._failed = failed
        self._ready: deque[tuple[_Task, BaseException | None]] = deque()
        self._tasks: dict[_Task, None] = {}
        self._step_scheduled = False
        self.running: _Task | None = None
        """The task whose code runs now."""
        self.killed = False
        self._stood_still_ns = 0
        """The time of the pauses that are over."""
        self._paused_since_ns: int | None = None
        self._late: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        """The calls of timers whose time came while it stood still."""

    # ---- life ----------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Starts the main task."""
        self.start(_Task(main, None, None))

    def kill(self) -> None:
        """Ends the process now: no task gets another step that anybody could notice."""
        self.killed = True
        self._ready.clear()
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            self.running = task
            try:
                # A task in `finally` may await again; suspending raises the same at once.
                task.coroutine.throw(ProcessKilled())
            except (ProcessKilled, StopIteration):
                pass
            except RuntimeError:
                pass  # a coroutine that was never started, or turned the end into another error
            except BaseException:
                pass
            task.coroutine.close()
        self.running = None

    @property
    def is_paused(self) -> bool:
        """True while it stands still."""
        return self._paused_since_ns is not None

    @property
    def stood_still_ns(self) -> int:
        """For how long in all it has stood still, in true time."""
        since_ns = self._paused_since_ns
        return self._stood_still_ns + (0 if since_ns is None else self._scheduler.now_ns - since_ns)

    def pause(self) -> None:
        """The process stands still (SIGSTOP): no task gets a step and no timer is looked at until `resume`."""
        if self._paused_since_ns is None:
            self._paused_since_ns = self._scheduler.now_ns

    def resume(self) -> None:
        """Lets it go on: timers whose time has come meanwhile are over now, in the order of their times."""
        if self._paused_since_ns is not None:
            self._stood_still_ns = self.stood_still_ns
            self._paused_since_ns = None
            late, self._late = self._late, []
            for callback, arguments in late:
                self._fire(callback, arguments)
            self._plan_step()

    # ---- for tasks -----------------------------------------------------------------------------------

    def current(self) -> _Task:
        """The task that runs now."""
        assert self.running is not None, "outside of any task"
        return self.running

    def start(self, task: _Task) -> None:
        """Adds a task, which begins in the next step."""
        if self.killed:
            task.coroutine.close()
            return
        self._tasks[task] = None
        self._ready.append((task, None))
        self._plan_step()

    def wake(self, task: _Task, error: BaseException | None = None) -> None:
        """Lets a suspended task go on in the next step. Waking it twice does nothing more."""
        if task.waiting and not self.killed:
            task.waiting = False
            self._ready.append((task, error))
            if not self._step_scheduled:
                self._plan_step()

    def suspend(self, task: _Task, abort: Callable[[], object]) -> None:
        """Lets the task wait for `wake`; to be followed by `_suspended`. `abort` undoes that when a cancellation comes
        first. Raises instead when it has come already.
        """
        if self.killed:
            raise ProcessKilled
        if task.scope is not None and task.scope.is_cancelled():
            abort()
            raise Cancelled
        task.waiting = True
        task.abort = abort

    async def checkpoint(self) -> None:
        """Lets others run. Raises Cancelled if this task is, ProcessKilled if its process was ended."""
        task = self.current()
        if self.killed:
            raise ProcessKilled
        if task.scope is not None and task.scope.is_cancelled():
            raise Cancelled
        self._ready.append((task, None))
        if not self._step_scheduled:
            self._plan_step()
        await _suspended()

    async def sleep(self, seconds: float) -> None:
        """Waits so long by the host's clock."""
        if seconds <= 0:
            await self.checkpoint()
            return
        task = self.current()
        if seconds == math.inf:
            self.suspend(task, nothing)
        else:
            self.suspend(task, self.call_after(seconds, self.wake, task).cancel)
        await _suspended()

    def call_after(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Sets a timer by the host's clock."""
        local_ns = self._clock.now_ns() + int(seconds * 1e9)
        return self._scheduler.at(self._clock.true_ns(local_ns), self._fire, callback, arguments)

    def deliver_cancellations(self) -> None:
        """Looks for suspended tasks whose scope is cancelled."""
        if self.killed:
            return
        # One scope's cancellation may concern any number of tasks: scopes do not know who is in them.
        for task in list(self._tasks):
            if task.waiting and task.scope is not None and task.scope.is_cancelled():
                task.abort()
                self.wake(task, Cancelled())

    # ---- steps ---------------------------------------------------------------------------------------

    def _fire(self, callback: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        if self.is_paused:
            # In the order in which they fire, which is that of their times.
            self._late.append((callback, arguments))
        elif not self.killed:
            callback(*arguments)

    def _plan_step(self) -> None:
        if not self._step_scheduled and self._ready and not self.killed and not self.is_paused:
            self._step_scheduled = True
            scheduler = self._scheduler
            scheduler.at(scheduler.now_ns + _STEP_NS, self._step)

    def _step(self) -> None:
        self._step_scheduled = False
        if self.killed or self.is_paused:
            return
        # Those that become ready meanwhile are for the next step, which time separates from this one.
        ready, self._ready = self._ready, deque()
        for task, error in ready:
            self.running = task
            failure: BaseException | None = None
            try:
                if error is None:
                    task.coroutine.send(None)
                else:
                    task.coroutine.throw(error)
                continue
            except StopIteration:
                pass
            except BaseException as raised:
                failure = raised
            finally:
                self.running = None
            self._tasks.pop(task, None)
            if task.group is not None:
                task.group.ended(task, failure)
            else:
                self._failed(failure)
        if self._ready:
            self._plan_step()
