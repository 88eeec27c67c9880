"""Runs a plan in rounds: in each round the systems take turns, so that changes on the host affect all of them.

Invariants:
- only one system runs at a time;
- host conditions are measured before and during each turn; a turn in bad conditions voids its round, which is
  repeated, at most `voids` times per workload; later rounds in bad conditions count, and are marked.
"""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlog.errors import DLogError
from loadtest import bookie_restart, fault_scenarios, host_conditions, lost_storage, scripts
from loadtest.bench import Bench, Outcome, lacking
from loadtest.processes import machine
from loadtest.runfile import Run
from loadtest.spec import Cell, Workload
from loadtest.systems.base import CannotRunError, NotApplicable, System, Variant

SCRIPTS = {
    "load": scripts.load,
    "catch-up": scripts.catch_up,
    "idle": scripts.idle,
    "fault": fault_scenarios.fault,
    "hand-over": fault_scenarios.hand_over,
    "roll": fault_scenarios.roll,
    "kill-all": fault_scenarios.kill_all,
    "soak": scripts.soak,
    "scan": scripts.scan,
    "reopen": scripts.reopen,
    "uploads": scripts.uploads,
    "examine": scripts.examine,
    "lost-bookie": lost_storage.lost_bookie,
    "restart-bookie": bookie_restart.restart_bookie,
}
LOOK_S = 1.5  # measuring host conditions before a turn
_FAILURES = (CannotRunError, DLogError, OSError, TimeoutError, ValueError, AssertionError, LookupError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Workloads, systems and rounds to run."""

    workloads: Sequence[Workload]
    systems: Mapping[str, Variant]
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of --option, by system
    rounds: int = 5
    voids: int = 3  # void rounds that are repeated, per workload
    wait_s: float = 30.0  # longest wait for good host conditions, per turn
    thresholds: host_conditions.Thresholds = field(default_factory=host_conditions.Thresholds)
    seed: int = 1
    scale: str = "quick"
    command: str = ""
    plan: str = ""  # command of the --plan run, if this is a piece of one
    piece: str = ""  # name of the piece
    asked: str = ""  # arguments of the piece
    done: Mapping[str, int] = field(default_factory=dict)  # rounds already in the run file, by workload

    def options_of(self, system: str) -> dict[str, str]:
        """The variant's preset, changed by --option."""
        return {**self.systems[system].preset, **self.options.get(system, {})}

    def estimate_s(self) -> float:
        """Estimated duration in good conditions."""
        return sum(self.workload_s(workload) for workload in self.workloads)

    def workload_s(self, workload: Workload) -> float:
        """Estimated duration of the remaining rounds."""
        left = max(0, self.rounds - self.done.get(workload.id, 0))
        return left * sum(turn_s(variant.make(name), workload) for name, variant in self.systems.items())

    @property
    def is_done(self) -> bool:
        """Whether no round is left."""
        return all(self.done.get(workload.id, 0) >= self.rounds for workload in self.workloads)


def turn_s(system: System, workload: Workload) -> float:
    """Estimated duration of a turn; cells that the system cannot run count 0."""
    cells = [cell.shape for cell in workload.cells if lacking(system, cell.shape) is None]
    return LOOK_S + system.start_s + sum(shape.duration_s() for shape in cells) if cells else 0.0


def workload_as_json(workload: Workload) -> dict[str, Any]:
    """A workload as in the run's JSON."""
    cells = [{"label": cell.label, "key": dict(cell.key), "shape": asdict(cell.shape)} for cell in workload.cells]
    return {"name": workload.name, "asks": workload.asks, "note": workload.note, "cells": cells}


class PlanError(Exception):
    """The plan gives a system an invalid option."""


class Runner:
    """Runs a plan. on_progress: called with progress messages. saved: called with the run so far after each round."""

    def __init__(
        self,
        plan: Plan,
        on_progress: Callable[[str], None] = lambda _: None,
        saved: Callable[[Run], None] = lambda _: None,
        look: Callable[[Path], Any] = host_conditions.look,
    ) -> None:
        self._plan = plan
        self._on_progress = on_progress
        self._saved = saved
        self._look = look
        self._run = Run(parts=[self._part()])
        self._steal = self._foreign = 0.0  # maxima over this turn's cells

    async def run(self) -> Run:
        """Run everything. Failures are recorded in the run. Raises PlanError for an invalid option of a system."""
        plan = self._plan
        try:
            for workload in plan.workloads:
                self._run.workloads[workload.id] = workload_as_json(workload)
                await self._workload(workload)
        finally:
            for name, variant in plan.systems.items():
                await variant.make(name).end_run()
        return self._run

    async def _workload(self, workload: Workload) -> None:
        good, voids = self._plan.done.get(workload.id, 0), 0
        while good < self._plan.rounds:
            turns, results = await self._round(workload, good + voids)
            is_void = any(turn["faults"] for turn in turns)
            if is_void and voids < self._plan.voids:
                voids += 1
                for one in (*turns, *results):
                    one["void"] = True
                why = "; ".join(sorted({fault for turn in turns for fault in turn["faults"]}))
                self._on_progress(f"{workload.id}: round void, repeated; host conditions: {why}")
            else:
                good += 1
            self._run.turns += turns
            self._run.results += results
            self._saved(self._run)

    async def _round(self, workload: Workload, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        names = list(self._plan.systems)
        shift = number % len(names)
        turns: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for name in names[shift:] + names[:shift]:  # no system is always the first
            about = {"part": 0, "round": number, "workload": workload.id, "system": name, "void": False}
            turn, found = await self._turn(workload, name, about)
            turns.append(turn)
            results += found
        return turns, results

    async def _turn(
        self, workload: Workload, name: str, about: dict[str, Any]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """One system, all cells of one workload."""
        variant = self._plan.systems[name]
        system = variant.make(name)
        options = self._plan.options_of(name)
        self._describe(name, variant, system, options)
        results = []
        cells = []
        for cell in workload.cells:
            reason = lacking(system, cell.shape)
            if reason is None:
                cells.append(cell)
            else:
                results.append({**self._about(about, cell), "not_applicable": reason})
        if not cells:
            return {**about, "faults": [], "cells": 0}, results
        with tempfile.TemporaryDirectory(prefix="loadtest-", ignore_cleanup_errors=True) as directory:
            room = Path(directory)
            turn = host_conditions.Turn(await self._wait_for_conditions(room))
            began_s = time.monotonic()
            self._steal = self._foreign = 0.0
            found, start_s = await self._cells(system, cells, room, options, about)
            results += found
            turn.steal, turn.foreign = self._steal, self._foreign
            turn.judge(self._plan.thresholds)
            shutil.rmtree(room, ignore_errors=True)
        fields = {"start_s": start_s, "seconds": round(time.monotonic() - began_s, 1), "cells": len(cells)}
        return {**about, **turn.as_json(), **fields}, results

    async def _wait_for_conditions(self, room: Path) -> host_conditions.HostConditions:
        """Measure until conditions are good, at most `wait_s`."""
        end_s = time.monotonic() + self._plan.wait_s
        while True:
            seen: host_conditions.HostConditions = await self._look(room)
            if not seen.faults(self._plan.thresholds) or time.monotonic() >= end_s:
                return seen

    async def _cells(
        self, system: System, cells: Sequence[Cell], room: Path, options: Mapping[str, str], about: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], float | None]:
        """Start the system, run its cells, stop it; results, and duration of the start."""
        results: list[dict[str, Any]] = []
        start_s: float | None = None
        try:
            began_s = time.monotonic()
            try:
                await system.start(room, options)
            except ValueError as error:
                raise PlanError(str(error)) from error
            start_s = round(time.monotonic() - began_s, 3)
            described = self._run.systems[about["system"]]
            described |= {"versions": dict(system.versions()), "configuration": dict(system.configuration())}
            for cell in cells:
                results.append(await self._cell(system, cell, room, options, {**about, "start_s": start_s}))
        except NotApplicable as reason:
            results += [{**self._about(about, cell), "not_applicable": str(reason)} for cell in cells[len(results) :]]
        except _FAILURES as error:
            text = _error_text(error)
            self._on_progress(f"{about['workload']} {about['system']}: {text}")
            results += [{**self._about(about, cell), "error": text} for cell in cells[len(results) :]]
        finally:
            await system.stop()
        return results, start_s

    async def _cell(
        self, system: System, cell: Cell, room: Path, options: Mapping[str, str], about: dict[str, Any]
    ) -> dict[str, Any]:
        bench = Bench(system, cell.shape, room, options, self._plan.seed)
        result = self._about(about, cell)
        text = ""
        try:
            outcome: Outcome = await SCRIPTS[cell.shape.script](bench)
            result |= outcome.as_json()
            if outcome.verdict.is_green:
                result["figures"]["start_s"] = about["start_s"]
            text = "green" if outcome.verdict.is_green else f"NOT GREEN {outcome.verdict.examples[:1]}"
        except NotApplicable as reason:
            result["not_applicable"] = text = str(reason)
        except (*_FAILURES, ExceptionGroup) as error:
            if not _is_failure(error):
                raise
            result["error"] = text = _error_text(error)
        finally:
            await bench.close()
        self._steal, self._foreign = max(self._steal, bench.steal), max(self._foreign, bench.foreign)
        self._on_progress(f"{about['workload']} round {about['round'] + 1} {about['system']} {cell.label}: {text}")
        return result

    # ---- parts of the run's JSON ------------------------------------------------------------------------------------

    @staticmethod
    def _about(about: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
        return {**about, "cell": dict(cell.key), "label": cell.label}

    def _describe(self, name: str, variant: Variant, system: System, options: Mapping[str, str]) -> None:
        if name not in self._run.systems:
            self._run.systems[name] = {
                "says": variant.says,
                "durability": {"letter": system.durability.letter, "sentence": system.durability.sentence},
                "options": dict(options),
                "versions": {},
                "configuration": {},
            }

    def _part(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "python": sys.version.split()[0],
            "commit": commit(),
            "command": plan.command,
            "plan": plan.plan,
            "piece": plan.piece,
            "asked": plan.asked,
            "scale": plan.scale,
            "rounds": plan.rounds,
            "voids": plan.voids,
            "seed": plan.seed,
            "thresholds": asdict(plan.thresholds),
        }


def commit() -> str:
    """Commit of this checkout; with + if files differ from it."""
    here = Path(__file__).parent
    try:
        outputs = [
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return outputs[0] + ("+" if outputs[1] else "")


def _is_failure(error: BaseException) -> bool:
    """Whether a system or the machine failed, rather than the load test itself."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_failure(one) for one in error.exceptions)
    return isinstance(error, _FAILURES)


def _error_text(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:1000]
