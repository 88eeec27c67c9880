"""Tests which stores are opened, and that a wrong directory is not taken for one whose segments are gone."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.errors import ConfigError
from dlog.io.stores import StoresOptions, load_stores, open_stores
from dlog.stores.file.options import FileStoreOptions


class Identities:
    """What metadata records. raced: recorded by another process just before this one records its own."""

    def __init__(self, recorded: str | None = None, raced: str | None = None) -> None:
        self.recorded = recorded
        self._raced = raced

    async def read_store_identity(self, store: str) -> str | None:
        assert store in ("file", "s3-direct")
        return self.recorded

    async def record_store_identity(self, store: str, identity: str) -> None:
        self.recorded = self.recorded or self._raced or identity


def opening(options: StoresOptions, *, creates: bool = False, identities: Identities | None = None) -> Any:
    return open_stores(cast(Any, None), identities or Identities(), options, random.Random(), creates=creates)


def in_files(directory: Path) -> StoresOptions:
    return StoresOptions(file=FileStoreOptions(directory=str(directory)))


async def test_a_directory_is_not_created_again_when_its_disk_is_not_mounted(tmp_path: Path) -> None:
    mounted, identities = tmp_path / "segments", Identities()
    for _ in range(2):
        async with opening(in_files(mounted), creates=True, identities=identities):
            pass
    identity = identities.recorded
    assert identity == (mounted / "dlog-segments-id").read_text()
    mounted.rename(tmp_path / "unmounted")
    for creates in (True, False):
        with pytest.raises(ConfigError, match="its disk is not mounted"):
            async with opening(in_files(mounted), creates=creates, identities=identities):
                pass
        assert not mounted.exists()
    mounted.mkdir()  # an empty mount point
    with pytest.raises(ConfigError, match="its disk is not mounted"):
        async with opening(in_files(mounted), creates=True, identities=identities):
            pass
    assert not os.listdir(mounted)
    mounted.rmdir()
    (tmp_path / "unmounted").rename(mounted)
    async with opening(in_files(mounted), creates=True, identities=identities):
        assert identities.recorded == identity


@pytest.mark.parametrize("creates", [True, False])
async def test_the_directory_of_another_cluster_is_refused(tmp_path: Path, creates: bool) -> None:
    async with opening(in_files(tmp_path), creates=True):
        pass
    with pytest.raises(ConfigError, match=r"mount its disk or correct the path.*recorded=another"):
        async with opening(in_files(tmp_path), creates=creates, identities=Identities("another")):
            pass


async def test_of_two_directories_that_are_created_at_once_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recorded=faster"):
        async with opening(in_files(tmp_path), creates=True, identities=Identities(raced="faster")):
            pass


async def test_a_directory_of_an_earlier_version_is_given_an_identity(tmp_path: Path) -> None:
    (tmp_path / "dlog-segments").touch()
    identities = Identities()
    async with opening(in_files(tmp_path), identities=identities):
        pass
    assert os.listdir(tmp_path) == ["dlog-segments"], "a process that creates nothing gives no identity"
    async with opening(in_files(tmp_path), creates=True, identities=identities):
        assert identities.recorded == (tmp_path / "dlog-segments-id").read_text()
    assert sorted(os.listdir(tmp_path)) == ["dlog-segments", "dlog-segments-id"]


async def test_only_who_creates_segments_makes_the_directory(tmp_path: Path) -> None:
    directory = tmp_path / "segments"
    options = StoresOptions(file=FileStoreOptions(directory=str(directory)))
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{directory}"):
            async with opening(options):
                pass
        assert not directory.exists()
    async with opening(options, creates=True):
        pass
    async with opening(options) as stores:
        assert list(stores) == ["ledger", "file", "cold"]


def test_options_are_named_by_their_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLOG_FILE_DIRECTORY", "/from/environment")
    assert load_stores(None).file.directory == "/from/environment"
    given = load_stores(None, {"file.directory": "/given", "cold.timeout_s": "5", "stream": "s"})
    assert (given.file.directory, given.cold.timeout_s) == ("/given", 5.0)
    with pytest.raises(ConfigError, match="nothing"):
        load_stores(None, {"file.nothing": "1"})
