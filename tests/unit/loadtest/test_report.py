"""Reports are made from the JSON alone: medians, goals, wins and losses, tables, plots and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtest import runfile
from loadtest.__main__ import main as entry
from loadtest.histogram import Histogram
from loadtest.report import charts, compare, figures, goals, main, page, tables
from loadtest.runfile import Run, RunFileError

VERDICT = dict.fromkeys(
    ("sent", "acknowledged", "unanswered", "read", "lost", "duplicated", "reordered", "misplaced", "early", "invented"),
    0,
) | {"diverged": 0, "examples": []}
USAGE = {
    role: {"processes": count, "cpu_s": 1.0, "rss_bytes": 3e7, "rss_peak_bytes": 5e7, "files": 9}
    for role, count in (("bookie", 3), ("write", 2), ("read", 2), ("generator", 1))
}


def histogram(*values_ms: float) -> dict[str, Any]:
    made = Histogram()
    for value in values_ms:
        made.record(value * 1000)
    return made.as_json()


class Book:
    """Writes a run."""

    def __init__(self) -> None:
        self.run = Run(
            parts=[
                {
                    "began": "2031-05-06T07:08:09+00:00",
                    "machine": {"cpus": 2, "cpu": "<fast & cheap>", "memory_bytes": 2**34, "kernel": "6"},
                    "python": "3.11",
                    "commit": "abc",
                    "command": "python -m loadtest W3",
                    "scale": "quick",
                    "rounds": 3,
                    "seed": 1,
                    "thresholds": {"idle_min": 0.85},
                }
            ]
        )
        for name, letter in (("dlog", "F"), ("kafka-default", "P"), ("bookkeeper", "F")):
            self.run.systems[name] = {
                "says": f"about {name}",
                "durability": {"letter": letter, "sentence": "it is so"},
                "versions": {name: "1.2"},
                "configuration": {"replicas": 3},
            }

    def workload(self, name: str, *cells: tuple[str, dict[str, Any]]) -> None:
        self.run.workloads[name] = {
            "name": f"name-{name}",
            "asks": f"what {name} asks",
            "cells": [{"label": label, "key": {}, "shape": shape} for label, shape in cells],
        }

    def result(self, workload: str, label: str, system: str, *rounds: dict[str, Any], **more: Any) -> None:
        for number, values in enumerate(rounds):
            about = {"part": 0, "round": number, "workload": workload, "system": system, "void": False}
            self.run.turns.append({**about, "before": {"idle": 0.9}, "faults": []})
            told = {"green": True, "verdict": VERDICT, "errors": [], "figures": values, "usage": USAGE}
            self.run.results.append({**about, "cell": {}, "label": label, **told, **more})

    def collected(self) -> figures.Figures:
        return figures.collect(runfile.from_json(json.loads(json.dumps(self.run.as_json()))))


@pytest.fixture
def book() -> Book:
    """Three rounds of W3 and W4 of dlog, and the results of peers."""
    made = Book()
    made.workload("W3", ("100 B", {"record_bytes": 100}), ("1 KiB", {"record_bytes": 1024}))
    made.workload("W4", ("100 KiB batches", {"batch_bytes": 102400}))
    rates = [{"records_per_s": rate, "mb_per_s": rate / 1e4} for rate in (600_000.0, 800_000.0, 700_000.0)]
    made.result("W3", "100 B", "dlog", *rates)
    made.result("W3", "100 B", "bookkeeper", {"records_per_s": 70_000.0})
    made.result("W4", "100 KiB batches", "dlog", {"mb_per_s": 100.0, "cpu_s_per_gb_with_generators": 3.5})
    made.result("W4", "100 KiB batches", "kafka-default", {"mb_per_s": 200.0})
    return made


def test_rounds_come_to_a_median_with_its_spread(book: Book) -> None:
    found = book.collected().get("W3", "100 B", "dlog")
    assert found is not None
    assert found.stat("records_per_s") == (700_000.0, 600_000.0, 800_000.0, 3)
    assert found.value("usage.bookie.rss_bytes") == 3e7
    assert found.stat("no.such") is None


def test_goals_say_ours_theirs_ratio_and_outcome(book: Book) -> None:
    found = {(one.goal.id, one.goal.peer, one.goal.unit): one for one in goals.judged(book.collected())}
    rate = found["G1", "", "records/s"]
    assert (rate.ours, rate.met, rate.is_moonshot, rate.outcome) == (700_000.0, True, False, "met")
    times = found["G1", "bookkeeper", ""]
    assert (times.theirs, times.ratio, times.outcome) == (70_000.0, 10.0, "met")
    assert found["G3", "", "MB/s"].outcome == "MISSED"
    assert found["G4", "kafka-default", ""].ratio == 0.5
    assert found["G4", "kafka-default", ""].outcome == "MISSED"
    assert found["G20", "", "s/GB"].outcome == "moonshot"
    assert found["G17", "", "MB"].met is True
    assert found["G5", "", "ms"].outcome == "not measured: W1 of dlog was not run"
    assert found["G1", "nats-default", ""].met is None


def test_memory_at_rest_is_that_of_three_bookies_and_two_proxies(book: Book) -> None:
    """Four proxies ran, two of each role."""
    book.workload("W19", ("1 log", {"logs": 1}))
    book.result("W19", "1 log", "dlog", {"start_s": 1.0})
    at_rest, loaded = (one for one in goals.judged(book.collected()) if one.goal.id == "G17")
    assert at_rest.ours == 30 + 30 / 2 + 30 / 2
    assert loaded.ours == 50 + 50 + 50


def test_every_goal_of_the_table_is_there() -> None:
    assert {goal.id for goal in (*goals.GOALS, *goals.REPAIR_GOALS)} == {f"G{n}" for n in range(1, 22)}


def test_the_repair_of_a_lost_bookie_is_a_ratio_to_a_copy_and_to_javas(book: Book) -> None:
    for name, rate in (("dlog-recovery", 120.0), ("bookkeeper-recovery", 80.0)):
        book.run.systems[name] = {"says": "", "durability": {"letter": "F", "sentence": ""}}
        book.workload("W35", ("one shape", {}))
        told = {"repair_mb_per_s": rate, "repair_over_copy": rate / 500, "p99_disturbed_over_undisturbed": 2.5}
        book.result("W35", "one shape", name, told)
    found = [one for one in goals.judged(book.collected()) if one.goal.id == "G12"]
    assert [(one.goal.base, one.ours, one.ratio, one.outcome) for one in found] == [
        (100, 120.0, None, "met"),
        (1, 120.0, 1.5, "met"),
        (0.3, 0.24, None, "MISSED"),
        (2, 2.5, None, "MISSED"),
    ]


def test_one_ledger_is_compared_in_entries_or_in_bytes(book: Book) -> None:
    cells = [("a", {"record_bytes": 100, "window": 256}), ("b", {"record_bytes": 16384, "window": 1024})]
    book.workload("W36", *cells)
    for name, records, mb in (("dlog-ledger-client", 30_000.0, 140.0), ("bookkeeper", 20_000.0, 100.0)):
        book.run.systems[name] = {"says": "", "durability": {"letter": "F", "sentence": ""}}
        for label, _ in cells:
            book.result("W36", label, name, {"records_per_s": records, "mb_per_s": mb})
    found = [one for one in goals.judged(book.collected()) if one.goal.id in ("B1", "B2")]
    assert [one.goal for one in found] == list(goals.LEDGER_GOALS)
    assert [(one.goal.id, one.ratio, one.outcome) for one in found if one.ratio] == [
        ("B1", 1.5, "met"),
        ("B2", 1.4, "MISSED"),
    ]


def test_start_and_memory_of_a_full_bookie_are_shares_of_javas(book: Book) -> None:
    book.workload("W37", ("one shape", {}))
    for name, seconds, rss in (("dlog-bookie", 3.0, 200e6), ("bookkeeper-bookie", 10.0, 700e6)):
        book.run.systems[name] = {"says": "", "durability": {"letter": "F", "sentence": ""}}
        told = {"restart_s": seconds, "full_rss_bytes": rss, "restarted_rss_bytes": rss / 2}
        book.result("W37", "one shape", name, told)
    found = [one for one in goals.judged(book.collected()) if one.goal.id in ("B3", "B4")]
    assert [one.goal for one in found] == list(goals.BOOKIE_GOALS)
    assert [one.outcome for one in found] == ["met", "MISSED", "MISSED"]


def on_kafka(book: Book) -> None:
    """Results of regions and streams on Kafka, beside those of a bare client."""
    for name in ("dlog-kafka", "dlog-region", "kafka-aiokafka"):
        book.run.systems[name] = {"says": "", "durability": {"letter": "F", "sentence": ""}}
    book.workload("W1", ("100 B", {"record_bytes": 100}))
    book.workload("W23", ("1 table", {"tables": 1}), ("100 tables", {"tables": 100}))
    book.result("W1", "100 B", "dlog-kafka", {"response_ms": {"p50": 5.0}})
    book.result("W1", "100 B", "kafka-aiokafka", {"response_ms": {"p50": 3.0}})
    book.result("W23", "1 table", "dlog-region", {"mb_per_s": 80.0})
    book.result("W23", "1 table", "kafka-aiokafka", {"mb_per_s": 100.0})


def test_goals_on_kafka_are_of_their_own_systems(book: Book) -> None:
    on_kafka(book)
    found = [one for one in goals.judged(book.collected()) if one.goal.id.startswith("K")]
    assert [one.goal for one in found] == list(goals.KAFKA_GOALS)
    written = [one for one in found if one.goal.id == "K1"]
    assert [(one.ours, one.theirs, one.ratio, one.outcome) for one in written] == [
        (80.0, 100.0, 0.8, "MISSED"),
        (None, None, None, "not measured: W23 of dlog-region was not run"),
    ]
    beyond = next(one for one in found if one.goal.workload == "W1")
    assert beyond.ours == pytest.approx(1.1) and beyond.outcome == "MISSED"
    assert not any(one.is_moonshot for one in found), "these goals have none"
    text = tables.goal_table(book.collected()).markdown()
    assert "| 80.0 | 100 (kafka-aiokafka) | 0.80x | ≥ 0.85x |  | MISSED |" in text


def on_s3(book: Book) -> None:
    """Results of streams on S3, beside those of bare requests; with delays and without."""
    book.workload("W1", ("100 B", {"record_bytes": 100}))
    book.workload("W30", ("1,000 objects", {"objects": 1000}), ("1,000,000 objects", {"objects": 1_000_000}))
    for suffix, ours, bare in (("", 12.0, 10.0), ("-delayed", 112.0, 110.0)):
        for name, p50 in (("dlog-s3-direct", ours), ("s3-aiobotocore", bare)):
            book.run.systems[name + suffix] = {"says": "", "durability": {"letter": "P", "sentence": ""}}
            book.result("W1", "100 B", name + suffix, {"response_ms": {"p50": p50}})
    book.run.systems["dlog-metadata"] = {"says": "", "durability": {"letter": "P", "sentence": ""}}
    book.result("W30", "1,000 objects", "dlog-metadata", {"p50_us": 10.0, "p99_us": 20.0})
    book.result("W30", "1,000,000 objects", "dlog-metadata", {"p50_us": 25.0, "p99_us": 60.0})


def test_goals_on_s3_are_ratios_to_bare_requests_with_the_same_delays(book: Book) -> None:
    on_s3(book)
    found = [one for one in goals.judged(book.collected()) if one.goal.id.startswith("S")]
    assert [one.goal for one in found] == list(goals.S3_GOALS)
    assert [(one.ratio, one.outcome) for one in found if one.goal.id == "S1"] == [
        (1.2, "met"),
        (pytest.approx(112 / 110), "met"),
    ]
    searched = [(one.ours, one.outcome) for one in found if one.goal.id == "S6"]
    assert searched == [(25.0, "met"), (60.0, "met"), (2.5, "MISSED")]
    assert next(one for one in found if one.goal.id == "S4").met is None
    assert "    python -m loadtest peers install versitygw\n" in tables.markdown(book.collected())


def test_a_report_can_be_a_section_of_another(book: Book) -> None:
    whole, part = tables.markdown(book.collected()), tables.markdown(book.collected(), section="On Kafka")
    assert part.startswith("## On Kafka\n\n") and "Made by" not in part
    assert [line for line in part.splitlines() if line.startswith("#")][1:] == [
        f"#{line}" for line in whole.splitlines() if line.startswith("##")
    ]


def test_goals_are_those_of_the_systems_that_ran(book: Book) -> None:
    assert {one.goal.id[0] for one in goals.judged(book.collected())} == {"G"}
    on_kafka(book)
    assert {one.goal.id[0] for one in goals.judged(book.collected())} == {"G", "K"}
    book.run.results = [one for one in book.run.results if one["system"] not in ("dlog", "bookkeeper")]
    del book.run.systems["dlog"]
    assert {one.goal.id[0] for one in goals.judged(book.collected())} == {"K"}


def test_what_is_wrong_with_ours_counts_in_every_round(book: Book) -> None:
    def outcome() -> str:
        return next(one.outcome for one in goals.judged(book.collected()) if one.goal.id == "G21")

    assert outcome() == "moonshot"
    about = {"part": 0, "round": 9, "workload": "W3", "system": "dlog", "void": True, "cell": {}, "label": "100 B"}
    book.run.results.append({**about, "green": False, "verdict": VERDICT | {"reordered": 1}, "errors": []})
    assert outcome() == "MISSED"


def test_kills_of_ours_are_counted(book: Book) -> None:
    book.workload("W10", ("one shape", {}))
    book.workload("W13", ("one shape", {}))
    book.result("W10", "one shape", "dlog", {"gaps_ms": [10, 30], "gap_max_ms": 30})
    book.result("W13", "one shape", "dlog", {"first_append_s": 2.0}, {"first_append_s": 3.0})
    assert [one.ours for one in goals.judged(book.collected()) if one.goal.id == "G21"] == [0.0, 2.0 + 14.0]


HOME = "/" + "home/"  # in one word it would be a machine path, and those are not committed


def test_the_page_says_how_to_run_it_again_and_names_no_place_of_the_machine(book: Book) -> None:
    book.run.parts[0] |= {
        "plan": "python -m loadtest --plan loadtest/plans/main.toml --out RUN.json",
        "piece": "append-max",
        "command": f"python -m loadtest W3 --out {HOME}somebody/runs/x.json",
    }
    about = {"part": 0, "round": 0, "workload": "W4", "system": "bookkeeper", "void": False, "cell": {}}
    error = "bookie-1 did not serve: log=/tmp/loadtest-x1/start-1/bookie-1.log said=/a/b/c"
    book.run.results.append({**about, "label": "100 KiB batches", "error": error})
    for said in (tables.markdown(book.collected()), page.html(book.collected())):
        assert "python -m loadtest --plan loadtest/plans/main.toml --out RUN.json" in said
        assert "log=bookie-1.log said=c" in said
        assert HOME not in said and "/tmp/" not in said
    said = tables.markdown(book.collected())
    assert "    python -m loadtest peers install kafka\n" in said
    assert "| append-max | python -m loadtest W3 --out x.json |" in said


def test_a_note_about_everything_is_told_once(book: Book) -> None:
    notes = [compare.Note("Disks differ."), compare.Note("It does not sync.", system="kafka-default")]
    said = tables.markdown(book.collected(), notes)
    assert said.count("Disks differ.") == 1 and "## Before you compare\n\n- Disks differ." in said
    assert said.count("It does not sync.") == 1
    assert page.html(book.collected(), notes).count("Disks differ.") == 1


def test_what_fell_behind_is_marked(book: Book) -> None:
    book.result("W3", "1 KiB", "bookkeeper", {"records_per_s": 1.0, "behind": 7})
    found = book.collected().get("W3", "1 KiB", "bookkeeper")
    assert found is not None and found.marks == ["fell behind the schedule"]


def test_where_we_win_and_where_we_lose(book: Book, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text('[[note]]\nworkload = "W4"\nsystem = "kafka-default"\ntext = "It does not sync."\n')
    notes = compare.read_notes(path)
    win, loss = compare.duels(book.collected(), notes)
    assert (win.workload, win.better, win.is_win, win.notes) == ("W3", 10.0, True, ())
    assert (loss.workload, loss.better, loss.is_loss, loss.notes) == ("W4", 0.5, True, ("It does not sync.",))
    said = tables.markdown(book.collected(), notes)
    assert "- W3 100 B, records/s: 700,000 against 70,000 of bookkeeper (F), 10.0x better" in said
    assert "- W4 100 KiB batches, MB/s: 100 against 200 of kafka-default (P), 2.00x worse. It does not sync." in said
    assert "Comparisons: 1 better, 1 worse, 0 even" in said


def test_what_is_missed_is_told_with_why(book: Book, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text(
        '[[note]]\ngoal = "G3"\ntext = "Of its own."\n'
        '[[note]]\ngoal = "G4"\nsystem = "kafka-default"\ntext = "It does not sync."\n'
    )
    notes = compare.read_notes(path)
    missed = compare.missed(book.collected(), notes)
    own = "G3, batches of 100 KiB: 100 MB/s; goal ≥ 180 MB/s. Of its own."
    peer = "against Kafka's default, which does not sync: 100 against 200, 0.50x; goal ≥ 0.70x. It does not sync."
    assert own in missed and f"G4, batches of 100 KiB {peer}" in missed
    assert not any(one.startswith("G1,") for one in missed)
    assert f"## Missed goals, and why\n\n- {own}" in tables.markdown(book.collected(), notes)
    assert "<li>G3, batches of 100 KiB: 100 MB/s;" in page.html(book.collected(), notes)
    assert "Of its own." not in "".join(n for duel in compare.duels(book.collected(), notes) for n in duel.notes)


@pytest.mark.parametrize("wrong", ['goal = "G99"', 'goal = "G3"\nworkload = "W4"', 'aim = "G3"', "goal = 3"])
def test_a_note_about_what_there_is_not_is_refused(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text(f'[[note]]\ntext = "So it is."\n{wrong}\n')
    with pytest.raises(ValueError, match=r"goal"):
        compare.read_notes(path)


def test_the_class_stands_in_each_row(book: Book) -> None:
    rows = [line for line in tables.markdown(book.collected()).splitlines() if line.startswith("| 100 ")]
    assert len(rows) == 4
    assert all(line.split("|")[3].strip() in ("F", "P") for line in rows)
    assert "| 100 B | dlog | F | 700,000 (600,000-800,000) |" in rows[0]


def test_what_is_not_green_shows_no_figure_anywhere(book: Book) -> None:
    red = {"green": False, "verdict": VERDICT | {"lost": 3}, "errors": []}
    about = {"part": 0, "round": 9, "workload": "W3", "system": "dlog", "void": False, "cell": {}, "label": "100 B"}
    book.run.results.append({**about, **red})
    collected = book.collected()
    for said in (tables.markdown(collected), page.html(collected), tables.console(collected)):
        assert "NOT GREEN: 3 lost" in said
        assert "700,000" not in said
    assert not collected.run.is_green


def test_void_rounds_count_for_nothing_and_bad_host_conditions_are_marked(book: Book) -> None:
    book.run.results[0]["void"] = book.run.turns[0]["void"] = True
    book.run.turns[1]["faults"] = ["idle 10% < 85%"]
    found = book.collected().get("W3", "100 B", "dlog")
    assert found is not None and found.rounds == 2 and found.marks == ["bad host conditions"]
    assert "1 rounds were void" in tables.markdown(book.collected())


def test_a_busy_generator_and_errors_are_marked(book: Book) -> None:
    book.result("W3", "1 KiB", "dlog", {"records_per_s": 1.0, "failed": 2}, generators=[{"busy": 0.95}])
    found = book.collected().get("W3", "1 KiB", "dlog")
    assert found is not None and found.marks == ["generator busy", "client saw errors"]


def test_gaps_are_of_all_faults_of_all_rounds(book: Book) -> None:
    book.workload("W10", ("one shape", {}))
    book.result(
        "W10", "one shape", "dlog", {"gaps_ms": [10, 30], "gap_max_ms": 30}, {"gaps_ms": [20, 90], "gap_max_ms": 90}
    )
    found = book.collected().get("W10", "one shape", "dlog")
    assert found is not None
    assert found.stat("gap_p50_ms") == (25.0, 10.0, 90.0, 4)
    assert found.value("gap_max_ms") == 90.0


@pytest.fixture
def full(book: Book) -> Book:
    """A run with something for every kind of picture."""
    book.workload("W1", ("100 B", {"record_bytes": 100}))
    book.workload("W2", *((f"{r}/s", {"record_bytes": 100, "rate": r}) for r in (1000, 20_000)))
    book.workload("W10", ("one shape", {}))
    book.workload("W19", ("1 log", {"logs": 1}))
    for system, slower in (("dlog", 1.0), ("kafka-default", 4.0)):
        histograms = {"response": histogram(*(slower * i / 10 for i in range(1, 200)))}
        book.result("W1", "100 B", system, {"response_ms": {"p50": slower, "p99": slower}}, histograms=histograms)
        for rate in (1000, 20_000):
            values = {"response_ms": {"p50": slower, "p99": slower * 9}}
            book.result("W2", f"{rate}/s", system, values, histograms=histograms)
        gaps = {"gaps_ms": [100 * slower, 0.0, 300 * slower], "gap_max_ms": 300 * slower}
        book.result("W10", "one shape", system, gaps, timeline=[5, 0, 7])
        book.result("W19", "1 log", system, {"start_s": slower, "rss_bytes": 1e8, "cpu_percent": 1.0})
    return book


def test_every_picture_is_drawn_as_sound_xml_with_all_its_systems(full: Book) -> None:
    drawn = {chart.file: chart.svg() for chart in charts.charts(full.collected())}
    assert set(drawn) == {
        "w1-one-append-in-flight-percentiles",
        "w2-latency-against-load-100-b-records",
        "w2-open-loop-of-20-000-s-percentiles",
        "w3-maximum-throughput-of-one-log",
        "w3-memory-meanwhile-by-process-100-b",
        "w4-maximum-throughput-of-one-log-in-batches",
        "w4-cpu-meanwhile-by-process-100-kib-batches",
        "w10-name-w10-each-gap",
        "w10-name-w10-acknowledged-over-time-first-round",
        "w19-idle-memory-by-process-1-log",
        "w19-start-until-ready",
    }
    for name, picture in drawn.items():
        said = "".join(ElementTree.fromstring(picture).itertext())
        assert "dlog" in said and ("kafka-default" in said or "bookkeeper" in said), name
        assert "nan" not in picture and "inf" not in picture
    assert "700,000" in drawn["w3-maximum-throughput-of-one-log"]
    assert "bookie" in drawn["w3-memory-meanwhile-by-process-100-b"]
    assert "generator" not in drawn["w3-memory-meanwhile-by-process-100-b"]


def test_pictures_are_files_too(full: Book, tmp_path: Path) -> None:
    drawn = charts.draw_all(full.collected(), tmp_path)
    assert len(drawn) == len(charts.charts(full.collected())) == len(set(drawn))
    for path in drawn:
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 3000


def test_the_page_is_whole_and_asks_nobody_for_anything(full: Book) -> None:
    said = page.html(full.collected())
    assert said.count("<svg") == said.count("</svg>") == len(charts.charts(full.collected()))
    for word in ("<script", "http://", "https://", "src=", "@import", "url("):
        assert word not in re.sub(r"http://www.w3.org/(2000/svg|1999/xlink)|url\(#", "", said)
    assert "&lt;fast &amp; cheap&gt;" in said and "<fast" not in said
    assert "goals met, of those measured" in said
    assert said.count("<table") == said.count("</table>")


def test_each_nine_takes_the_same_width() -> None:
    assert [charts.nines(percent) for percent in (0.0, 90.0, 99.0, 99.9)] == pytest.approx([0, 1, 2, 3])


# ---- the command and its bad input ----------------------------------------------------------------------------------


def test_the_command_writes_all_forms(full: Book, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.json"
    full.run.save(run)
    wanted = ["--markdown", "m.md", "--html", "p.html", "--png", "pictures"]
    arguments = [word if word.startswith("--") else str(tmp_path / word) for word in wanted]
    assert entry(["report", str(run), *arguments]) == 0
    assert (tmp_path / "m.md").read_text().startswith("# Performance")
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert len(list((tmp_path / "pictures").iterdir())) == len(capsys.readouterr().out.splitlines())
    assert main([str(run)]) == 0
    assert "## Goals" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "format 1"),
        ('{"format": 2}', "format 1"),
        ('{"format": 1}', "parts is missing"),
        ('{"format": 1, "parts": [], "systems": {"a": 1}, "workloads": {}, "turns": [], "results": []}', "systems.a"),
        ('{"format": 1, "parts": [], "systems": {}, "workloads": {}, "turns": [3], "results": []}', "turns[0]"),
        ('{"format": 1, "parts": [], "systems": {}, "workloads": {}, "turns": [], "results": [{}]}', "results[0].part"),
        ('{"format": 1, "parts": [7], "systems": {}, "workloads": {}, "turns": [], "results": []}', "parts[0]"),
    ],
)
def test_a_broken_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    assert main([str(path)]) == 2
    told = capsys.readouterr().err
    assert said in told and str(path) in told


def test_results_must_fit_the_run(book: Book) -> None:
    for change in (
        {"system": "nobody"},
        {"workload": "W99"},
        {"part": 3},
        {"verdict": None},
        {"green": 1},
        {"figures": 1},
    ):
        told = json.loads(json.dumps(book.run.as_json()))
        told["results"][0] |= change
        with pytest.raises(RunFileError, match=r"results\[0\]"):
            runfile.from_json(told)
    told = json.loads(json.dumps(book.run.as_json()))
    told["results"][0]["green"] = False
    with pytest.raises(RunFileError, match="not green but has figures"):
        runfile.from_json(told)


@pytest.mark.parametrize(
    "text", ["x = 1", "[[note]]\n", '[[note]]\ntext = ""', '[[note]]\ntext = "a"\nwho = "b"', "[[note]]\ntext = 3", "="]
)
def test_bad_notes_are_named(book: Book, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    run, notes = tmp_path / "run.json", tmp_path / "notes.toml"
    book.run.save(run)
    notes.write_text(text)
    assert main([str(run), "--notes", str(notes)]) == 2
    assert "note" in capsys.readouterr().err


def test_a_run_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 2
    assert "cannot read the run file" in capsys.readouterr().err


def test_an_empty_run_is_a_page_too() -> None:
    collected = figures.collect(Run())
    assert "Goals" in page.html(collected) and "Goals" in tables.markdown(collected)
