"""Child processes: the command that starts a dlog module, and the environment and signals it inherits.

Invariants:
- A child imports dlog's modules from where this process has them, never from the working directory (`python -P`),
  even if there are directories named `actors`, `proxies` or `dlog` in it.
- A child is killed when its parent ends for any reason (Linux). It does not inherit that SIGTERM is ignored; any other
  signal that was ignored when this process started stays ignored in both.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """Command line to run a module with this interpreter; start it with `module_environment`."""
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment(**more: str) -> dict[str, str]:
    """This process's environment, with dlog on PYTHONPATH for checkouts that are not installed."""
    home = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home, **more}


def die_with_parent() -> Callable[[], None]:
    """Make the `preexec_fn` of a child process."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None
    parent = os.getpid()

    def before_exec() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # the parent ended before the call
                os._exit(1)

    return before_exec


def unignored_signals(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """The signals not ignored since the start, as by `nohup` or by a shell for a background job."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def on_signals(numbers: Iterable[signal.Signals], handler: Callable[[signal.Signals], None]) -> None:
    """Call handler(number) on the running loop for each of these signals that is not ignored."""
    loop = asyncio.get_running_loop()
    for number in unignored_signals(numbers):
        loop.add_signal_handler(number, handler, number)
