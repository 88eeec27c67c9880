"""The run file: one run, or several, as JSON with everything that a report needs.

Invariants:
- a file that was written can be read back, and is validated when it is read;
- a run appended to another keeps the machine, the host conditions and the versions of both.
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
    """The file is no valid run; the message names the invalid part."""


@dataclass(slots=True)
class Run:
    """One or more runs. parts: time, machine and command of each; the other fields join all."""

    parts: list[dict[str, Any]] = field(default_factory=list)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    workloads: dict[str, dict[str, Any]] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        """Whether every verdict is good and nothing failed to run."""
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
        """Replace the file atomically."""
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(json.dumps(self.as_json(), separators=(",", ":")) + "\n")
        fresh.replace(path)

    def append(self, other: Run) -> None:
        """Add another run, renumbering its parts. Raises RunFileError if the two do not fit."""
        self.check_cells(other.workloads)
        self.check_systems({name: about["options"] for name, about in other.systems.items() if "options" in about})
        shift = len(self.parts)
        self.parts += other.parts
        for name, about in other.systems.items():
            had = self.systems.get(name, {})
            fields = {key: value for key, value in about.items() if value or key not in had}
            self.systems[name] = {**had, **fields}  # keep versions if it did not start this time
        for name, about in other.workloads.items():
            before = self.workloads.get(name, {}).get("cells", [])
            labels = {cell["label"] for cell in before}
            cells = [*before, *(cell for cell in about.get("cells", ()) if cell["label"] not in labels)]
            self.workloads[name] = {**about, "cells": cells}
        for mine, theirs in ((self.turns, other.turns), (self.results, other.results)):
            mine += [{**one, "part": one["part"] + shift} for one in theirs]

    def check_systems(self, options: Mapping[str, Mapping[str, str]]) -> None:
        """Check that each system has the same options as before. Raises RunFileError."""
        for name, now in options.items():
            before = self.systems.get(name, {}).get("options", now)
            if before != now:
                raise RunFileError(
                    f"{name} has other options in this run file, use another: {before} in the file, now {now}"
                )

    def check_cells(self, workloads: Mapping[str, Mapping[str, Any]]) -> None:
        """Check that each cell has the same shape as before. Raises RunFileError."""
        for name, about in workloads.items():
            had = {cell["label"]: cell["shape"] for cell in self.workloads.get(name, {}).get("cells", ())}
            for cell in about.get("cells", ()):
                before, now = had.get(cell["label"], cell["shape"]), cell["shape"]
                differ = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
                if differ:
                    differences = ", ".join(f"{key} {before.get(key)} and {now.get(key)}" for key in differ)
                    raise RunFileError(
                        f"{name} {cell['label']} has other settings in this run file, use another: {differences}"
                    )


_TURN = {"part": int, "round": int, "workload": str, "system": str, "void": bool}
_RESULT = {**_TURN, "label": str, "cell": dict}


def read(path: Path) -> Run:
    """Read a run file. Raises RunFileError."""
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise RunFileError(f"cannot read the run file: {error.strerror or error}: file={path}") from error
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"run file is not JSON: file={path} {error}") from error
    with _where(path):
        return from_json(data)


def from_json(data: Any) -> Run:
    """Decode and validate `as_json`. Raises RunFileError."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RunFileError(f"not a run file of the load test in format {FORMAT}")
    for name, kind in (("parts", list), ("systems", dict), ("workloads", dict), ("turns", list), ("results", list)):
        if not isinstance(data.get(name), kind):
            raise RunFileError(f"{name} is missing or of a wrong type: {data.get(name)!r:.60}")
    for name in ("systems", "workloads"):
        for key, value in data[name].items():
            if not isinstance(value, dict):
                raise RunFileError(f"{name}.{key} must be an object: {value!r:.60}")
    for at, turn in enumerate(data["turns"]):
        _check(turn, _TURN, f"turns[{at}]")
    for at, result in enumerate(data["results"]):
        _check(result, _RESULT, f"results[{at}]")
        _check_result(result, f"results[{at}]", data)
    for at, part in enumerate(data["parts"]):
        if not isinstance(part, dict):
            raise RunFileError(f"parts[{at}] must be an object: {part!r:.60}")
    return Run(data["parts"], data["systems"], data["workloads"], data["turns"], data["results"])


def _check(value: Any, shape: Mapping[str, type], where: str) -> None:
    if not isinstance(value, dict):
        raise RunFileError(f"{where} must be an object: {value!r:.60}")
    for key, kind in shape.items():
        if type(value.get(key)) is not kind:
            raise RunFileError(f"{where}.{key} must be {kind.__name__}: {value.get(key)!r:.60}")


def _check_result(result: dict[str, Any], where: str, data: dict[str, Any]) -> None:
    if result["system"] not in data["systems"] or result["workload"] not in data["workloads"]:
        raise RunFileError(f"{where} names a system or workload that the file does not describe")
    if not 0 <= result["part"] < len(data["parts"]):
        raise RunFileError(f"{where}.part must be the number of a part: {result['part']}")
    if "not_applicable" in result or "error" in result:
        return
    if not isinstance(result.get("verdict"), dict) or type(result.get("green")) is not bool:
        raise RunFileError(f"{where} has no verdict")
    if result["green"] and not isinstance(result.get("figures"), dict):
        raise RunFileError(f"{where} is green but has no figures")
    if not result["green"] and "figures" in result:
        raise RunFileError(f"{where} is not green but has figures")


@contextlib.contextmanager
def _where(path: Path) -> Any:
    try:
        yield
    except RunFileError as error:
        raise RunFileError(f"{error}: file={path}") from None
