"""Tests objects as files: what is written in any pieces is what is read, and an object is visible only when
complete."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from dlog.io.directory_objects import DirectoryObjects
from dlog.stores.contract import StoreUnavailableError
from dlog.stores.object_storage.locations import parse_root

MiB = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 4096, 2 * MiB, 5 * MiB + 17])
@pytest.mark.parametrize("past_the_cache", [True, False])
async def test_what_is_written_in_pieces_is_read_as_one(
    size: int, past_the_cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not past_the_cache:
        refuse_direct(monkeypatch)
    rng = random.Random(size)
    data = rng.randbytes(size)
    objects, place = DirectoryObjects(), parse_root((tmp_path / "a" / "b" / "x.seg").as_uri())
    writer = await objects.create(place)
    at = 0
    while at < size:
        parts = []
        for _ in range(rng.randrange(1, 5)):
            end = at + rng.choice((0, 1, 100, 300_000, 3 * MiB))
            parts.append(memoryview(data)[at:end])
            at = min(end, size)
        await writer.write(parts)
        assert [found async for found in objects.list(parse_root(tmp_path.as_uri()))] == []
    await writer.finish()
    assert await objects.read(place, 0, size + 1) == data
    assert await objects.read_end(place, 10) == (data[-10:], size)
    assert [found.location for found in [one async for one in objects.list(parse_root(tmp_path.as_uri()))]] == [
        str(place)
    ]


async def test_a_disk_that_is_full_leaves_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, place = DirectoryObjects(), parse_root((tmp_path / "x.seg").as_uri())
    writer = await objects.create(place)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreUnavailableError, match="no space left"):
            await writer.write((bytes(3 * MiB),))
    await writer.abort()
    assert os.listdir(tmp_path) == []


def refuse_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse direct I/O, as a file system without it does."""
    really = os.open

    def refusing(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
