"""Tests objects as files: what is written in any pieces is what is read, and an object is visible only when
complete."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from dlog.io import directory_objects
from dlog.io.directory_objects import DirectoryObjects
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreError, StoreUnavailableError
from dlog.stores.object_storage.locations import parse_location, parse_root
from dlog.stores.object_storage.port import Creation

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


class TestCreateIfAbsent:
    """What is durable when `create_if_absent` returns, by the order of the system calls."""

    @pytest.fixture(autouse=True)
    def durable(self, tmp_path: Path) -> None:
        """The name of the directory is durable."""
        directory_objects._sync_name(tmp_path)

    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Links and syncs, by name, as they happen."""
        calls: list[str] = []
        link, fsync, fdatasync = os.link, os.fsync, os.fdatasync

        def linked(old: Any, new: Any) -> None:
            calls.append("link")
            link(old, new)

        def synced(fd: int) -> None:
            calls.append("sync directory")
            fsync(fd)

        def data_synced(fd: int) -> None:
            calls.append("sync file")
            fdatasync(fd)

        monkeypatch.setattr(os, "link", linked)
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "fdatasync", data_synced)
        return calls

    async def test_the_file_is_synced_before_its_name_appears_and_the_directory_after(
        self, calls: list[str], tmp_path: Path
    ) -> None:
        objects, place = DirectoryObjects(), parse_root((tmp_path / "1").as_uri())
        assert await objects.create_if_absent(place, (b"ours",), head_bytes=4) is Creation.MADE
        assert calls == ["sync file", "link", "sync directory"]

    async def test_the_object_of_another_is_durable_before_it_is_reported(
        self, calls: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "1").write_bytes(b"other")
        objects, place = DirectoryObjects(), parse_root((tmp_path / "1").as_uri())
        assert await objects.create_if_absent(place, (b"ours",), head_bytes=4) is Creation.EXISTS
        assert calls == ["sync file", "link", "sync directory"]
        calls.clear()
        folder = parse_root(tmp_path.as_uri())
        assert [found.location async for found in objects.list(folder)] == [str(place)]
        assert calls == ["sync directory"], "what is listed is durable, too"

    async def test_after_a_failed_sync_the_outcome_is_unknown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        objects, place = DirectoryObjects(), parse_root((tmp_path / "1").as_uri())

        def fails(fd: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            with pytest.raises(StoreUnavailableError) as raised:
                await objects.create_if_absent(place, (b"ours",), head_bytes=4)
            with pytest.raises(StoreUnavailableError):
                assert [found async for found in objects.list(parse_root(tmp_path.as_uri()))] == []
        assert raised.value.outcome_unknown
        assert os.listdir(tmp_path) == ["1"]
        assert await objects.create_if_absent(place, (b"ours",), head_bytes=4) is Creation.MADE

    async def test_a_file_system_without_hard_links_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(old: Any, new: Any) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", fails)
        objects, place = DirectoryObjects(), parse_root((tmp_path / "1").as_uri())
        with pytest.raises(MisconfiguredError, match="not permitted"):
            await objects.create_if_absent(place, (b"ours",), head_bytes=4)
        assert os.listdir(tmp_path) == []


async def test_nothing_is_created_below_a_mount_point_without_its_disk(tmp_path: Path) -> None:
    objects, folder = DirectoryObjects(), parse_root(f"file://{tmp_path}/mounted/cluster")
    marker = folder.below("marker")

    async def create() -> Creation:
        return await objects.create_if_absent(folder.below("a", "b"), (b"ours",), head_bytes=4, marker=marker)

    os.mkdir(tmp_path / "mounted")
    assert await objects.now_unix_ms(folder.below("a")) > 0
    for _ in range(2):  # also where somebody made the folders again
        with pytest.raises(StoreUnavailableError, match="mounted"):
            await create()
        with pytest.raises(StoreUnavailableError, match="mounted"):
            await objects.create(folder.below("a", "c"), marker=marker)
        assert not [name for _, _, names in os.walk(tmp_path) for name in names]
        os.makedirs(folder.below("a").path, exist_ok=True)
    assert await objects.create_if_absent(marker, (b"dlog",), head_bytes=4) is Creation.MADE
    assert await create() is Creation.MADE


async def test_an_object_whose_disk_is_lost_while_it_is_created_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, folder = DirectoryObjects(), parse_root(tmp_path.as_uri())
    marker, link = tmp_path / "marker", os.link

    def linked(old: Any, new: Any) -> None:
        link(old, new)
        marker.unlink()

    marker.touch()
    monkeypatch.setattr(os, "link", linked)
    with pytest.raises(StoreUnavailableError, match="mounted") as raised:
        await objects.create_if_absent(folder.below("a"), (b"ours",), head_bytes=4, marker=folder.below("marker"))
    assert raised.value.outcome_unknown


async def test_asking_for_the_time_makes_no_directory(tmp_path: Path) -> None:
    folder = parse_root(f"file://{tmp_path}/mounted/cluster/streams")
    assert await DirectoryObjects().now_unix_ms(folder) > 0
    assert not os.listdir(tmp_path)


def refuse_below(root: Path, number: int, patch: pytest.MonkeyPatch, *names: str) -> None:
    """Have system calls fail for the directory and all below it."""
    for name in names:
        really = getattr(os, name)

        def failing(path: Any, *rest: Any, really: Any = really, **more: Any) -> Any:
            if isinstance(path, str | Path) and Path(path).is_relative_to(root):
                raise OSError(number, os.strerror(number))
            return really(path, *rest, **more)

        patch.setattr(os, name, failing)


class TestAMountThatIsStaleOrDead:
    """Every call raises a store error with the reason, and nothing is taken for missing."""

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.ESTALE, StoreUnavailableError),
            (errno.EIO, StoreUnavailableError),
            (errno.ENOTCONN, StoreUnavailableError),
            (errno.EACCES, MisconfiguredError),
        ],
    )
    async def test_every_call_raises_a_store_error(
        self, number: int, kind: type[StoreError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mounted = tmp_path / "mounted"
        objects, folder = DirectoryObjects(), parse_root(mounted.as_uri())
        marker, place, data = folder.below("marker"), folder.below("a", "b"), (b"ours",)
        assert await objects.create_if_absent(marker, data, head_bytes=4) is Creation.MADE
        assert await objects.create_if_absent(place, data, head_bytes=4, marker=marker) is Creation.MADE
        begun = await objects.create(folder.below("begun"), marker=marker)
        with monkeypatch.context() as patch:
            refuse_below(mounted, number, patch, "stat", "scandir", "open", "unlink", "mkdir", "link", "replace")
            for call in (
                lambda: objects.create_if_absent(folder.below("c"), data, head_bytes=4, marker=marker),
                lambda: objects.create_if_absent(folder.below("c"), data, head_bytes=4),
                lambda: objects.create(folder.below("c"), marker=marker),
                lambda: objects.read(place, 0, 4),
                lambda: objects.read_end(place, 4),
                lambda: objects.delete(place),
                lambda: objects.delete_many([place, marker]),
                lambda: objects.now_unix_ms(folder.below("a")),
                begun.finish,
            ):
                with pytest.raises(kind, match=os.strerror(number).lower()):
                    await call()
            for listing in (objects.list, objects.unfinished):
                for listed in (folder, folder.below("a"), folder.below("none")):
                    with pytest.raises(kind, match=os.strerror(number).lower()):
                        assert [one async for one in listing(listed)] == []
            await begun.abort()
        assert [one.location async for one in objects.list(folder)] == [str(place), str(marker)]

    async def test_only_the_examination_of_names_fails(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        objects, folder = DirectoryObjects(), parse_root(tmp_path.as_uri())
        assert await objects.create_if_absent(folder.below("a", "b"), (b"ours",), head_bytes=4) is Creation.MADE
        refuse_below(tmp_path, errno.ESTALE, monkeypatch, "stat")
        for listed in (folder, folder.below("a"), folder.below("none")):
            with pytest.raises(StoreUnavailableError, match="stale file handle"):
                assert [one async for one in objects.list(listed)] == []
        with pytest.raises(StoreUnavailableError, match="stale file handle"):
            await objects.read(folder.below("none"), 0, 4)

    async def test_a_directory_that_another_machine_deleted_while_it_is_listed_has_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refuse_below(tmp_path / "gone", errno.ESTALE, monkeypatch, "scandir")
        folder = parse_root(tmp_path.as_uri())
        assert [one async for one in DirectoryObjects().list(folder.below("gone"))] == []
        with pytest.raises(SegmentNotFoundError):
            await DirectoryObjects().read(folder.below("gone"), 0, 4)


async def test_objects_in_a_directory_of_any_name(tmp_path: Path) -> None:
    objects, root = DirectoryObjects(), parse_root(f"file://{tmp_path}/Grö ße 100%25")
    names = ["a", "b/c", "d"]
    for name in names:
        place = root.below(name)
        assert await objects.create_if_absent(place, [b"text"], head_bytes=4) is Creation.MADE
        assert await objects.create_if_absent(place, [b"TEXT"], head_bytes=4) is Creation.EXISTS
        assert (tmp_path / "Grö ße 100%" / name).read_bytes() == b"text"
        assert await objects.read(place, 1, 2) == b"ex"
    listed = [found.location async for found in objects.list(root)]
    assert listed == [str(root.below(name)) for name in names]
    behind = parse_location(listed[0])
    assert [found.location async for found in objects.list(root, behind=behind)] == listed[1:]
    writer = await objects.create(root.below("e"))
    await writer.write((b"x",))
    (left,) = [found async for found in objects.unfinished(root)]
    await objects.discard(left)
    assert [found async for found in objects.unfinished(root)] == []
    assert await objects.now_unix_ms(root) > 0
    await objects.delete(root.below("a"))
    await objects.delete_many([root.below("b/c"), root.below("d")])
    assert [found async for found in objects.list(root)] == []
    assert set(os.listdir(tmp_path)) == {"Grö ße 100%"}
