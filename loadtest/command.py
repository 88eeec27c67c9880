"""`python -m loadtest WORKLOAD...`: what a person asks for becomes a plan; it is run; the run is kept and told."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dlog.errors import ConfigError, InvalidRequestError
from loadtest import runfile, spec, systems, weather
from loadtest.runfile import Run, RunFileError
from loadtest.runner import Plan, PlanError, Runner
from loadtest.systems.base import CannotRunError, Variant

OUT = "loadtest.run.json"


def main(arguments: Sequence[str]) -> int:
    """Exit 0: every verdict is green; 1: one is not, or something failed; 2: misused."""
    given = _parser().parse_args(arguments)
    try:
        plan = plan_of(given, arguments)
        earlier = runfile.read(given.append) if given.append else None
        _check_writable(given.append or given.out)
    except (ValueError, ConfigError, InvalidRequestError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    if given.estimate:
        print(estimate(plan))
        return 0
    try:
        run = asyncio.run(_run(plan, given.append or given.out, earlier, given.quiet))
    except (PlanError, RunFileError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except (CannotRunError, OSError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"loadtest: ended; the rounds that were done are in {given.append or given.out}", file=sys.stderr)
        return 1
    from loadtest.report import figures, tables

    print(tables.console(figures.collect(run)))
    return 0 if run.is_green else 1


def _parser() -> argparse.ArgumentParser:
    workloads = "\n".join(f"  {w.id:4} {w.name:14} {w.asks}" for w in map(spec.load, spec.ids()))
    named = "\n".join(f"  {name:20} {variant.says}" for name, variant in systems.everything().items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Run workloads on systems, in rounds. Every record is checked; what is not green has no figure.",
        epilog=f"workloads:\n{workloads}\n\nsystems:\n{named}\n\nAlso: report RUN.json, peers install|start NAME.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("workloads", metavar="WORKLOAD[,WORKLOAD...]|all", help="by id, by name, or a TOML file")
    parser.add_argument("--system", default="dlog", metavar="NAME[,NAME...]", help="default: dlog")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_const", const="quick", dest="scale", help="5 s a load (default)")
    scale.add_argument("--full", action="store_const", const="full", dest="scale", help="up to 60 s a load")
    parser.add_argument("--rounds", type=_at_least(1), default=5, metavar="N", help="default: 5")
    parser.add_argument("--seconds", metavar="S", help="of each load, in the place of what the scale says")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change every workload's shape")
    parser.add_argument("--option", action="append", default=[], metavar="NAME.KEY=VALUE", help="change a system")
    parser.add_argument("--weather", action="append", default=[], metavar="KEY=VALUE", help="change a threshold")
    parser.add_argument("--voids", type=_at_least(0), default=3, metavar="N", help="rounds done again, a workload")
    parser.add_argument("--wait", type=float, default=30.0, metavar="S", help="for good weather, a turn; default: 30")
    parser.add_argument("--seed", type=int, default=1)
    out = parser.add_mutually_exclusive_group()
    out.add_argument("--out", type=Path, default=Path(OUT), metavar="RUN.json", help=f"default: {OUT}")
    out.add_argument("--append", type=Path, metavar="RUN.json", help="add to a run that there is")
    parser.add_argument("--estimate", action="store_true", help="say how long it will take, and do nothing")
    parser.add_argument("--quiet", action="store_true", help="say nothing while it runs")
    parser.set_defaults(scale="quick")
    return parser


def plan_of(given: argparse.Namespace, arguments: Sequence[str]) -> Plan:
    """What was asked for. Raises ValueError, ConfigError, InvalidRequestError."""
    changes = dict(pair(change, "--set") for change in given.set)
    if given.seconds is not None:
        changes["seconds"] = given.seconds
    found: dict[str, Variant] = {}
    for name in given.system.split(","):
        found[name.strip()] = systems.find(name.strip())
    options: dict[str, dict[str, str]] = {}
    for change in given.option:
        key, value = pair(change, "--option")
        name, dot, key = key.partition(".")
        mine = [system for system in found if name in (system, system.partition("-")[0])]
        if not (dot and key and mine):
            raise InvalidRequestError(f"an option is NAME.KEY=VALUE, NAME a system of this run: --option {change[:60]}")
        for system in mine:
            options.setdefault(system, {})[key] = value
    bounds = {key: _number(value) for key, value in (pair(change, "--weather") for change in given.weather)}
    return Plan(
        workloads=spec.chosen(given.workloads, given.scale, changes),
        systems=found,
        options=options,
        rounds=given.rounds,
        voids=given.voids,
        wait_s=given.wait,
        thresholds=weather.thresholds(bounds),
        seed=given.seed,
        scale=given.scale,
        command=" ".join(["python", "-m", "loadtest", *arguments]),
    )


def estimate(plan: Plan) -> str:
    """A line a workload, and the sum."""
    times = len(plan.systems) * plan.rounds
    lines = [
        f"{w.id:4} {w.name:14} {len(w.cells):2} cells  {_minutes(w.duration_s() * times):>8}" for w in plan.workloads
    ]
    about = f"{plan.rounds} rounds of {', '.join(plan.systems)}, in good weather"
    return "\n".join([*lines, f"about {_minutes(plan.estimate_s())}: {about}"])


async def _run(plan: Plan, out: Path, earlier: Run | None, quiet: bool) -> Run:
    task = asyncio.current_task()
    assert task is not None, "inside a coroutine"
    with contextlib.suppress(NotImplementedError):  # a loop that knows no signals
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    before = earlier.as_json() if earlier is not None else None

    def saved(run: Run) -> None:
        whole = runfile.from_json(before) if before is not None else Run()
        _joined(whole, run).save(out)

    def tell(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    tell(estimate(plan).splitlines()[-1])
    run = await Runner(plan, tell, saved).run()
    saved(run)
    return run


def _joined(whole: Run, run: Run) -> Run:
    """A copy of `whole` with `run` behind it."""
    joined = Run(list(whole.parts), dict(whole.systems), dict(whole.workloads), list(whole.turns), list(whole.results))
    joined.append(run)
    return joined


def pair(change: str, flag: str) -> tuple[str, str]:
    """KEY=VALUE. Raises InvalidRequestError."""
    key, equals, value = change.partition("=")
    if not (equals and key.strip()):
        raise InvalidRequestError(f"a change is written KEY=VALUE: {flag} {change[:60]}")
    return key.strip(), value


def _check_writable(path: Path) -> None:
    """Raises ValueError before hours are spent."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"no such directory: {path.parent}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRequestError(f"not a number: {text[:60]}") from None


def _at_least(least: int) -> type[int]:
    class AtLeast(int):
        def __new__(cls, text: str) -> AtLeast:
            value = super().__new__(cls, text)
            if value < least:
                raise ValueError
            return value

    AtLeast.__name__ = f"number of at least {least}"
    return AtLeast


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
