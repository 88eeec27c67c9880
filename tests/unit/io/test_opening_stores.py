"""Tests which stores are opened, and that a wrong directory is not taken for one whose segments are gone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from dlog.errors import ConfigError
from dlog.io.stores import StoresOptions, load_stores, open_stores
from dlog.stores.file.options import FileStoreOptions


def opening(options: StoresOptions, *, creates: bool = False) -> Any:
    return open_stores(cast(Any, None), options, random.Random(1), creates=creates)


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
