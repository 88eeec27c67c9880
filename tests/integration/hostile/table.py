"""Reads the rows of bad-input.md: bad input of an interface, and the expected answer.

Invariants:
- An expected answer is written only in the table. A test looks its row up by id, sends to the real says to the real
  process, and
  compares the answer with the row.
- Every row has a test and every test of this directory a row (tests/repository/test_bad_input.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

DOCUMENT = Path(__file__).with_name("bad-input.md")
_ROW = re.compile(r"\| `(?P<id>[^`]+)` \| (?P<comes>.+?) \| (?P<answer>.+?) \|$")


class Row(NamedTuple):
    """One row. id: the parameter of a test here, or the whole node id of a test in another folder."""

    id: str
    comes: str
    answer: str

    @property
    def is_elsewhere(self) -> bool:
        return self.id.startswith("tests/")


def rows() -> list[Row]:
    """All rows, in order."""
    found = []
    for line in DOCUMENT.read_text().splitlines():
        match = _ROW.match(line)
        if match is not None:
            found.append(Row(match["id"], match["comes"].replace(r"\|", "|"), match["answer"].replace(r"\|", "|")))
    return found


BY_ID = {row.id: row for row in rows()}


def each(door: str, cases: Iterable[str]) -> pytest.MarkDecorator:
    """Parametrise a test over cases of an interface: it takes `case` and `answer`. Ids are `door.case`."""
    given = [pytest.param(case, answer_of(f"{door}.{case}"), id=f"{door}.{case}") for case in cases]
    return pytest.mark.parametrize(("case", "answer"), given)


def row(row_id: str) -> pytest.MarkDecorator:
    """Parametrise a test of one row: it takes `answer`."""
    return pytest.mark.parametrize("answer", [pytest.param(answer_of(row_id), id=row_id)])


def answer_of(row_id: str) -> str:
    """The expected answer of a row; a test without a row fails with this text."""
    known = BY_ID.get(row_id)
    return known.answer if known is not None else f"bad-input.md has no row {row_id}"
