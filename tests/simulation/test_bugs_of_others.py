"""Checks the table of defects of other systems: it is complete, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulation.bugs_of_others import DEFECTS

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_whole() -> None:
    assert list(DEFECTS) == list(range(1, 35))
    assert all(defect.tests or defect.why for defect in DEFECTS.values())


@pytest.mark.parametrize("number", DEFECTS)
def test_what_a_row_names_exists(number: int) -> None:
    for name in DEFECTS[number].tests:
        path, _, function = name.partition("::")
        assert re.search(rf"def {function}\(", (ROOT / path).read_text()), name
