"""`python -m loadtest growth`: measure curves on clusters of their own, one after the other, and print one table."""

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
    """Exit 0: every bound that was judged is met and the checker found nothing; 1: not so; 2: misused."""
    given = parser().parse_args(arguments)
    try:
        curves = chosen(given)
        if given.out is not None and not given.out.absolute().parent.is_dir():
            raise ValueError(f"no such directory: {given.out.parent}")
    except ValueError as error:
        print(f"loadtest: growth: {error}", file=sys.stderr)
        return 2
    tell = (lambda _: None) if given.quiet else _told
    try:
        judged = asyncio.run(_run(curves, tell, is_quick=given.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("loadtest: growth: ended", file=sys.stderr)
        return 1
    result = as_json(judged, arguments)
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if given.json else table.as_text(judged))
    return 0 if result["green"] and result["met"] else 1


async def _run(curves: Sequence[Curve], tell: Callable[[str], None], *, is_quick: bool) -> list[Judged]:
    """As `measure_all`; SIGTERM ends it and its clusters in order."""
    task = asyncio.current_task()
    assert task is not None, "inside a coroutine"
    with contextlib.suppress(NotImplementedError):  # Windows: its loops have no signal handlers
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measure_all(curves, tell, is_quick=is_quick)


async def measure_all(
    curves: Sequence[Curve], tell: Callable[[str], None] = lambda _: None, *, is_quick: bool = False
) -> list[Judged]:
    """Each curve at each of its sizes, the least first. What fails ends its curve and no other."""
    return [await _measure(curve, tell, is_quick) for curve in curves]


async def _measure(curve: Curve, tell: Callable[[str], None], is_quick: bool) -> Judged:
    points: list[Point] = []
    error = ""
    for size in sorted(curve.sizes):
        about = f"{curve.name} {size:,} {curve.grows}"
        tell(f"{about}: {curve.says}")
        try:
            with tempfile.TemporaryDirectory(prefix="dlog-growth-", ignore_cleanup_errors=True) as room:
                request = Request(size=size, room=Path(room), minutes=curve.minutes, is_quick=is_quick, tell=tell)
                point = await curve.measure(request)
        except (*_FAILURES, ExceptionGroup) as failure:
            cause = first_of(failure) if isinstance(failure, ExceptionGroup) else failure
            if not isinstance(cause, _FAILURES):
                raise
            error = f"{about}: {type(cause).__name__}: {cause}"[:1000]
            tell(error)
            break
        point.size = size
        points.append(point)
        figures = " ".join(f"{name}={table.number(value)}" for name, value in point.figures.items())
        tell(f"{about}: {curve.cost}={table.number(point.cost)} {figures}{'' if point.is_green else ' NOT GREEN'}")
    return judge(curve, points, error)


def as_json(judged: Sequence[Judged], arguments: Sequence[str]) -> dict[str, Any]:
    """The run as `--out` keeps it."""
    return {
        "command": shlex.join(["python", "-m", "loadtest", "growth", *arguments]),
        "commit": commit(),
        "machine": machine(),
        "green": all(one.is_green for one in judged),
        "met": all(one.is_met for one in judged),
        "curves": [one.as_json() for one in judged],
    }


def parser() -> argparse.ArgumentParser:
    told = "\n".join(f"  {name:10} {_about(curve)}" for name, curve in CURVES.items())
    made = argparse.ArgumentParser(
        prog="python -m loadtest growth",
        description="Measure what operations cost at several sizes, on clusters of their own, and print the exponent "
        "of cost over size. Every record is read back and judged; what is not green has no figure.",
        epilog=f"curves (default: all but the soaks):\n{told}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("curves", nargs="*", metavar="CURVE", help="by name; default: all but the soaks")
    made.add_argument("--sizes", metavar="N,N,N", help="in the place of those of the curves")
    made.add_argument("--minutes", type=float, metavar="M", help="of the soaks, in the place of their own")
    made.add_argument("--quick", action="store_true", help="few repetitions: to see that it works, not for figures")
    made.add_argument("--out", type=Path, metavar="FILE", help="keep the run as JSON")
    made.add_argument("--json", action="store_true", help="one JSON object on standard output, no table")
    made.add_argument("--quiet", action="store_true", help="say nothing while it runs")
    return made


def _about(curve: Curve) -> str:
    if curve.is_soak:
        return f"{curve.says}: a soak of {curve.minutes:g} minutes"
    return f"{curve.says}: {', '.join(f'{size:,}' for size in curve.sizes)} {curve.grows}"


def chosen(given: argparse.Namespace) -> list[Curve]:
    """The curves that were asked for, with their sizes and minutes. Raises ValueError."""
    unknown = [name for name in given.curves if name not in CURVES]
    if unknown:
        raise ValueError(f"no such curve, there are {', '.join(CURVES)}: {unknown[0][:40]}")
    named = dict.fromkeys(given.curves or [name for name, curve in CURVES.items() if not curve.is_soak])
    curves = [CURVES[name] for name in named]
    if given.sizes is not None:
        sizes = _sizes(given.sizes)
        if any(curve.is_soak for curve in curves):
            raise ValueError("a soak has no sizes: leave out --sizes, or name other curves")
        curves = [replace(curve, sizes=sizes) for curve in curves]
    if given.minutes is not None:
        if not given.minutes > 0 or not any(curve.is_soak for curve in curves):
            raise ValueError("--minutes is above 0, and of a soak, which has to be named")
        curves = [replace(curve, minutes=given.minutes) if curve.is_soak else curve for curve in curves]
    return curves


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(word.replace("_", "")) for word in text.split(",")}))
    except ValueError:
        raise ValueError(f"sizes are whole numbers with commas between them: --sizes {text[:60]}") from None
    if sizes[0] < 1:
        raise ValueError(f"a size is at least 1: --sizes {text[:60]}")
    return sizes


def _told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
