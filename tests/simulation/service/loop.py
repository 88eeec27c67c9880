"""The virtual event loop of tier 2: asyncio's contract for all processes of a cluster, in one thread over virtual time.

To act on another process, use `Process.post`; never call into its objects, because futures wake up in the process that
is current.

Invariants:
- Time is an integer of nanoseconds and moves only between events; the heap holds (time, sequence, handle).
- Every callback belongs to a `Process`: one incarnation of one node. What a callback starts belongs to its process too.
- One event is delivered, then that process's ready queue is drained in order, before the next event. So a trace does
  not depend on how many internal steps a version of Python takes for the same work.
- A process that is killed runs nothing any more. Its tasks, handles and connections are kept until the trial ends,
  because a coroutine that the garbage collector closes would run its `finally` after the kill.
- A paused process gets its events when it resumes, in order.
- What asyncio would only log (an exception nobody retrieved, a task destroyed while it is pending, an exception out of
  a callback) fails the trial.
- What cannot be simulated raises where it is called: threads, signals, subprocesses, real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import math
import random
import sys
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextvars import Context
from typing import Any, cast

from tests.simulation.kernel import Violation
from tests.simulation.service.refusing import Refusing

S = 1_000_000_000
MS = 1_000_000
DRAIN_MAX = 200_000  # callbacks of one event: a process that runs more is spinning
_MASK = (1 << 61) - 1

RUNNING, PAUSED, DEAD = 0, 1, 2


class Handle:
    """A scheduled callback; what call_soon, call_later and call_at return."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled", "process")

    def __init__(
        self, process: Process, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.process = process
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.is_cancelled = False
        self._when = 0

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            if self.process.state != DEAD:  # the references of a dead process are kept
                self.callback, self.args, self.context = None, (), None

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when / S


class Task(asyncio.Task[Any]):
    """A task that knows its process. Its hash is its number, so that sets of tasks have one order in every run."""

    __slots__ = ("number", "process")

    number: int
    process: Process

    def __new__(cls, *_: Any, loop: SimulatedLoop, **__: Any) -> Task:
        self = super().__new__(cls)
        process = self.process = loop.process
        process.tasks_made += 1
        self.number = process.tasks_made
        return self

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class Process:
    """One incarnation of one node: its callbacks, its random streams, its wall clock.

    skew_ns: how far its wall clock is from the true one.
    """

    def __init__(self, loop: SimulatedLoop, node: str, incarnation: int) -> None:
        self.loop = loop
        self.node = node
        self.incarnation = incarnation
        self.number = len(loop.processes)
        self.state = RUNNING
        self.skew_ns = 0
        self.ready: deque[Handle] = deque()
        self.held: deque[Handle] = deque()  # while it is paused
        self.tasks_made = 0
        self._streams: dict[str, random.Random] = {}

    def __repr__(self) -> str:
        return f"{self.node}#{self.incarnation}"

    @property
    def is_dead(self) -> bool:
        return self.state == DEAD

    def rng(self, use: str) -> random.Random:
        """The random stream of this incarnation for one use."""
        stream = self._streams.get(use)
        if stream is None:
            name = f"{self.loop.seed}/{self.node}/{self.incarnation}/{use}"
            stream = self._streams[use] = random.Random(name)
        return stream

    def post(self, callback: Callable[..., object], *args: Any, delay_ns: int = 0) -> Handle:
        """Run `callback` in this process, as an event of its own."""
        return self.loop.at(self.loop.now + delay_ns, self, callback, *args)


class SimulatedLoop(Refusing):
    """The loop of one cluster. Made for one trial: call `run` as often as needed, then `dispose`.

    network: performs create_connection and create_server (tests/simulation/service/network.py), set by its maker.
    on_line: if set, is called with each line of the trace; `trace_hash` is the hash of all lines.
    """

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.now = 1_000 * S  # monotonic clocks do not begin at 0
        self.events = 0
        self.trace_hash = 0
        self.on_line: Callable[[str], None] | None = None
        self.failures: list[str] = []
        self.breach: Violation | None = None  # found inside production code, which may catch what is raised
        self.processes: list[Process] = []
        self.network: Any = None
        self.world = self.spawn("world")  # runs the code that arranges the trial
        self.process = self.world
        self._heap: list[tuple[int, int, Handle]] = []
        self._sequence = 0
        self._graveyard: list[Any] = []
        self._generators: weakref.WeakKeyDictionary[AsyncGenerator[Any, Any], Process] = weakref.WeakKeyDictionary()
        self._running = False
        self._disposing = False
        self._closed = False

    # ---- processes ---------------------------------------------------------------------------------------------------

    def spawn(self, node: str) -> Process:
        """Start the next incarnation of a node."""
        incarnation = sum(process.node == node for process in self.processes) + 1
        process = Process(self, node, incarnation)
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """Kill a process now, in the middle of whatever it awaits. The network handles its connections."""
        if process.state == DEAD:
            return
        process.state = DEAD
        self._graveyard += [process.ready, process.held]
        self._graveyard += [task for task in asyncio.all_tasks(self) if cast(Task, task).process is process]
        process.ready, process.held = deque(), deque()

    def pause(self, process: Process) -> None:
        if process.state == RUNNING:
            process.state = PAUSED

    def resume(self, process: Process) -> None:
        """Resume a paused process; events that arrived meanwhile are delivered now, in order."""
        if process.state != PAUSED:
            return
        process.state = RUNNING
        held, process.held = process.held, deque()
        for handle in held:
            self._push(self.now, handle)

    def keep(self, thing: object) -> None:
        """Keep something of a dead process from the garbage collector until the trial ends."""
        self._graveyard.append(thing)

    # ---- running -----------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.now / S

    def at(self, when_ns: int, process: Process, callback: Callable[..., object], *args: Any) -> Handle:
        """Schedule an event of a process at a virtual time."""
        handle = Handle(process, callback, args, None)
        self._push(when_ns, handle)
        return handle

    def hand(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """Run a callback in a process now: at once if the current event is the world's, otherwise as the next event."""
        handle = Handle(process, callback, args, None)
        if process.state != RUNNING:
            if process.state == PAUSED:
                process.held.append(handle)
        elif self.process is not self.world:
            self._push(self.now, handle)
        else:
            self.trace_hash = (self.trace_hash * 1_000_003 ^ self.now ^ process.number << 44) & _MASK
            self.process = process
            try:
                self._deliver(process, handle)
            finally:
                self.process = self.world

    def run(self, *, until_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Run until the virtual time `until_s`, or until `until` holds after an event. Returns whether it held.

        Raises Violation when something failed that asyncio would only log, or when a process spins.
        """
        limit = math.ceil(until_s * S)
        heap = self._heap
        left = DRAIN_MAX  # events at one point of time
        if until is not None and until():
            return True
        with self._as_running():
            while heap and heap[0][0] <= limit:
                when, _, handle = heapq.heappop(heap)
                if handle.is_cancelled:
                    continue
                process = handle.process
                if process.state != RUNNING:
                    if process.state == PAUSED:
                        process.held.append(handle)
                    continue
                left = left - 1 if when == self.now else DRAIN_MAX
                if not left:
                    raise Violation("V2", f"{process!r} spins, by timers: {handle.callback!r}")
                self.now = when
                self.events += 1
                self.trace_hash = (self.trace_hash * 1_000_003 ^ when ^ process.number << 44) & _MASK
                self.process = process
                self._deliver(process, handle)
                self.process = self.world
                if self.breach is not None:
                    raise self.breach
                if self.failures:
                    raise Violation("V3", self.failures[0])
                if until is not None and until():
                    return True
        self.now = max(self.now, limit)
        return False

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.on_line is not None:
            self.on_line(f"{self.now_s - 1000:12.6f} {self.process!r:14} {text}")

    def mix(self, number: int) -> None:
        """Add a value to the trace hash that must be the same in every run of a seed."""
        self.trace_hash = (self.trace_hash * 1_000_003 ^ number) & _MASK

    def _deliver(self, process: Process, handle: Handle) -> None:
        self._call(handle)
        ready = process.ready
        left = DRAIN_MAX
        while ready:
            handle = ready.popleft()
            if not handle.is_cancelled:
                self._call(handle)
                left -= 1
                if not left:
                    raise Violation("V2", f"{process!r} spins: {handle.callback!r}")
            if process.state != RUNNING:  # killed or paused by one of its own callbacks
                if process.state == PAUSED:
                    process.held.extendleft(reversed(ready))
                    ready.clear()
                return

    def _call(self, handle: Handle) -> None:
        callback = handle.callback
        assert callback is not None
        try:
            if handle.context is None:
                callback(*handle.args)
            else:
                handle.context.run(callback, *handle.args)
        except (SystemExit, KeyboardInterrupt, Violation):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a callback raises fails the trial
            self.call_exception_handler({"message": f"exception in callback {callback!r}", "exception": error})

    def _push(self, when_ns: int, handle: Handle) -> None:
        self._sequence += 1
        handle._when = when_ns
        heapq.heappush(self._heap, (when_ns, self._sequence, handle))

    @contextlib.contextmanager
    def _as_running(self) -> Iterator[None]:
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._generator_begins, finalizer=self._generator_dropped)
        self._running = True
        try:
            yield
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def dispose(self, let_go: Callable[[], object] = lambda: None, *, judged: bool = False) -> list[str]:
        """End the trial. Returns the unretrieved failures of processes that were alive. let_go drops other references
        to them.

        The garbage collector runs twice. The first run reports unretrieved exceptions of live processes (unless the
        trial is judged already). The second run takes everything else and its reports are ignored: a coroutine that the
        collector closes runs its `finally`, and there is no loop to run it on.
        """
        if not judged:
            gc.collect()
        found, self.breach = list(self.failures), None  # the breach refers to every frame it was raised through
        self._disposing = self._closed = True
        hook = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._silence_tasks()
                let_go()
                self._graveyard.clear()
                self._heap.clear()
                for process in self.processes:
                    process.ready.clear()
                    process.held.clear()
                self.network = None
                for _ in range(10):  # a coroutine that awaits in its `finally` survives once, and so do its referents
                    if not gc.collect():
                        break
        finally:
            sys.unraisablehook = hook
        return found

    def _silence_tasks(self) -> None:
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # both Task classes have it

    # ---- asyncio's side: callbacks -----------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now / S

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        process = self.process
        handle = Handle(process, callback, args, context)
        if process.state == RUNNING:
            process.ready.append(handle)
            if not self._running:  # from outside of any event: as an event of its own
                process.ready.pop()
                self._push(self.now, handle)
        elif process.state == PAUSED:
            process.held.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(self.process, callback, args, context)
        self._push(self.now + max(0, math.ceil(delay * S)), handle)
        return handle

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        handle = Handle(self.process, callback, args, context)
        when_ns = max(self.now, math.ceil(when * S))
        self._push(when_ns + (when_ns / S < when), handle)  # never at a time() before `when`: an endless timer
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **_: Any
    ) -> asyncio.Task[Any]:
        if self._disposing:
            coro.close()
            raise RuntimeError("the trial is over")
        text = None if name is None else str(name)
        return Task(coro, loop=self, name=text, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function in one piece after a drawn delay, as an event of the calling process."""
        if executor is not None:
            raise RuntimeError("no executor of one's own in a simulation: threads are not simulated")
        future = self.create_future()
        delay_s = self.process.rng("executor").expovariate(1.0) * 0.001
        self.call_later(delay_s, self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except Violation:
            raise
        except BaseException as error:  # noqa: BLE001 - as an executor's future has it
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)

    # ---- asyncio's side: network -------------------------------------------------------------------------------------

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        _refuse(options, "ssl", "sock", "local_addr")
        *others, last = self.network.names.get(host, (host,))
        for address in others:
            with contextlib.suppress(OSError):  # the addresses of a name in their order, as asyncio tries them
                return cast(tuple[Any, Any], await self.network.connect(protocol_factory, address, port))
        return cast(tuple[Any, Any], await self.network.connect(protocol_factory, last, port))

    async def create_server(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: Any = None,
        start_serving: bool = True,
        **options: Any,
    ) -> Any:
        _refuse(options, "ssl")
        return self.network.listen(protocol_factory, host, port, sock, start_serving)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(2, 1, 6, "", (address, int(port))) for address in self.network.names.get(host, (host,))]

    # ---- asyncio's side: state and errors ----------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: Any) -> None:
        if self._disposing:
            return
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        text = f"{self.process!r}: {context.get('message')} {task if task is not None else ''}"
        if isinstance(error, BaseException):
            text += "\n" + "".join(traceback.format_exception(error))
        self.failures.append(text)

    def default_exception_handler(self, context: Any) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        return

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        return

    def _generator_begins(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[generator] = self.process

    def _generator_dropped(self, generator: AsyncGenerator[Any, Any]) -> None:
        process = self._generators.pop(generator, self.world)
        if process.state == DEAD or self._disposing:
            self._graveyard.append(generator)
            return
        process.post(lambda: self.create_task(generator.aclose()))

    def close(self) -> None:
        self._closed = True


def _refuse(options: dict[str, Any], *names: str) -> None:
    for name in names:
        if options.get(name) is not None:
            raise RuntimeError(f"not in a simulation: {name}={options[name]!r}")
