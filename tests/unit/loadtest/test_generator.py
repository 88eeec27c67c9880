"""Tests a generator process: it names invalid input, and ends when its output is closed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.generators import Generator
from loadtest.lines import Orders, job_from
from loadtest.systems.base import CannotRunError

COMMAND = [sys.executable, "-m", "loadtest.generator"]
ROOT = Path(__file__).parents[3]


def job(room: Path, **changes: object) -> dict[str, object]:
    (room / "log").touch()
    return {
        "kind": "produce",
        "client": "tests.unit.loadtest.toy:ToyClient",
        "address": {"room": str(room), "breach": ""},
        "logs": ["log"],
        "record_bytes": 40,
        "history": str(room / "history"),
        "seconds": 0.3,
        "warmup_s": 0.0,
        "producer": 0,
        "mode": "open",
        "rate": 100,
    } | changes


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "a job, one JSON object"),
        (b"nonsense\n", "a job, one JSON object"),
        (b"[]\n", "kind produce or read"),
        (b'{"kind": "dance"}\n', "kind produce or read"),
        (b'{"kind": "read"}\n', "client"),
        (b'{"kind": "read", "client": "no.such:Thing"}\n', "cannot be imported"),
        (b'{"kind": "read", "client": "json:loads"}\n', "not a subclass"),
    ],
)
def test_a_job_that_cannot_be_done_is_named(line: bytes, said: str) -> None:
    done = subprocess.run(COMMAND, input=line, capture_output=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert said in done.stderr.decode()


def test_a_generator_ends_with_its_runner(tmp_path: Path) -> None:
    line = json.dumps(job(tmp_path, seconds=3600.0)).encode() + b"\n"
    go = json.dumps({"do": "go", "start_ns": time.monotonic_ns()}).encode() + b"\n"
    done = subprocess.run(COMMAND, input=line + go, capture_output=True, timeout=60, check=True, cwd=ROOT)
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "result" and last["failed"] == 0


async def test_a_load_is_told_step_by_step(tmp_path: Path) -> None:
    generator = Generator("producer")
    try:
        await generator.start(COMMAND, job(tmp_path), tmp_path / "stderr")
        generator.go(time.monotonic_ns())
        result = await generator.result(60.0)
        assert result["sent"] == result["acked"] == 31, "100 a second for 0.3 s, and the one that opened the log"
        assert generator.acked > 0
    finally:
        await generator.end()


async def test_a_load_has_the_records_that_it_was_told_to_have(tmp_path: Path) -> None:
    generator = Generator("producer")
    try:
        wanted = job(tmp_path, mode="window", window=8, records=1000, seconds=3600.0)
        await generator.start(COMMAND, wanted, tmp_path / "stderr")
        generator.go(time.monotonic_ns())
        assert (await generator.result(60.0))["acked"] == 1000
    finally:
        await generator.end()


async def test_what_a_generator_fails_of_is_told_with_its_last_words(tmp_path: Path) -> None:
    for command, said in (
        ([sys.executable, "-c", "import sys; sys.exit('gone fishing')"], "gone fishing"),
        ([sys.executable, "-c", "print('not json'); input()"], "sent an invalid line"),
    ):
        generator = Generator("peer")
        try:
            with pytest.raises(CannotRunError, match=said):
                await generator.start(command, {}, tmp_path / "stderr")
        finally:
            await generator.end()


async def test_orders_that_cannot_be_understood() -> None:
    orders = Orders()
    for line in (b"x", b"[]", b"{}", b'{"do": "jump"}', b'{"do": "go"}', b'{"do": "until", "counts": 3}'):
        with pytest.raises(CannotRunError, match="invalid order"):
            orders.receive(line)
    orders.receive(b'{"do": "until", "counts": {"a": 3}}')
    assert orders.until == {"a": 3}
    orders.receive(b'{"do": "go", "start_ns": 7}')
    orders.receive(b'{"do": "stop"}')
    assert await orders.start_ns == 7 and orders.stop.is_set()


async def test_a_stop_before_the_start_is_a_start_that_is_over() -> None:
    orders = Orders()
    orders.receive(b'{"do": "stop"}')
    async with asyncio.timeout(10):
        assert await orders.start_ns <= time.monotonic_ns()


def test_jobs() -> None:
    assert job_from(b'{"kind": "read"}')["kind"] == "read"
