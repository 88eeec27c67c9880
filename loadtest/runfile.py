"""One run as JSON: everything that a report needs, and nothing that has to be asked for again.

The law of this file: what is written can be read back, and what is read back is checked before anybody believes it; a
run appended to another keeps the machine, the weather and the versions of both.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


class RunFileError(ValueError):
    """Not a run of ours, or not one that can be read; the text says where it is wrong."""


@dataclass(slots=True)
class Run:
    """One or more runs: `parts` says of each when, where and how; the rest is of all of them."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        """No verdict is bad, and nothing failed to run."""
        return all("not_applicable" in one or one.get("green") is True for one in self.results)

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "parts": self.parts,
            "systems": self.systems,
            "workloads": self.workloads,
            "turns": self.turns,
            "results": self.results,
        }

    def save(self, path: Path) -> None:
        """Whole or not at all."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(self.as_json(), separators=(",", ":")) + "\n")
        fresh.replace(path)

    def append(self, other: Run) -> None:
        """Take in another run; its parts are numbered on. Raises RunFileError if the two do not fit."""
        self.check_cells(other.workloads)
        self.check_systems({name: about["options"] for name, about in other.systems.items() if "options" in about})
        shift = len(self.parts)
        self.parts += other.parts
        for name, about in other.systems.items():
            had = self.systems.get(name, {})
            told = {key: value for key, value in about.items() if value or key not in had}
            self.systems[name] = {**had, **told}  # one that never started has no versions, and hides none
        for name, about in other.workloads.items():
            before = self.workloads.get(name, {}).get("cells", [])
            labels = {cell["label"] for cell in before}
            cells = [*before, *(cell for cell in about.get("cells", ()) if cell["label"] not in labels)]
            self.workloads[name] = {**about, "cells": cells}
        for mine, theirs in ((self.turns, other.turns), (self.results, other.results)):
            mine += [{**one, "part": one["part"] + shift} for one in theirs]

    def check_systems(self, options: Mapping[str, Mapping[str, str]]) -> None:
        """One name stands for one set of options. Raises RunFileError."""
        for name, now in options.items():
            before = self.systems.get(name, {}).get("options", now)
            if before != now:
                raise RunFileError(f"{name} has other options in the run: {before} and {now}")

    def check_cells(self, workloads: Mapping[str, Mapping[str, Any]]) -> None:
        """Figures of two shapes must not stand in one row. Raises RunFileError."""
        for name, about in workloads.items():
            had = {cell["label"]: cell["shape"] for cell in self.workloads.get(name, {}).get("cells", ())}
            for cell in about.get("cells", ()):
                before, now = had.get(cell["label"], cell["shape"]), cell["shape"]
                differ = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
                if differ:
                    said = ", ".join(f"{key} {before.get(key)} and {now.get(key)}" for key in differ)
                    raise RunFileError(f"the run has {name} {cell['label']} in another shape: {said}")


_TURN = {"part": int, "round": int, "workload": str, "system": str, "void": bool}
_RESULT = {**_TURN, "label": str, "cell": dict}


def read(path: Path) -> Run:
    """A run from its file. Raises RunFileError."""
    try:
        told = json.loads(path.read_text())
    except OSError as error:
        raise RunFileError(f"no such run: {error.strerror or error}: file={path}") from error
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"not JSON: file={path} {error}") from error
    with _where(path):
        return from_json(told)


def from_json(told: Any) -> Run:
    """A run as `as_json` made it. Raises RunFileError."""
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise RunFileError(f"not a run of the load test in format {FORMAT}")
    for name, kind in (("parts", list), ("systems", dict), ("workloads", dict), ("turns", list), ("results", list)):
        if not isinstance(told.get(name), kind):
            raise RunFileError(f"a run has {name}: {told.get(name)!r:.60}")
    for name in ("systems", "workloads"):
        for key, value in told[name].items():
            if not isinstance(value, dict):
                raise RunFileError(f"{name}.{key} is an object: {value!r:.60}")
    for at, turn in enumerate(told["turns"]):
        _check(turn, _TURN, f"turns[{at}]")
    for at, result in enumerate(told["results"]):
        _check(result, _RESULT, f"results[{at}]")
        _check_result(result, f"results[{at}]", told)
    for at, part in enumerate(told["parts"]):
        if not isinstance(part, dict):
            raise RunFileError(f"parts[{at}] is an object: {part!r:.60}")
    return Run(told["parts"], told["systems"], told["workloads"], told["turns"], told["results"])


def _check(value: Any, shape: Mapping[str, type], where: str) -> None:
    if not isinstance(value, dict):
        raise RunFileError(f"{where} is an object: {value!r:.60}")
    for key, kind in shape.items():
        if type(value.get(key)) is not kind:
            raise RunFileError(f"{where}.{key} is {kind.__name__}: {value.get(key)!r:.60}")


def _check_result(result: dict[str, Any], where: str, told: dict[str, Any]) -> None:
    if result["system"] not in told["systems"] or result["workload"] not in told["workloads"]:
        raise RunFileError(f"{where} is of a system or workload that the run does not describe")
    if not 0 <= result["part"] < len(told["parts"]):
        raise RunFileError(f"{where}.part is one of the parts: {result['part']}")
    if "not_applicable" in result or "error" in result:
        return
    if not isinstance(result.get("verdict"), dict) or type(result.get("green")) is not bool:
        raise RunFileError(f"{where} has a verdict")
    if result["green"] and not isinstance(result.get("figures"), dict):
        raise RunFileError(f"{where} is green, and has figures")
    if not result["green"] and "figures" in result:
        raise RunFileError(f"{where} is not green, and has no figures")


@contextlib.contextmanager
def _where(path: Path) -> Any:
    try:
        yield
    except RunFileError as error:
        raise RunFileError(f"{error}: file={path}") from None
