"""Tests workload files: all of the repository are valid, and an invalid field is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.errors import ConfigError
from loadtest import spec
from loadtest.report import columns

WANTED = [f"W{n}" for n in (*range(1, 9), *range(10, 15), *range(19, 38))]
HEAD = 'id = "X"\nname = "x"\nasks = "?"\n'


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + text)
    return str(path)


def test_every_workload_of_the_table_is_there_and_sound_at_both_scales() -> None:
    assert spec.ids() == WANTED
    for name in spec.ids():
        for scale in ("quick", "full"):
            workload = spec.load(name, "quick" if scale == "quick" else "full")
            assert workload.id == name and workload.cells and workload.asks
            assert all(cell.shape.duration_s() > 0 for cell in workload.cells)
            assert columns.of(name), name
            labels = [cell.label for cell in workload.cells]
            assert len(set(labels)) == len(labels)


def test_a_workload_is_known_by_its_name_too() -> None:
    assert spec.load("append-max").id == "W3"
    assert [w.id for w in spec.chosen("W3, kill-writer", "quick", {})] == ["W3", "W10"]
    assert [w.id for w in spec.chosen("all", "quick", {})] == WANTED


def test_scales_and_changes_and_matrix(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "rate = 5\n[matrix]\nrecord_bytes = [100, 200]\nlogs = [1, 2]\n"
        "[quick]\nseconds = 2\n[full]\nrate = 9\nmatrix = { record_bytes = [300] }\n",
    )
    quick, full = spec.load(path, "quick"), spec.load(path, "full")
    assert [(c.shape.record_bytes, c.shape.logs) for c in quick.cells] == [(100, 1), (100, 2), (200, 1), (200, 2)]
    assert [c.shape.record_bytes for c in full.cells] == [300, 300]
    assert {c.shape.seconds for c in quick.cells} == {2.0} and {c.shape.seconds for c in full.cells} == {60.0}
    assert {c.shape.rate for c in full.cells} == {9}
    changed = spec.load(path, "quick", {"record_bytes": "1KiB", "rate": "7", "seconds": "0.5"})
    assert [(c.shape.record_bytes, c.shape.rate, c.shape.seconds) for c in changed.cells] == [(1024, 7, 0.5)] * 2
    assert changed.cells[0].label == "1 KiB, 1 log"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("colour = 1", "unknown option"),
        ('mode = "sideways"', "mode must be one of"),
        ('script = "fault"', "fault must be one of"),
        ('script = "dance"', "script must be one of"),
        ('script = "examine"', "subject must be one of"),
        ("objects = 0", "objects must be at least 1"),
        ("record_bytes = 10", "at least 24"),
        ("record_bytes = 2000000", "at most"),
        ("batch_bytes = 50", "at least record_bytes"),
        ("rate = 0", "rate must be at least 1"),
        ("seconds = 0", "seconds must be in"),
        ("readers = -1", "range"),
        ('rate = "many"', "rate"),
        ("matrix = 3", "must be tables"),
        ("[matrix]\nrate = []", "non-empty lists"),
        ("[matrix]\ncolour = [1]", "non-empty lists"),
        ("rate = = 1", "not readable TOML"),
    ],
)
def test_a_bad_workload_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec.load(written(tmp_path, text))


def test_unknown_names() -> None:
    for name in ("W99", "no-such.toml", "../etc/passwd", ""):
        with pytest.raises(ConfigError, match=r"no such workload|no workload"):
            spec.chosen(name, "quick", {})
    with pytest.raises(ConfigError, match="unknown option"):
        spec.load("W3", "quick", {"colour": "red"})


def test_a_head_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text("rate = 1\n")
    with pytest.raises(ConfigError, match="option missing"):
        spec.load(str(path))


def test_what_a_shape_needs_of_a_system() -> None:
    needs = {cell.shape.script: cell.shape.needs() for name in WANTED for cell in spec.load(name).cells}
    assert "faults" in needs["fault"] and "handover" in needs["hand-over"]
    assert spec.load("W4").cells[0].shape.needs() == ["batch"]
    assert spec.load("W7").cells[0].shape.needs() == ["tail"]
    assert spec.load("W12").cells[0].shape.needs() == ["faults", "storage"]
    shape = spec.load("W4").cells[0].shape
    assert (shape.batch_records, shape.window_records) == (100, 1600)


def test_a_list_of_cells_is_cut_to_those_that_are_named() -> None:
    cells = spec.load("W2", "quick", {"rate": "1000,20000", "record_bytes": "100"}).cells
    assert [(cell.shape.rate, cell.label) for cell in cells] == [
        (1000, "100 B, 1,000/s"),
        (20_000, "100 B, 20,000/s"),
    ]
