"""Start and end of a server process: event loop, memory settings, signals, exit code.

Invariants:
- One call (`run`) sets everything that a long-lived process needs; importing this module changes nothing.
- Exit codes: 0 done, 1 failed, 2 misused (ConfigError, or an error with remedy FIX), 128 + n ended by a signal n.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

import uvloop

from dlog.errors import ConfigError, DLogError, Remedy
from dlog.events import Event, LoopStalled, ProcessStopping
from dlog.hostport import bare_host, is_any_host
from dlog.io import logs, metrics
from dlog.io.children import on_signals
from dlog.io.cycle_collector import THRESHOLDS, CycleCollector
from dlog.io.file_errors import describe_error, is_misuse, names_file, remedy_for
from dlog.io.lateness_timer import LatenessTimer
from dlog.io.settings import HELD

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEEP_BYTES = 128 << 20  # up to this much freed memory stays with the process instead of being faulted in again
_MMAP_BYTES = 32 << 20  # glibc's upper limit: smaller buffers come from the heap

STALL_S = 0.005
STALL_REPORTED_S = 0.25
_STALL_EVERY_S = 0.1


def reachable_host(host: str) -> str:
    """Return the host by which others reach a process that listens on `host`: the same, or the machine's name if `host`
    means every interface."""
    return socket.gethostname() if is_any_host(host) else bare_host(host)


def run(main: Callable[[], Awaitable[int]]) -> int:
    """Run `main` on uvloop to its end and return the exit code; the last line of every `__main__`.

    A DLogError that `main` raises becomes one line on stderr. Refuses `python -O`: our assertions are invariants.
    """
    if sys.flags.optimize:
        sys.stderr.write("dlog does not run under python -O: its assertions guard data; start it without -O\n")
        return 2
    _fill_standard_descriptors()
    keep_freed_memory()
    raise_file_limit()
    if not _wait_for_parent():
        return 1
    try:
        return _exit_code(main)
    finally:
        _forget_unwritten()


def _exit_code(main: Callable[[], Awaitable[int]]) -> int:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_watched(main))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except DLogError as error:
        return _print_error(error)
    except OSError as error:
        if not names_file(error):
            raise
        return _print_file_error(error)
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        if all(names_file(error) for error in errors):
            return _print_file_error(errors[0])
        known = [error for error in errors if isinstance(error, DLogError)]
        if len(known) != len(errors):
            raise
        return _print_error(known[0])


def _fill_standard_descriptors() -> None:
    """Open /dev/null for each of standard input, output and error that the parent closed: libuv aborts if a socket gets
    such a number, and output written there must not reach one of our files."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - for the rest of the process


def _forget_unwritten() -> None:
    """Discard output that the standard streams did not accept, so that Python does not exit with code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def _wait_for_parent() -> bool:
    """If the parent started us early (DLOG_HELD), wait for a byte on stdin before starting: modules are loaded while
    other processes are not ready yet. Return False if the parent has ended."""
    return not os.environ.pop(HELD, "") or (sys.stdin is not None and bool(sys.stdin.buffer.read(1)))


async def _watched(main: Callable[[], Awaitable[int]]) -> int:
    watch, collector = StallWatch(_report_stall), CycleCollector()
    watch.start()
    collector.start()
    try:
        return await main()
    finally:
        watch.stop()
        collector.stop()


def stop_event(on_event: Callable[[Event], None] | None = None) -> asyncio.Event:
    """Return an event that the first SIGTERM or SIGINT sets, for a graceful stop. A second signal ends the process at
    once, which is safe because everything acknowledged is on disk. A signal that the process was started to ignore
    stays ignored. Call once, inside `main`.
    """
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            os._exit(128 + number)
        stopping.set()
        if on_event is not None:
            on_event(ProcessStopping(number.name))

    on_signals((signal.SIGTERM, signal.SIGINT), on_signal)
    return stopping


def ready(role: str, name: str, address: str) -> None:
    """Print the line on stdout that a parent waits for, and call `freeze`.

    A closed or failing stdout is ignored: then no parent waits.
    """
    freeze()
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError):
        sys.stdout.write(f"ready {role} {name} {address}\n")
        sys.stdout.flush()


def freeze() -> None:
    """Exclude all objects alive now from Python's garbage collection, and let it collect only the youngest generation,
    rarely. In long-running processes a CycleCollector collects the others."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def keep_freed_memory() -> None:
    """Raise malloc's thresholds, so that large buffers are reused instead of returned and faulted in again.

    One arena: our threads wait for disks and share the interpreter lock, so more arenas would only keep apart memory
    that could be reused. Does nothing if the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_ARENA_MAX, 1)


def use_batch_scheduling() -> None:
    """Use Linux's scheduling policy SCHED_BATCH, so that this process does not preempt the process that wakes it.

    For a process that receives many small messages from processes on the same machine: a sender to three of us sends
    all three before the first of us runs, and our threads do not preempt each other. Call before threads are started:
    they inherit it. A policy other than the default stays. A process alone on its machine is not affected.
    """
    try:
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (AttributeError, OSError):  # not Linux, or a sandbox that forbids it
        return


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: our own options bound connections and files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class StallWatch:
    """Measures how late the event loop runs a timer; more than 5 ms is added to dlog_loop_stall_seconds."""

    def __init__(self, on_stall: Callable[[float], None]) -> None:
        self._on_stall = on_stall
        self._timer = LatenessTimer(_STALL_EVERY_S, self._look)

    def start(self) -> None:
        """Start on the running event loop."""
        self._timer.start()

    def stop(self) -> None:
        self._timer.stop()

    def _look(self, late_s: float) -> None:
        if late_s > STALL_S:
            self._on_stall(late_s)
        metrics.MINOR_FAULTS.set(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)


def _report_stall(late_s: float) -> None:
    metrics.LOOP_STALLS.inc()
    metrics.LOOP_STALL_SECONDS.inc(late_s)
    if late_s > STALL_REPORTED_S:
        logs.log_event(LoopStalled(round(late_s * 1000, 1)))


def _print_error(error: DLogError) -> int:
    sys.stderr.write(f"{type(error).__name__}: {error.message}\n")
    return 2 if isinstance(error, ConfigError) or error.remedy is Remedy.FIX else 1


def _print_file_error(error: BaseException) -> int:
    assert isinstance(error, OSError)
    sys.stderr.write(f"{type(error).__name__}: {describe_error(error)}; {remedy_for(error)}\n")
    return 2 if is_misuse(error) else 1


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
