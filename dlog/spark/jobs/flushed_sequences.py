"""Marks: how far each table was flushed, hence what a replay omits and expects first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlog.errors import ConfigError
from dlog.spark.jobs.wal import NUMBER_MAX, Numbers

OTHERS = "*"  # key in a file for all tables that it does not name


@dataclass(frozen=True, slots=True)
class Marks:
    """Records with a sequence at or below their table's mark are flushed; the next one must follow without a gap.
    default: for tables that are not named; None: they may begin anywhere."""

    by_table: Mapping[int, int] = field(default_factory=dict)
    default: int | None = None

    @classmethod
    def of(cls, sequences: Any, what: str = "marks") -> Marks:
        """Parse {"table": sequence}; -1: nothing of the table was flushed. Raises ConfigError naming `what`."""
        if not isinstance(sequences, Mapping):
            raise ConfigError(
                f'{what}: expected an object like {{"7": 120, "{OTHERS}": -1}}: value={str(sequences)[:60]}'
            )
        by_table: dict[int, int] = {}
        default = None
        for key, value in sequences.items():
            text = str(key)
            if type(value) is not int or not -1 <= value <= NUMBER_MAX:
                raise ConfigError(
                    f"{what}: a flushed sequence must be a whole number from -1 on: table={text[:40]} {value!r:.40}"
                )
            if text == OTHERS:
                default = value
            elif text.isascii() and text.isdigit() and int(text) <= NUMBER_MAX:
                by_table[int(text)] = value
            else:
                raise ConfigError(f"{what}: a table must be a whole number or {OTHERS} (others): table={text[:40]!r}")
        return cls(by_table, default)

    def as_map(self) -> dict[str, int]:
        """The form that `of` parses."""
        sequences = {str(table): self.by_table[table] for table in sorted(self.by_table)}
        return sequences if self.default is None else {**sequences, OTHERS: self.default}

    def of_table(self, table: int) -> int | None:
        """The mark of a table; None: it may begin anywhere."""
        return self.by_table.get(table, self.default)

    def of_tables(self, tables: Numbers) -> Numbers:
        """The mark of each table; -1 without one."""
        others = -1 if self.default is None else self.default
        found = np.full(len(tables), others, np.int64)
        if self.by_table and len(tables):
            named = np.array(sorted(self.by_table), np.int64)
            marks = np.array([self.by_table[int(table)] for table in named], np.int64)
            at = np.minimum(np.searchsorted(named, tables), len(named) - 1)
            is_named = named[at] == tables
            found[is_named] = marks[at[is_named]]
        return found


def read_marks(path: Path) -> Marks:
    """Read marks from a JSON file. Raises ConfigError."""
    try:
        sequences = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"marks cannot be read: file={path}: {str(error)[:120]}") from None
    return Marks.of(sequences, f"marks in {path}")
