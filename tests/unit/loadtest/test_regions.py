"""Measures regions and topics in a directory, with real generator processes and without brokers.

No figure is checked, because a busy machine proves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest import command, runfile, spec, systems
from loadtest.report import figures
from loadtest.runner import Plan, Runner
from loadtest.systems.kafka import KafkaSystem
from tests.unit.loadtest.test_runner import CALM, good

CHANGES = {"seconds": "0.3", "warmup_s": "0.1", "patience_s": "60", "backlog_mb": "1"}


async def figures_of(workload: str, *names: str, **changes: str) -> figures.Figures:
    """Run one round; every result is green."""
    workloads = spec.chosen(workload, "quick", {**CHANGES, **changes})
    chosen = {name: systems.find(name) for name in names}
    plan = Plan(workloads=workloads, systems=chosen, rounds=1, voids=0, wait_s=0.0, thresholds=CALM)
    run = await Runner(plan, look=good).run()
    assert run.is_green, [one for one in run.results if not one.get("green")]
    return figures.collect(run)


def value(found: figures.Figures, workload: str, system: str, figure: str, **cell: Any) -> float:
    result = found.where(workload, system, **cell)
    assert result is not None and not result.why, result
    told = result.value(figure)
    assert told is not None, figure
    return told


@pytest.mark.parametrize("system", ["dlog-directory", "file", "dlog-directory-region"])
async def test_one_batch_is_in_flight(system: str) -> None:
    found = await figures_of("W26", system)
    assert value(found, "W26", system, "response_ms.p50") > 0
    assert found.letter(system) == "F"


async def test_records_go_to_the_tables_of_a_region_in_turns() -> None:
    """The judge compares the sequences that a write was told with those that a reader finds."""
    found = await figures_of("W23", "dlog-directory-region", batch_bytes="16384", tables="1,7")
    for tables in (1, 7):
        assert value(found, "W23", "dlog-directory-region", "mb_per_s", tables=tables) > 0


async def test_a_region_is_read_from_its_start() -> None:
    found = await figures_of("W24", "dlog-directory-region")
    assert value(found, "W24", "dlog-directory-region", "scan_mb_per_s") > 0
    (result,) = found.run.results
    assert result["verdict"]["read"] == result["verdict"]["sent"] >= 976


@pytest.mark.parametrize("tables", [1, 7])
async def test_a_region_is_opened_after_a_crash_with_a_snapshot_and_without(tables: int) -> None:
    found = await figures_of("W25", "dlog-directory-region", tables=str(tables))
    assert value(found, "W25", "dlog-directory-region", "records") == 10_000
    assert value(found, "W25", "dlog-directory-region", "open_s") > 0
    assert value(found, "W25", "dlog-directory-region", "open_without_snapshot_s") > 0


async def test_what_regions_lack_is_said() -> None:
    run = await Runner(
        Plan(
            workloads=spec.chosen("W6,W10", "quick", {"rate": "1000"}),
            systems={"dlog-directory-region": systems.find("dlog-directory-region")},
            rounds=1,
            voids=0,
            wait_s=0.0,
            thresholds=CALM,
        ),
        look=good,
    ).run()
    assert [one["not_applicable"] for one in run.results] == ["files have loads without faults only"] * 2


async def test_what_turns_share_is_ended_once_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def end_run(self: KafkaSystem) -> None:
        ended.append(self.variant)

    async def start(self: KafkaSystem, room: Path, options: Any) -> None:
        raise OSError("no brokers in this test")

    monkeypatch.setattr(KafkaSystem, "end_run", end_run)
    monkeypatch.setattr(KafkaSystem, "start", start)
    names = ("kafka-aiokafka", "dlog-region")
    plan = Plan(
        workloads=spec.chosen("W23,W24", "quick", CHANGES),
        systems={name: systems.find(name) for name in names},
        rounds=2,
        voids=0,
        wait_s=0.0,
        thresholds=CALM,
    )
    run = await Runner(plan, look=good).run()
    assert {one["error"] for one in run.results} == {"OSError: no brokers in this test"}
    assert ended == list(names)


@pytest.mark.parametrize(
    ("name", "letter"),
    [("dlog-kafka", "F"), ("dlog-kafka-default", "P"), ("dlog-region", "F"), ("kafka-aiokafka", "F")],
)
def test_a_variant_says_what_an_acknowledgement_means(name: str, letter: str) -> None:
    assert systems.find(name).make(name).durability.letter == letter


def test_a_bare_producer_has_topics_with_the_settings_of_regions() -> None:
    bare = KafkaSystem("kafka-aiokafka")
    bare._choose({"aiokafka": "true"})
    configs = bare._topic("a").topic_configs
    assert configs["flush.messages"] == "1" and configs["min.insync.replicas"] == "2"
    assert configs["message.timestamp.type"] == "LogAppendTime"
    plain = KafkaSystem("kafka")
    plain._choose({})
    assert plain._topic("a").topic_configs == {"flush.messages": "1"}


def test_the_directory_piece_of_the_plan_runs_by_its_command(tmp_path: Path) -> None:
    plan = Path(spec.__file__).parent / "plans" / "kafka.toml"
    text = plan.read_text()
    short = tmp_path / "short.toml"
    short.write_text(text[: text.index("[[piece]]", text.index("[[piece]]") + 1)])
    out = tmp_path / "run.json"
    more = ("--rounds", "1", "--seconds", "0.3", "--set", "warmup_s=0.1", "--voids", "0", "--wait", "0")
    assert command.main(["--plan", str(short), "--out", str(out), "--quiet", *more]) == 0
    run = runfile.read(out)
    assert [part["piece"] for part in run.parts] == ["directory-append"]
    assert set(run.systems) == {"dlog-directory", "file"}
