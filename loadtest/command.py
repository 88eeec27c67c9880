"""`python -m loadtest WORKLOAD...`: turns arguments into a plan, runs and saves it, prints tables."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlog.errors import ConfigError, InvalidRequestError
from loadtest import host_conditions, plans, runfile, spec, systems
from loadtest.plans import Piece
from loadtest.runfile import Run, RunFileError
from loadtest.runner import Plan, PlanError, Runner, workload_as_json
from loadtest.systems.base import CannotRunError, Variant

OUT = "loadtest.run.json"


def main(arguments: Sequence[str]) -> int:
    """Exit 0: every verdict is green; 1: one is not, or something failed; 2: wrong usage."""
    if any(word.partition("=")[0] == "--plan" for word in arguments):
        return plan_main(arguments)
    given = _parser().parse_args(arguments)
    try:
        plan = plan_of(given, arguments)
        earlier = runfile.read(given.append) if given.append else None
        _check_writable(given.append or given.out)
        _check_fits(plan, earlier)
    except (ValueError, ConfigError, InvalidRequestError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    if given.estimate:
        print(estimate(plan))
        return 0
    out = given.append or given.out
    try:
        return _carried_out(plan, out, earlier, given.quiet)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _ended(out)


def plan_main(arguments: Sequence[str]) -> int:
    """Run the pieces that the run file lacks. Exit as `main`, of the whole file."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Run every piece of a plan that RUN.json does not hold yet. Any other option (such as --rounds 1 "
        "--seconds 2) is passed on to each piece.",
        allow_abbrev=False,
    )
    parser.add_argument("--plan", type=Path, required=True, metavar="PLAN.toml")
    parser.add_argument("--out", type=Path, default=Path(OUT), metavar="RUN.json", help="created, or continued")
    parser.add_argument("--estimate", action="store_true", help="print how long the rest will take; run nothing")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    given, more = parser.parse_known_args(arguments)
    try:
        _check_writable(given.out)
        run = _there(given.out) or Run()
        todo = [
            replace(_planned(piece, run), plan=plan_command(given.plan, more)) for piece in plans.read(given.plan, more)
        ]
        _check_together(todo)
    except (ValueError, ConfigError, InvalidRequestError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    if given.estimate:
        print(estimate_all(todo))
        return 0
    worst = 0
    try:
        for plan in todo:
            if plan.is_done:
                print(f"{plan.piece}: already done", file=sys.stderr)
                continue
            print(f"{plan.piece}: {plan.asked}", file=sys.stderr, flush=True)
            code = _carried_out(plan, given.out, _there(given.out), given.quiet)
            if code == 2:
                return code
            worst = max(worst, code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        return _ended(given.out)
    return max(worst, 0 if runfile.read(given.out).is_green else 1)


def plan_command(path: Path, more: Sequence[str]) -> str:
    """The command that runs this plan again, on any machine."""
    root = Path(__file__).resolve().parents[1]
    whole = path.resolve()
    plan_path = whole.relative_to(root) if whole.is_relative_to(root) else Path(path.name)
    return shlex.join(["python", "-m", "loadtest", "--plan", plan_path.as_posix(), *more, "--out", "RUN.json"])


def _planned(piece: Piece, run: Run) -> Plan:
    """The rest of a piece. Raises ValueError, ConfigError, InvalidRequestError."""
    given = _parser().parse_args(piece.arguments)
    command = f"python -m loadtest {piece.asked}"
    plan = replace(plan_of(given, piece.arguments), piece=piece.name, asked=piece.asked, command=command)
    return replace(plan, done=plans.rounds_done(run, piece))


def _check_together(pieces: Sequence[Plan]) -> None:
    """Check that all pieces fit into one run file. Raises RunFileError."""
    whole = Run()
    for plan in pieces:
        _check_fits(plan, whole)
        described = {name: {"options": plan.options_of(name)} for name in plan.systems}
        whole.append(Run(systems=described, workloads={w.id: workload_as_json(w) for w in plan.workloads}))


def _check_fits(plan: Plan, earlier: Run | None) -> None:
    """Check that results fit into `earlier`. Raises RunFileError."""
    if earlier is not None:
        earlier.check_cells({workload.id: workload_as_json(workload) for workload in plan.workloads})
        earlier.check_systems({name: plan.options_of(name) for name in plan.systems})


def _there(path: Path) -> Run | None:
    """None if there is no such file. Raises RunFileError."""
    return runfile.read(path) if path.exists() else None


def _ended(out: Path) -> int:
    print(f"loadtest: interrupted; completed rounds are saved in {out}", file=sys.stderr)
    return 1


def _carried_out(plan: Plan, out: Path, earlier: Run | None, quiet: bool) -> int:
    """Run, print tables; the exit code."""
    try:
        run = asyncio.run(_run(plan, out, earlier, quiet))
    except (PlanError, RunFileError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    except (CannotRunError, OSError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 1
    from loadtest.report import figures, tables

    print(tables.console(figures.collect(run)))
    return 0 if run.is_green else 1


def _parser() -> argparse.ArgumentParser:
    workloads = "\n".join(f"  {w.id:4} {w.name:14} {w.asks}" for w in map(spec.load, spec.ids()))
    named = "\n".join(f"  {name:20} {variant.says}" for name, variant in systems.everything().items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Run workloads on systems, in rounds. Every record is checked.\n"
        "A result with a lost, repeated or otherwise wrong record is not green and has no figures.",
        epilog=f"workloads:\n{workloads}\n\nsystems:\n{named}\n\nAlso: --plan FILE, report FILE, peers install NAME.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("workloads", metavar="WORKLOAD[,WORKLOAD...]|all", help="ids, names or TOML files")
    parser.add_argument("--system", default="dlog", metavar="NAME[,NAME...]", help="default: dlog")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_const", const="quick", dest="scale", help="5 s per load (default)")
    scale.add_argument("--full", action="store_const", const="full", dest="scale", help="up to 60 s per load")
    parser.add_argument("--rounds", type=_at_least(1), default=5, metavar="N", help="default: 5")
    parser.add_argument("--seconds", metavar="S", help="measured seconds of each load, instead of the scale's")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change an option of every workload; VALUE,VALUE where the workload has several values",
    )
    parser.add_argument("--option", action="append", default=[], metavar="NAME.KEY=VALUE", help="configure a system")
    parser.add_argument(
        "--threshold", action="append", default=[], metavar="KEY=VALUE", help="change a threshold for host conditions"
    )
    parser.add_argument(
        "--voids",
        type=_at_least(0),
        default=3,
        metavar="N",
        help="repeat at most N rounds per workload that bad host conditions made void; default: 3",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=30.0,
        metavar="S",
        help="wait at most S seconds before each turn for good host conditions; default: 30",
    )
    parser.add_argument("--seed", type=int, default=1)
    out = parser.add_mutually_exclusive_group()
    out.add_argument("--out", type=Path, default=Path(OUT), metavar="RUN.json", help=f"default: {OUT}")
    out.add_argument("--append", type=Path, metavar="RUN.json", help="add to an existing run")
    parser.add_argument("--estimate", action="store_true", help="print how long it will take; run nothing")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.set_defaults(scale="quick")
    return parser


def plan_of(given: argparse.Namespace, arguments: Sequence[str]) -> Plan:
    """The plan of these arguments. Raises ValueError, ConfigError, InvalidRequestError."""
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
            raise InvalidRequestError(
                f"--option takes NAME.KEY=VALUE, NAME being a system of this run: --option {change[:60]}"
            )
        for system in mine:
            options.setdefault(system, {})[key] = value
    bounds = {key: _number(value) for key, value in (pair(change, "--threshold") for change in given.threshold)}
    return Plan(
        workloads=spec.chosen(given.workloads, given.scale, changes),
        systems=found,
        options=options,
        rounds=given.rounds,
        voids=given.voids,
        wait_s=given.wait,
        thresholds=host_conditions.thresholds(bounds),
        seed=given.seed,
        scale=given.scale,
        command=" ".join(["python", "-m", "loadtest", *arguments]),
    )


def estimate(plan: Plan) -> str:
    """One line per workload, and the sum."""
    lines = [f"{w.id:4} {w.name:14} {len(w.cells):2} cells  {_minutes(plan.workload_s(w)):>8}" for w in plan.workloads]
    about = f"{plan.rounds} rounds of {', '.join(plan.systems)}, in good host conditions"
    return "\n".join([*lines, f"about {_minutes(plan.estimate_s())}: {about}"])


def estimate_all(pieces: Sequence[Plan]) -> str:
    """One line per remaining piece, and the sum."""
    lines = [
        f"{plan.piece:16} {_minutes(plan.estimate_s()):>8}  {', '.join(w.id for w in plan.workloads)}: "
        f"{plan.rounds} rounds of {', '.join(plan.systems)}"
        for plan in pieces
    ]
    return "\n".join([*lines, f"about {_minutes(sum(plan.estimate_s() for plan in pieces))} in good host conditions"])


async def _run(plan: Plan, out: Path, earlier: Run | None, quiet: bool) -> Run:
    task = asyncio.current_task()
    assert task is not None, "inside a coroutine"
    with contextlib.suppress(NotImplementedError):  # Windows: its loops have no signal handlers
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    before = earlier.as_json() if earlier is not None else None

    def saved(run: Run) -> None:
        whole = runfile.from_json(before) if before is not None else Run()
        _joined(whole, run).save(out)

    def on_progress(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    on_progress(estimate(plan).splitlines()[-1])
    run = await Runner(plan, on_progress, saved).run()
    saved(run)
    return run


def _joined(whole: Run, run: Run) -> Run:
    """A copy of `whole` with `run` appended."""
    joined = Run(list(whole.parts), dict(whole.systems), dict(whole.workloads), list(whole.turns), list(whole.results))
    joined.append(run)
    return joined


def pair(change: str, flag: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises InvalidRequestError."""
    key, equals, value = change.partition("=")
    if not (equals and key.strip()):
        raise InvalidRequestError(f"expected KEY=VALUE: {flag} {change[:60]}")
    return key.strip(), value


def _check_writable(path: Path) -> None:
    """Raises ValueError before the run starts."""
    if not path.absolute().parent.is_dir():
        raise ValueError(f"no such directory: {path.parent}; create it or choose another --out")


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
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
