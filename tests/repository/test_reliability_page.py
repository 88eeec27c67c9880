"""docs/reliability.md says what the record of hunts says."""

from __future__ import annotations

import pytest

from tests.simulation import record


@pytest.mark.parametrize("name", record.TABLES)
def test_a_table_of_the_page_is_what_the_record_renders_to(name: str) -> None:
    page = record.PAGE.read_text()
    again = "run python -m tests.simulation.record"
    assert record.between(page, name) == record.render(record.load(record.RECORD))[name], again


def test_what_was_recorded_broke_nothing_and_every_planted_defect_was_caught() -> None:
    kept = record.load(record.RECORD)
    assert all(line["violations"] == 0 for line in kept["hunts"])
    assert all(run["exit"] == 0 and run["breaches"] == 0 for run in kept["chaos"])
    assert all(told["green"] for told in kept["owners"].values())
    assert all(row["invariant"] and row["cpu_s"] <= 60 for row in kept["mutants"]["rows"])
