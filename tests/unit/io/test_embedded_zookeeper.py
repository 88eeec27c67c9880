"""Tests the heap size of the embedded ZooKeeper, and the report of its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.io import embedded_zookeeper
from dlog.io.embedded_zookeeper import HEAP_USABLE_MIN_MIB, OUTPUT, EmbeddedZooKeeper, heap_mib_for, main

MiB = 1024 * 1024


@pytest.mark.parametrize(
    ("memory_mib", "heap_mib"),
    [(64, 128), (1024, 128), (2048, 256), (4096, 512), (8192, 1024), (1_000_000, 1024)],
)
def test_the_heap_follows_the_memory_within_bounds(memory_mib: int, heap_mib: int) -> None:
    assert heap_mib_for(memory_mib * MiB) == heap_mib


def test_a_server_without_a_heap_of_its_own_gets_one_by_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_zookeeper, "memory_bytes", lambda: 3000 * MiB)
    assert EmbeddedZooKeeper(tmp_path).heap_mib == 375
    assert EmbeddedZooKeeper(tmp_path, heap_mib=64).heap_mib == 64


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (b"", "nothing"),
        (b"SLF4J(W): No SLF4J providers were found.\n", "nothing"),
        (b"one\ntwo\n\nthree\nfour\n", "two | three | four"),
        (b"12:00 main ERROR no room\njava.io.IOException: full\n\tat a.b.c(D.java:1)\n\tat e\n", None),
        (b"x" * 100_000 + b"\n\xff\xfe end\n", None),
    ],
)
def test_the_last_words_are_few_and_without_stack_traces(output: bytes, words: str | None, tmp_path: Path) -> None:
    (tmp_path / OUTPUT).write_bytes(output)
    told = EmbeddedZooKeeper(tmp_path).last_words()
    if words is not None:
        assert told == words
    assert "\n" not in told
    assert "\tat" not in told
    assert len(told) < 1000


def test_a_stack_trace_does_not_hide_its_reason(tmp_path: Path) -> None:
    trace = b"".join(b"\tat org.apache.Frame%d(F.java:1)\n" % n for n in range(100))
    (tmp_path / OUTPUT).write_bytes(b"12:00 main ERROR cannot start\njava.io.IOException: no room\n" + trace)
    assert EmbeddedZooKeeper(tmp_path).last_words() == "12:00 main ERROR cannot start | java.io.IOException: no room"


def test_a_server_that_was_never_started_said_nothing(tmp_path: Path) -> None:
    assert EmbeddedZooKeeper(tmp_path / "none").last_words() == "nothing"


def test_a_full_heap_is_told_with_its_size_and_the_way_to_a_larger_one(tmp_path: Path) -> None:
    (tmp_path / OUTPUT).write_text("Terminating due to java.lang.OutOfMemoryError: GC overhead limit exceeded\n")
    told = EmbeddedZooKeeper(tmp_path, heap_mib=200).last_words()
    assert told.startswith("Terminating due to java.lang.OutOfMemoryError")
    assert "200 MiB" in told
    assert "30,000 streams" in told
    assert "--zookeeper-heap-mib" in told


def test_a_heap_with_which_no_server_starts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--dir", str(tmp_path), "--heap-mib", str(HEAP_USABLE_MIN_MIB - 1)])
    assert exit_.value.code == 2
    assert "at least 16" in capsys.readouterr().err
