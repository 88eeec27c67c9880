"""`python -m loadtest growth`: measures curves, one after the other, on a new cluster per size; prints a table."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlog.errors import DLogError
from loadtest.attached import first_of
from loadtest.growth import drop, names, outage, roll, soaks, streams, table, takeover, truncate
from loadtest.growth.curve import Curve, Judged, Point, Request, judge
from loadtest.processes import machine
from loadtest.runner import commit
from loadtest.systems.base import CannotRunError

CURVES = {
    curve.name: curve
    for curve in (
        truncate.CURVE,
        roll.CURVE,
        drop.CURVE,
        takeover.CURVE,
        outage.CURVE,
        streams.CURVE,
        names.CURVE,
        soaks.DISK,
        soaks.MEMORY,
    )
}
_FAILURES = (CannotRunError, DLogError, TimeoutError, OSError)


def main(arguments: Sequence[str]) -> int:
    """Exit 0: all judged bounds are met and the checker found no error; 1: otherwise; 2: wrong usage."""
    given = parser().parse_args(arguments)
    try:
        curves = chosen(given)
        if given.out is not None and not given.out.absolute().parent.is_dir():
            raise ValueError(f"no such directory: {given.out.parent}")
    except ValueError as error:
        print(f"loadtest: growth: {error}", file=sys.stderr)
        return 2
    on_progress = (lambda _: None) if given.quiet else _print_progress
    try:
        judged = asyncio.run(_run(curves, on_progress, is_quick=given.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("loadtest: growth: interrupted; nothing was saved", file=sys.stderr)
        return 1
    result = as_json(judged, arguments)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if given.json else table.as_text(judged))
    return 0 if result["green"] and result["met"] else 1


async def _run(curves: Sequence[Curve], on_progress: Callable[[str], None], *, is_quick: bool) -> list[Judged]:
    """As `measure_all`; SIGTERM stops it and its cluster in order."""
    task = asyncio.current_task()
    assert task is not None, "inside a coroutine"
    with contextlib.suppress(NotImplementedError):  # Windows: its loops have no signal handlers
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measure_all(curves, on_progress, is_quick=is_quick)


async def measure_all(
    curves: Sequence[Curve], on_progress: Callable[[str], None] = lambda _: None, *, is_quick: bool = False
) -> list[Judged]:
    """Measure each curve at each of its sizes, the least first. A failure ends only its curve."""
    return [await _measure(curve, on_progress, is_quick) for curve in curves]


async def _measure(curve: Curve, on_progress: Callable[[str], None], is_quick: bool) -> Judged:
    points: list[Point] = []
    error = ""
    for size in sorted(curve.sizes):
        about = f"{curve.name} {size:,} {curve.grows}"
        on_progress(f"{about}: {curve.says}")
        try:
            with tempfile.TemporaryDirectory(prefix="dlog-growth-", ignore_cleanup_errors=True) as room:
                request = Request(
                    size=size, room=Path(room), minutes=curve.minutes, is_quick=is_quick, on_progress=on_progress
                )
                point = await curve.measure(request)
        except (*_FAILURES, ExceptionGroup) as failure:
            cause = first_of(failure) if isinstance(failure, ExceptionGroup) else failure
            if not isinstance(cause, _FAILURES):
                raise
            error = f"{about}: {type(cause).__name__}: {cause}"[:1000]
            on_progress(error)
            break
        point.size = size
        points.append(point)
        figures = " ".join(f"{name}={table.number(value)}" for name, value in point.figures.items())
        on_progress(
            f"{about}: {curve.cost}={table.number(point.cost)} {figures}{'' if point.is_green else ' NOT GREEN'}"
        )
    return judge(curve, points, error)


def as_json(judged: Sequence[Judged], arguments: Sequence[str]) -> dict[str, Any]:
    """The run as saved by --out."""
    return {
        "command": shlex.join(["python", "-m", "loadtest", "growth", *arguments]),
        "commit": commit(),
        "machine": machine(),
        "green": all(one.is_green for one in judged),
        "met": all(one.is_met for one in judged),
        "curves": [one.as_json() for one in judged],
    }


def parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:10} {_about(curve)}" for name, curve in CURVES.items())
    made = argparse.ArgumentParser(
        prog="python -m loadtest growth",
        description="Measure the cost of operations at several sizes, each on a new cluster; print the exponent\n"
        "of cost over size. Every record is read back and checked; a curve with an error prints no figures.",
        epilog=f"curves (default: all but the soaks):\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("curves", nargs="*", metavar="CURVE", help="names of curves; default: all but the soaks")
    made.add_argument("--sizes", metavar="N,N,N", help="measure at these sizes instead of the curves' own")
    made.add_argument("--minutes", type=float, metavar="M", help="duration of the soaks (disk, memory)")
    made.add_argument("--quick", action="store_true", help="few repetitions: checks that curves work, not for figures")
    made.add_argument("--out", type=Path, metavar="FILE", help="save the run as JSON")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    made.add_argument("--quiet", action="store_true", help="print no progress")
    return made


def _about(curve: Curve) -> str:
    if curve.is_soak:
        return f"{curve.says}: soak, {curve.minutes:g} minutes"
    return f"{curve.says}: {', '.join(f'{size:,}' for size in curve.sizes)} {curve.grows}"


def chosen(given: argparse.Namespace) -> list[Curve]:
    """The chosen curves, with sizes and minutes from the options. Raises ValueError."""
    unknown = [name for name in given.curves if name not in CURVES]
    if unknown:
        raise ValueError(f"no such curve; choose from {', '.join(CURVES)}: {unknown[0][:40]}")
    named = dict.fromkeys(given.curves or [name for name, curve in CURVES.items() if not curve.is_soak])
    curves = [CURVES[name] for name in named]
    if given.sizes is not None:
        sizes = _sizes(given.sizes)
        if any(curve.is_soak for curve in curves):
            raise ValueError("a soak has no sizes: omit --sizes, or name other curves")
        curves = [replace(curve, sizes=sizes) for curve in curves]
    if given.minutes is not None:
        if not given.minutes > 0 or not any(curve.is_soak for curve in curves):
            raise ValueError("--minutes must be above 0 and needs a soak: name disk or memory")
        curves = [replace(curve, minutes=given.minutes) if curve.is_soak else curve for curve in curves]
    return curves


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(word.replace("_", "")) for word in text.split(",")}))
    except ValueError:
        raise ValueError(f"sizes must be whole numbers separated by commas: --sizes {text[:60]}") from None
    if sizes[0] < 1:
        raise ValueError(f"a size must be at least 1: --sizes {text[:60]}")
    return sizes


def _print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
