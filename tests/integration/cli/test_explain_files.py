"""Commands on a cluster without bookies, whose segments are in files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.test_commands import ok, told
from tests.integration.cli.up import Up, dlog, up_for_many
from tests.integration.spark.parts import need_spark


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    flags = ("--bookies", "0", "--write-proxies", "1", "--read-proxies", "1")
    with up_for_many(tmp_path_factory, "files-up", *flags) as running:
        yield running


def test_a_record_is_found_in_its_file(files: Up) -> None:
    ok(files, "create", "s")
    assert b"store      file\n" in ok(files, "show", "s")
    ok(files, "append", "s", given=b"one\ntwo\n")
    explained = told(files, "explain", "s", "1:0:1")
    assert "record 1 of a batch of 2" in explained["slot"]
    path, _, state = explained["file"].partition(" ")
    assert "being written" in state
    assert Path(path).is_relative_to(files.running.file_directory)
    offset = int(explained["offset"].partition(",")[0])
    data = Path(path).read_bytes()[offset:]
    assert b"one" in data[8 : 8 + int.from_bytes(data[:4], "big")]
    assert "not confirmed" in told(files, "explain", "s", "1:9:0")["entry"]
    assert f"file         {path}" in ok(files, "explain", "s", "1:0:0").decode()


def test_a_setting_of_another_store_is_refused(files: Up) -> None:
    ok(files, "create", "plain")
    for command in (("create", "other"), ("alter", "plain")):
        code, _, err = dlog(*command, "--ensemble", "1", directory=files.directory)
        assert code != 0 and "those of this store are none: store=file setting=ensemble" in err
    assert "ensemble" not in json.loads(ok(files, "show", "plain", "--json"))["settings"]


def test_a_damaged_record_is_said_to_be_and_where(files: Up) -> None:
    ok(files, "create", "damaged")
    ok(files, "append", "damaged", given=b"precious\n")
    path = Path(told(files, "explain", "damaged", "1:0:0")["file"].partition(" ")[0])
    path.write_bytes(path.read_bytes().replace(b"precious", b"precioux"))
    explained = told(files, "explain", "damaged", "1:0:0")
    assert "cannot be read" in explained["entry"] and "checksum" in explained["entry"]
    assert explained["offset"].startswith("8192,")


def test_sinks_are_listed_without_a_bookie(files: Up) -> None:
    need_spark()
    assert told(files, "sink", "ls") == []
