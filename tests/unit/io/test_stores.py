"""Tests which stores a process opens, and its errors for an impossible configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from dlog.errors import ConfigError
from dlog.io.stores import StoresOptions, load_stores, open_stores
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName
from dlog.stores.contract import SegmentNotFoundError, SegmentRef, StoreUnavailableError
from dlog.stores.file.options import FileStoreOptions
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.wire.entry import ENTRY_BYTES_MAX, RECORD_OVERHEAD, Record, control_record, encode_entry
from tests.unit.io.test_opening_stores import Identities
from tests.unprivileged import modes_count

NO_LEDGERS = cast(Any, None)  # no test here uses ledgers


def options(directory: Path | str) -> StoresOptions:
    return StoresOptions(file=FileStoreOptions(directory=str(directory)))


async def names(chosen: StoresOptions, *writable: str) -> list[str]:
    async with open_stores(NO_LEDGERS, Identities(), chosen, Random(1), writable=writable, creates=True) as stores:
        return list(stores)


async def refused(chosen: StoresOptions, *writable: str) -> str:
    with pytest.raises(ConfigError) as caught:
        await names(chosen, *writable)
    return caught.value.message


async def test_every_store_that_is_written_takes_the_largest_entry_of_the_core(tmp_path: Path) -> None:
    body = b"x" * (ENTRY_BYTES_MAX - 2 * RECORD_OVERHEAD - 1)
    largest = encode_entry([Record(0, 1, 1, body), control_record(1, 1, b"x")])
    async with open_stores(NO_LEDGERS, Identities(), options(tmp_path / "segments"), Random(1), creates=True) as stores:
        written = [store for store in stores.values() if store.capabilities.is_written]
    assert len(written) == 2
    for store in written:
        assert sum(map(len, largest)) <= store.capabilities.entry_bytes_max, store.name


async def test_stores_are_what_is_configured_and_the_first_is_the_default(tmp_path: Path) -> None:
    with_files = options(tmp_path / "segments")
    assert await names(StoresOptions()) == ["ledger", "cold"]
    assert await names(with_files) == ["ledger", "file", "cold"]
    assert await names(with_files, "file") == ["file", "cold"]
    assert await names(with_files, "file", "ledger") == ["file", "ledger", "cold"]
    assert await names(with_files, "ledger") == ["ledger", "cold"]


@pytest.mark.parametrize("writable", [("files",), ("ledger", "cold"), ("",)])
async def test_a_store_that_does_not_exist_is_told_with_those_that_do(writable: tuple[str, ...]) -> None:
    said = await refused(StoresOptions(), *writable)
    assert "choose from ledger, file" in said and ",".join(writable) in said


async def test_objects_have_a_root_or_are_told_where_to_set_it(tmp_path: Path) -> None:
    said = await refused(StoresOptions(), "s3-direct")
    assert "[objects]" in said and "DLOG_OBJECTS_ROOT" in said
    with_objects = StoresOptions(objects=ObjectsOptions(root=f"file://{tmp_path}/objects"))
    assert await names(with_objects, "s3-direct", "ledger") == ["s3-direct", "ledger", "cold"]
    assert not os.listdir(tmp_path), "nothing is made before the first use"
    on_hdfs = StoresOptions(objects=ObjectsOptions(root="webhdfs://host:9870/x"))
    assert "only where there is none" in await refused(on_hdfs, "s3-direct")


async def test_files_without_a_directory_are_told_where_to_set_it() -> None:
    said = await refused(StoresOptions(), "file")
    assert "[file]" in said and "DLOG_FILE_DIRECTORY" in said


async def test_a_directory_is_made_with_its_parents_and_used_again(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    stream, number = StreamName("s"), SegmentNumber(1)
    async with open_stores(NO_LEDGERS, Identities(), options(directory), Random(1), creates=True) as stores:
        writer = await stores["file"].create(stream, number, Epoch(1), ())
        await writer.append(EntryId(0), [b"payload"])
    assert (directory / "dlog-segments").exists()
    async with open_stores(NO_LEDGERS, Identities(), options(directory), Random(2), creates=True) as stores:
        assert [place async for place in stores["file"].list()] == [writer.name]
        assert (await stores["file"].recover(SegmentRef(stream, number, writer.name))).end == 0


async def test_a_directory_that_went_away_is_not_taken_for_deleted_segments(tmp_path: Path) -> None:
    """The directory disappears as when its disk is unmounted: reads and take-overs must wait."""
    stream, number = StreamName("s"), SegmentNumber(1)
    async with open_stores(NO_LEDGERS, Identities(), options(tmp_path / "segments"), Random(1), creates=True) as stores:
        writer = await stores["file"].create(stream, number, Epoch(1), ())
        ref = SegmentRef(stream, number, writer.name)
        (tmp_path / "segments").rename(tmp_path / "elsewhere")
        for call in (stores["file"].recover, stores["file"].open_reader, stores["file"].find_tail):
            with pytest.raises(StoreUnavailableError, match="mount its disk"):
                await call(ref)
        (tmp_path / "elsewhere").rename(tmp_path / "segments")
        assert (await stores["file"].recover(ref)).end == NO_ENTRY
        await stores["file"].delete(ref)
        with pytest.raises(SegmentNotFoundError):
            await stores["file"].recover(ref)


async def test_a_file_in_the_way_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "segments"):
        said = await refused(options(directory))
        assert "cannot use the directory of the file store" in said
        assert str(tmp_path / "file") in said
        assert "choose another path" in said or "check the name" in said


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    tmp_path.chmod(0o500)
    yield tmp_path
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("name", ["", "new"])
async def test_a_directory_of_another_user_is_named_with_what_to_do(name: str, forbidden: Path) -> None:
    with modes_count():
        said = await refused(options(forbidden / name))
    assert "run it as the user that owns the path" in said and str(forbidden) in said


def test_sections_come_from_the_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "dlog.toml"
    config.write_text('[file]\ndirectory = "/from/the/file"\nthreads = 2\n[cold]\nroots = ["file:///cold"]\n')
    monkeypatch.delenv("DLOG_FILE_DIRECTORY", raising=False)
    loaded = load_stores(config)
    assert (loaded.file.directory, loaded.file.threads, loaded.cold.roots) == ("/from/the/file", 2, ("file:///cold",))
    monkeypatch.setenv("DLOG_FILE_DIRECTORY", "/from/the/environment")
    assert load_stores(config).file.directory == "/from/the/environment"
    config.write_text("[file]\ndirectroy = 1\n")
    with pytest.raises(ConfigError, match="directroy"):
        load_stores(config)
