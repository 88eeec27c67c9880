"""Tests the chain of chunks in every order of events, and that a defect in any part of it is found."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.objects.chain import ChainTail, ChainWriter
from tests.simulation.chain_fencing import Explorer, Parts, main
from tests.simulation.mutants import edited


@pytest.mark.parametrize(
    ("writers", "others", "entries", "restarts", "copies"),
    [
        ("a", "t", 3, 0, 2),
        ("a", "r", 3, 1, 2),
        ("a", "rs", 1, 0, 1),
        ("a", "rt", 2, 0, 2),
        ("ab", "r", 1, 0, 2),
    ],
)
def test_what_is_confirmed_is_kept_in_every_order_of_events(
    writers: str, others: str, entries: int, restarts: int, copies: int
) -> None:
    explorer = Explorer(writers=writers, others=others, entries=entries, restarts=restarts, copies=copies)
    assert explorer.run() == ""
    assert explorer.visited > 100


def _writer(*edits: tuple[str, str, str]) -> dict[str, Any]:
    return {"writer": edited(ChainWriter, *edits)}


def _tail(*edits: tuple[str, str, str]) -> dict[str, Any]:
    return {"tail": edited(ChainTail, *edits)}


DEFECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "any chunk that is there is taken for ours": ("C1 C3", {"resolves": False}),
    "the chunk that was made last is confirmed": (
        "C1",
        _writer(
            (
                "_advance",
                "while writer.in_flight and writer.in_flight[0][2]:",
                "while any(made for _, _, made in writer.in_flight):",
            )
        ),
    ),
    "a writer goes on behind the chunk of another": (
        "C1 C3",
        _writer(("after", "case ChunkPut(_, Put.EXISTS):", "case ChunkPut(_, Put.EXISTS) if False:")),
    ),
    "an unclear chunk is confirmed": (
        "C1",
        _writer(("after", "case ChunkPut(_, Put.UNKNOWN):", "case ChunkPut(_, Put.UNKNOWN) if False:")),
    ),
    "a chunk behind a gap is believed": (
        "C3 C4",
        _tail(("_heads_read", "[head for at, head in enumerate(heads) if head.number == self.first + at]", "heads")),
    ),
    "a chunk behind a fence is believed": (
        "C3",
        _tail(("_heads_read", "counting = heads_that_count(before_gap, self.end)", "counting = tuple(before_gap)")),
    ),
    "only the last chunk is looked at": (
        "C3 C4",
        _tail(("after", "search.low - self.ahead - 1", "search.low - 1")),
    ),
    "a recovery that loses its number takes it for the end": (
        "C3",
        _tail(
            (
                "after",
                "replace(self, is_outrun=True)._stop_ahead()",
                "self, [TailFound(self.end, number, self.payload_bytes, True)]",
            )
        ),
    ),
    "a fence leaves a gap below it": (
        "C3",
        _tail(("_heads_read", "+ len(counting)", "+ len(counting) + 1")),
    ),
    "a recovery that is unsure takes its fence for made": (
        "C3",
        _tail(
            ("after", "case Put.UNKNOWN:", "case Put.UNKNOWN if False:"),
            ("after", "case Put.MADE if number == self.next_number:", "case Put.MADE | Put.UNKNOWN:"),
        ),
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    invariants, parts = DEFECTS[name]
    found = ""
    for writers, others, entries, restarts in (("a", "r", 3, 0), ("a", "r", 4, 1), ("ab", "r", 1, 0)):
        explorer = Explorer(
            Parts(**parts), writers=writers, others=others, entries=entries, restarts=restarts, copies=1
        )
        found = found or explorer.run()
    assert found[:2] in invariants.split(), found


def test_the_command_prints_the_number_of_states(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--entries", "1", "--others", "t"]) == 0
    assert "states; no violation" in capsys.readouterr().out
