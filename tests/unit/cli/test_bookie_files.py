"""Tests `dlog bookie fsck` and `convert`: their output, their exit codes, and what they refuse."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dlog.bookie.journal import FIRST_MARKS
from dlog.bookie.manifest import IndexKind
from dlog.cli.main import main
from dlog.io.disk import RealDisk
from dlog.io.ledger_dir import LedgerDir
from tests.stopped_bookie import stopped_bookie
from tests.unit.bookie.test_ledger_dir import half, row


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
    note = (
        f"this bookie starts read-only for good and serves what is left; replace it (`dlog bookie replace`): {ledgers}"
    )
    assert note in capsys.readouterr().err
    assert not main(["bookie", "fsck", str(ledgers.parent)])
    assert note in capsys.readouterr().err, "it stays so"


def test_a_bookie_that_is_read_only_after_its_index_db_lost_rows_is_said(
    ledgers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = LedgerDir(RealDisk(), str(ledgers), 1 << 20)
    made.load()
    made.flush(half(*[(3, entry) for entry in range(3000)]), [row(3, 2999)], FIRST_MARKS)
    made.close()
    assert converted(ledgers, "db") == 0
    path = min(ledgers.glob("database-*/*.sst"))
    flip(path, path.stat().st_size // 3)  # among the entries, which come first
    assert main(["bookie", "fsck", str(ledgers.parent)]) == 1
    said = capsys.readouterr()
    assert "\nchunk " in said.out and "\nrun " not in said.out and "read-only" not in said.err
    for arguments in (["--repair"], []):
        assert main(["bookie", "fsck", str(ledgers.parent), *arguments]) == 0
        assert "this bookie starts read-only for good" in capsys.readouterr().err


def test_notes_are_no_failure(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (ledgers / "entries-000000ff").write_bytes(b"x")
    code, told = checked(capsys, ledgers.parent)
    (one,) = told["findings"]
    assert (code, told["clean"], one["kind"], one["note"]) == (0, True, "file", True)


@pytest.mark.parametrize("words", [["fsck"], ["convert", "--to", "db"]], ids=" ".join)
def test_a_running_bookie_is_refused(words: list[str], ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RealDisk().lock(str(ledgers))
    try:
        assert main(["bookie", *words, str(ledgers.parent)]) == 1
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


# ---- convert ---------------------------------------------------------------------------------------------------------


def converted(ledgers: Path, kind: str) -> int:
    return main(["bookie", "convert", str(ledgers.parent), "--to", kind])


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"LOCK"}


def test_an_index_is_converted_and_converted_back(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = LedgerDir(RealDisk(), str(ledgers), 1)
    states = before.load()
    packets = before.lookup(1, 0, 100, 1 << 20) + before.lookup(1, 10, 100, 1 << 20)
    before.close()
    assert len(packets) == 20
    for old, kind, name in (("sorted", "db", "database-00000004"), ("db", "sorted", "index-00000005")):
        assert converted(ledgers, kind) == 0
        said = capsys.readouterr()
        assert said.out == f"converted: {ledgers}: from {old} to {kind}, 2 ledgers, 40 entries\n"
        assert said.err == f'set [bookie] index = "{kind}" before you start the bookie\n'
        assert files(ledgers) == {"MANIFEST", "VERSION", "entries-00000001", name}
        assert converted(ledgers, kind) == 0
        said = capsys.readouterr()
        assert (said.out, said.err) == (f"nothing to do: {ledgers}: its index is {kind}\n", "")
        code, told = checked(capsys, ledgers.parent)
        assert (code, told["clean"], told["findings"]) == (0, True, [])
        made = LedgerDir(RealDisk(), str(ledgers), 1, kind=IndexKind(kind))
        assert made.load() == states
        assert made.lookup(1, 0, 100, 1 << 20) + made.lookup(1, 10, 100, 1 << 20) == packets
        made.close()


def test_a_conversion_as_json(ledgers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for changed, before, entries in ((True, "sorted", 40), (False, "db", 0)):
        assert main(["bookie", "convert", str(ledgers.parent), "--to", "db", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        (one,) = told["directories"]
        assert told["index"] == "db" and one["directory"] == str(ledgers)
        assert (one["converted"], one["before"], one["entries"]) == (changed, before, entries)


def test_a_conversion_without_rocksdict_is_refused(
    ledgers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(ledgers)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "rocksdict", None)
        assert converted(ledgers, "db") == 2
        assert 'pip install "dlogd[db]"' in capsys.readouterr().err
        assert files(ledgers) == before
    assert converted(ledgers, "db") == 0
    before = files(ledgers)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    assert converted(ledgers, "sorted") == 2
    assert 'pip install "dlogd[db]"' in capsys.readouterr().err
    assert files(ledgers) == before


@pytest.mark.parametrize("kind", ["db", "sorted"])
def test_a_damaged_index_is_not_converted_before_a_repair(
    kind: str, ledgers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ledgers / "index-00000002"
    if kind == "sorted":
        assert converted(ledgers, "db") == 0
        path = min(ledgers.glob("database-*/*.sst"))
    flip(path, 32 + 16 + 5)
    before = files(ledgers)
    capsys.readouterr()
    assert converted(ledgers, kind) == 1
    assert "run `dlog bookie fsck DIR --repair` first, then convert again" in capsys.readouterr().err
    assert files(ledgers) == before
    assert main(["bookie", "fsck", str(ledgers.parent), "--repair"]) == 0
    assert converted(ledgers, kind) == 0


def test_what_is_no_bookies_directory_is_not_converted(
    ledgers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bookie", "convert", str(tmp_path / "nowhere"), "--to", "db"]) == 1
    assert "directory has no VERSION file, so it is not a bookie's" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
    assert converted(ledgers, "rocks") == 2
    (ledgers / "MANIFEST").unlink()
    assert converted(ledgers, "db") == 1
    assert "MANIFEST is missing" in capsys.readouterr().err
