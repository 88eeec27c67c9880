"""Tests `dlog bookie fsck`: its output, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dlog.cli.main import main
from dlog.io.disk import RealDisk
from dlog.io.ledger_dir import LedgerDir
from tests.stopped_bookie import stopped_bookie


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    return Path(stopped_bookie(tmp_path / "b"))


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def checked(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    code = main(["bookie", "fsck", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_healthy_bookie(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in ledgers.iterdir()}
    assert main(["bookie", "fsck", str(ledgers.parent)]) == 0
    said = capsys.readouterr()
    assert said.out == "2 ledgers, 40 entries in the index, 40 of them good (1.4 KiB), 0 findings, 0 notes\n"
    assert said.err == ""
    code, told = checked(capsys, ledgers.parent)
    assert (code, told["clean"], told["findings"], told["rebuilt"]) == (0, True, [], [])
    assert told["ledgers"][0] == {
        "ledger": 1, "indexed": 20, "good": 20, "missing": 0, "damaged": 0, "bytes": 720, "last": 19, "lac": 18
    }  # fmt: skip
    after = {path.name: path.read_bytes() for path in ledgers.iterdir()}
    assert {name: data for name, data in after.items() if name != "LOCK"} == before


def test_damage_is_told_and_repaired(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(ledgers / "index-00000002", 32 + 16 + 5)
    assert main(["bookie", "fsck", str(ledgers.parent)]) == 1
    said = capsys.readouterr()
    assert said.out.startswith(
        f"chunk      {ledgers}/index-00000002: ledger 1, 10 entries of 0 to 9: a part of the index"
    )
    assert "--repair` rebuilds the index" in said.err
    assert main(["bookie", "fsck", str(ledgers.parent), "--repair"]) == 0
    said = capsys.readouterr()
    assert f"rebuilt: {ledgers}; what is left:\n2 ledgers, 40 entries" in said.out and not said.err
    made = LedgerDir(RealDisk(), str(ledgers), 1)
    assert {row.ledger: row.fenced for row in made.load()} == {1: False, 2: True}
    assert len(made.lookup(1, 0, 100, 1 << 20)) == 10
    code, told = checked(capsys, ledgers.parent, "--repair")
    assert (code, told["rebuilt"], told["before"]) == (0, [], [])


def test_lost_states_are_said(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ledgers / "index-00000002").unlink()
    code, told = checked(capsys, ledgers.parent)
    assert code == 1 and [one["kind"] for one in told["findings"]] == ["run"]
    assert main(["bookie", "fsck", str(ledgers.parent), "--repair"]) == 0
    assert "starts read-only" in capsys.readouterr().err
    assert not main(["bookie", "fsck", str(ledgers.parent)])


def test_notes_are_no_failure(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ledgers / "entries-000000ff").write_bytes(b"x")
    code, told = checked(capsys, ledgers.parent)
    (one,) = told["findings"]
    assert (code, told["clean"], one["kind"], one["note"]) == (0, True, "file", True)


def test_a_running_bookie_is_refused(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RealDisk().lock(str(ledgers))
    try:
        assert main(["bookie", "fsck", str(ledgers.parent)]) == 1
    finally:
        lock.close()
    assert "another bookie runs on this directory; stop it first" in capsys.readouterr().err


def test_what_is_no_bookies_directory_is_refused_and_left_alone(
    ledgers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "nowhere", ledgers):
        assert main(["bookie", "fsck", str(wrong), "--repair"]) == 1
        assert "directory has no VERSION file, so it is not a bookie's" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists() and not list((tmp_path / "empty").iterdir())
    assert not (ledgers / "journal").exists()


def test_directories_elsewhere_are_named(ledgers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(stopped_bookie(tmp_path / "other"))
    assert main(["bookie", "fsck", str(ledgers.parent), "--ledger-dirs", str(other)]) == 1
    assert "belong to several bookies" in capsys.readouterr().err
    arguments = ["--journal-dirs", str(ledgers.parent / "journal"), "--ledger-dirs", str(ledgers)]
    assert main(["bookie", "fsck", "unused", *arguments]) == 0
    capsys.readouterr()
    second = tmp_path / "second"
    shutil.copytree(ledgers, second)
    assert main(["bookie", "fsck", "unused", *arguments[:3], f"{ledgers},{second}"]) == 1
    assert f"ledgers={ledgers}" in capsys.readouterr().err
    shutil.copytree(ledgers.parent, tmp_path / "copy" / "b")
    assert main(["bookie", "fsck", str(tmp_path / "copy" / "b")]) == 0, "a copy of all of them is as good"
