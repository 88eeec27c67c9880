"""The table of docs/bad-input.md, read where it stands: what comes at a door, and what is answered.

The law of this file: the table is the only place that says what an answer is. A test looks its row up by id, does to
the real part what the row says, and compares what it saw with the row; tests/repository/test_bad_input.py sees to it
that every row has a test and every test of this folder a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "bad-input.md"
_ROW = re.compile(r"\| `(?P<id>[^`]+)` \| (?P<comes>.+?) \| (?P<answer>.+?) \|$")


class Row(NamedTuple):
    """One line: `id` is the test's parameter, or the whole node id of a test that stands elsewhere."""

    id: str
    comes: str
    answer: str

    @property
    def is_elsewhere(self) -> bool:
        return self.id.startswith("tests/")


def rows() -> list[Row]:
    """All lines of all doors, in order."""
    found = []
    for line in DOCUMENT.read_text().splitlines():
        match = _ROW.match(line)
        if match is not None:
            found.append(Row(match["id"], match["comes"].replace(r"\|", "|"), match["answer"].replace(r"\|", "|")))
    return found


BY_ID = {row.id: row for row in rows()}


def each(door: str, cases: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrise a test over cases of a door: it takes `case` and `answer`. Ids are `door.case`."""
    given = [pytest.param(case, answer_of(f"{door}.{case}"), id=f"{door}.{case}") for case in cases]
    return pytest.mark.parametrize(("case", "answer"), given)


def row(row_id: str) -> pytest.MarkDecorator:
    """A test of one line: it takes `answer`."""
    return pytest.mark.parametrize("answer", [pytest.param(answer_of(row_id), id=row_id)])


def answer_of(row_id: str) -> str:
    """What the table says; a test without a line says so when it runs."""
    known = BY_ID.get(row_id)
    return known.answer if known is not None else f"docs/bad-input.md has no line {row_id}"
