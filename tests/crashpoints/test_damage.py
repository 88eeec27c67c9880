"""J5: flipped bits, lost, stale and misdirected sectors, files gone, cut off or swapped: right bytes, or "unknown".

DLOG_CRASH_FLIPS: share of the bytes of journals that are flipped (default 0.3; in other files every byte in use is).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.bookie.index import RunTable
from dlog.bookie.manifest import Manifest, decode
from dlog.errors import DamagedError
from dlog.io.journal_files import JournalFiles
from dlog.io.ledger_dir import LedgerDir
from tests.crashpoints.damage import Held, flips, held, judge_damaged, wounds

pytestmark = pytest.mark.long
SHARE = float(os.environ.get("DLOG_CRASH_FLIPS", "0.3"))
KINDS = {"journal", "index", "entries", "MANIFEST", "VERSION"}


def hurt_all(before: Held, seed: int, share: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    for what, hurt in wounds(before.image, random.Random(seed), 300):
        judge_damaged(before, hurt, what, counts)
    for what, hurt in flips(before.image, random.Random(seed), share):
        judge_damaged(before, hurt, what, counts)
    return counts


@pytest.mark.parametrize("alone_bytes", [32 << 10, 1], ids=["read together", "read one by one"])
def test_damage_anywhere_gives_right_bytes_or_unknown(alone_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.io.ledger_dir._ALONE_BYTES", alone_bytes)
    counts = hurt_all(held(), 1, SHARE)
    for kind in KINDS:
        assert counts[f"flip {kind}"] and counts[f"gone {kind}"] and counts[f"sector {kind}"], kind
    assert counts["served"] > 500 and counts["refused"] > 500 and counts["unknown"] > 500
    assert counts["written"] > 500
    print(dict(counts))


def _entries_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dlog.io.ledger_dir.check_entry", lambda *_: None)


def _chunks_are_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dlog.io.sorted_index.parse_chunk", lambda data, ledger: data[16:])


def _damage_is_told_as_absence(patch: pytest.MonkeyPatch) -> None:
    lookup = LedgerDir.lookup

    def soothing(directory: LedgerDir, ledger: int, entry: int, entries_max: int, bytes_max: int) -> list[bytes]:
        try:
            return lookup(directory, ledger, entry, entries_max, bytes_max)
        except DamagedError:
            return []

    patch.setattr(LedgerDir, "lookup", soothing)


def _damaged_runs_are_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunTable, "find", _find_nothing_odd)


_find = RunTable.find


def _find_nothing_odd(table: RunTable, ledger: int, entry: int) -> int:
    return _find(table, ledger, entry) if len(table) > 1 else -1


def _damaged_journal_is_skipped(patch: pytest.MonkeyPatch) -> None:
    replay = JournalFiles.replay
    patch.setattr(JournalFiles, "replay", lambda files, mark, on_damage: replay(files, mark, lambda damage: None))


class _Anything(int):
    """Equal to every number."""

    def __ne__(self, other: object) -> bool:
        return False

    __eq__ = object.__eq__
    __hash__ = int.__hash__


def _runs_are_not_told_apart(patch: pytest.MonkeyPatch) -> None:
    """Runs are identified by size and number alone: two directories have runs of one number."""

    def forgetful(data: bytes) -> Manifest:
        manifest = decode(data)
        return replace(manifest, runs=tuple(run._replace(crc=_Anything()) for run in manifest.runs))

    patch.setattr("dlog.io.ledger_dir.decode", forgetful)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    _entries_are_not_checked,
    _chunks_are_not_checked,
    _damage_is_told_as_absence,
    _damaged_runs_are_left_out,
    _damaged_journal_is_skipped,
    _runs_are_not_told_apart,
]


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_a_planted_defect_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held()
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        hurt_all(before, 2, 0.5)
