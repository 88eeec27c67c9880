"""Child processes: how one of ours is called, and what it inherits.

Invariants:
- A module of ours is imported from where this process has it, never from the working directory (`python -P`): a
  directory that is called `actors`, `proxies` or `dlog` there changes nothing.
- A child is killed when its parent ends, however it ends (Linux), and hears SIGTERM, with which its parent ends it,
  even if the parent ignores it. Any other signal that was ignored when this process started stays ignored in both.
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
    """The command that runs a module in this interpreter; start it with `module_environment`."""
    return (sys.executable, "-P", "-m", module, *arguments)


def module_environment(**more: str) -> dict[str, str]:
    """Our environment, with our packages findable from a checkout that is not installed."""
    home = str(Path(__file__).parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home, **more}


def die_with_parent() -> Callable[[], None]:
    """What a child runs between fork and exec."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform.startswith("linux") else None
    parent = os.getpid()

    def before_exec() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it ended before we asked
                os._exit(1)

    return before_exec


def heard_signals(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those that this process was not started to ignore, as by `nohup`, or by a shell that starts a background job."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def on_signals(numbers: Iterable[signal.Signals], handler: Callable[[signal.Signals], None]) -> None:
    """Have the running loop call handler(number) for each of these signals that is not ignored."""
    loop = asyncio.get_running_loop()
    for number in heard_signals(numbers):
        loop.add_signal_handler(number, handler, number)
