"""Tests the report of a chaos run: its text and its exit code."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.report import Report
from tests.history import Verdict

REPORT = Report(
    seed=7,
    seconds=120.4,
    verdict=Verdict(acknowledged=1000, unknown=3, unknown_found=2, failed=1, delivered=4000, readers=4),
    takeovers=5,
    claims=9,
    faults={"kill owner": 2, "pause bookie": 1},
    left_out={"unplug bookie: one is down": 1},
    gaps_ms={"kill owner": {"p50": 155, "max": 310}},
    restarts={"write-1": 2},
    client_errors={"OverCapacityError": 4},
    not_run=["unplug: no loop devices"],
    directory="kept/here",
)


def test_a_green_run_tells_its_counts_and_each_fault_beside_its_cost() -> None:
    lines = REPORT.text().splitlines()
    assert lines[0] == (
        "seed 7: 3 faults in 120 s, 5 take-overs, 1000 records acknowledged, 3 unknown (2 of them written), 1 refused, "
        "4000 delivered to 4 readers"
    )
    assert lines[1] == "lost=0 duplicated=0 reordered=0 early=0 invented=0 others=0 unread=0 stale=0"
    words = [line.split() for line in lines]
    assert ["kill", "owner", "2", "155", "310"] in words
    assert ["pause", "bookie", "1", "0", "0"] in words, "one that cost nothing is told too"
    assert "left out: unplug bookie: one is down 1" in lines
    assert "client: OverCapacityError 4" in lines
    assert "not run: unplug: no loop devices" in lines
    assert lines[-1] == "green" and REPORT.exit_code == 0


def test_a_broken_promise_is_told_with_its_place_and_what_did_not_come_back() -> None:
    verdict = Verdict(acknowledged=1000)
    verdict.breach("lost", "record 5 of client-1 at (1, 2, 3)", 2)
    verdict.is_stale("reader 3 ended behind (1, 9, 0)", 1)
    broken = replace(REPORT, verdict=verdict, unhealed=["bookie-2 exited with 1"])
    text = broken.text()
    assert "lost=2 duplicated=0" in text and "stale=1" in text
    (breach,) = verdict.examples
    assert f"BREACH {breach}" in text and "record 5 of client-1" in text
    assert "stale: reader 3 ended behind" in text
    assert "DID NOT COME BACK: bookie-2 exited with 1" in text
    assert text.endswith("NOT GREEN; all of it is kept in kept/here") and broken.exit_code == 1


def test_a_run_in_which_too_little_happened_proves_nothing() -> None:
    quiet = replace(REPORT, too_little=["no take-over"])
    assert "TOO LITTLE HAPPENED: no take-over" in quiet.text()
    assert quiet.text().endswith("proves nothing") and quiet.exit_code == 2
    assert quiet.as_json()["exit"] == 2 and quiet.as_json()["faults"] == REPORT.faults
