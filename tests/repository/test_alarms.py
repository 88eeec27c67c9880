"""docs/operations.md has a line for every alarm, and no line for another."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import actors
import dlog
import proxies
from dlog.events import Event

ROOT = Path(__file__).resolve().parents[2]
QUIET = ("debug", "info")


def _alarms() -> dict[str, str]:
    """Name and level of every event above "info", from every module that defines one."""
    for package in (dlog, actors, proxies):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".events"):
                importlib.import_module(module.name)
    found, classes = {}, [Event]
    while classes:
        kind = classes.pop()
        classes += kind.__subclasses__()
        if kind.level not in QUIET:
            found[kind.name] = kind.level
    return found


def _rows() -> dict[str, list[str]]:
    table = (ROOT / "docs/operations.md").read_text().split("<!-- alarms -->\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]
    return {re.sub("[`|]", "", row[0]).strip(): row for row in rows}


def test_every_alarm_has_a_line_with_its_level_and_something_to_do() -> None:
    rows = _rows()
    assert {name: row[1] for name, row in rows.items()} == _alarms()
    assert all(len(row) == 4 and all(row) for row in rows.values())
