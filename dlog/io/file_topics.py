"""Topics in a directory of the local file system, for regions without Kafka.

    <root>/<topic>/settings              JSON; the topic exists if this does
    <root>/<topic>/first                 decimal: the first offset that is not deleted; 0 without the file
    <root>/<topic>/id                    hex: the topic's id, drawn when it is first asked for; removed with the topic
    <root>/<topic>/<20 digits>.records   the records from this offset on

    records file:  head | watermark | frame ...
    head:          version u8 | nonce 16 | first offset u64 | crc32c u32
    watermark:     position u64 | next offset u64 | checksum of the frame before u32 | crc32c u32
    frame:         length u32 | crc32c u32 | first offset u64 | count u32 | record ...
    record:        key length u32 | value length u32 | key | value

Big-endian. `length` counts what follows the checksum. A frame's checksum begins with that of the frame before it, and
the first one's with the nonce, so the rest of a longer frame that lay there before is never taken for a frame.

Invariants:
- A frame is one `append`. It is confirmed after it was synced and the watermark was moved behind it. Readers read up to
  the watermark.
- Only the holder of the topic's lock (flock on `LOCK`) appends, moves the watermark or deletes. It begins by looking
  for frames behind the watermark: of an append that was not confirmed, or confirmed before the power failed. Valid ones
  are written again, synced and counted; what follows them is overwritten.
- A file is created when the watermark of its predecessor is durable, with the offset behind its last record. It
  appears with its head, and is durable before a frame is written. `first` is durable before files are removed.

Blocking calls run in threads; any number of processes of one machine may use a directory.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote

from dlog.errors import DamagedError, InvalidRequestError, UnavailableError, UnsupportedVersionError
from dlog.io.disk import Disk, File, RealDisk, read_file, replace_file
from dlog.model.ids import escape_name
from dlog.region.topics import (
    OffsetOutOfRangeError,
    RecordBytes,
    Stored,
    TopicExistsError,
    TopicNotFoundError,
    UnsafeTopicError,
    topic_recreated,
)
from dlog.wire.digest import crc32c

FILE_BYTES_MAX = 64 * 1024 * 1024
FRAME_BYTES_MAX = 64 * 1024 * 1024
_VERSION = 1
_NONCE_BYTES = 16
_HEAD = struct.Struct(f">B{_NONCE_BYTES}sQ")
_WATERMARK = struct.Struct(">QQI")
_CRC = struct.Struct(">I")
_FRAME = struct.Struct(">IIQI")
_CHECKED = 8  # bytes of a frame before what its checksum covers
_LENGTHS = struct.Struct(">II")
_WATERMARK_AT = _HEAD.size + _CRC.size
_FRAMES_AT = _WATERMARK_AT + _WATERMARK.size + _CRC.size
_SUFFIX = ".records"
_BESIDE_RECORDS = frozenset({"first", "first.new", "id", "id.new", "settings.new"})  # files that go with the topic
_INDEX_BYTES = 256 * 1024  # from one remembered frame to the next


class _FrameStart(NamedTuple):
    """Where a frame begins, or the next one will. position: in the file. offset: of its first record. chain: checksum
    of the frame before it."""

    position: int
    offset: int
    chain: int


class _Frame(NamedTuple):
    """A frame that verifies. after: where the next one begins."""

    at: _FrameStart
    after: _FrameStart
    body: bytes


@contextmanager
def _flock(directory: str) -> Iterator[None]:
    fd = os.open(f"{directory}/LOCK", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class DirectoryTopics:
    """The blocking operations; see Topics. lock: holds the lock of a topic's directory, waits for it. Any thread may
    call them."""

    def __init__(
        self,
        root: str,
        disk: Disk | None = None,
        rng: random.Random | None = None,
        *,
        file_bytes_max: int = FILE_BYTES_MAX,
        lock: Callable[[str], AbstractContextManager[None]] = _flock,
    ) -> None:
        self._root = root
        self._disk = disk or RealDisk()
        self._rng = rng or random.SystemRandom()
        self._file_bytes_max = file_bytes_max
        self._lock = lock
        self._recovered: set[str] = set()  # topics in which this object has looked for frames behind the watermark
        self._index: dict[str, list[_FrameStart]] = {}  # some frames of a file, by path

    def create(self, topic: str) -> None:
        directory = self._directory(topic)
        with self._errors(topic):
            self._disk.make_dir(directory)
            with self._lock(directory):
                if self._disk.exists(f"{directory}/settings"):
                    raise TopicExistsError(f"there is a topic of this name: topic={topic}")
                self._remove(directory)
                self._create_file(directory, 0)
                replace_file(self._disk, directory, "settings", json.dumps({"topic": topic}).encode())

    def exists(self, topic: str) -> bool:
        with self._errors(topic):
            return self._disk.exists(f"{self._directory(topic)}/settings")

    def topic_id(self, topic: str) -> str | None:
        try:
            with self._held(topic) as directory:
                found = self._id(directory)
                if not found:
                    found = self._rng.randbytes(_NONCE_BYTES).hex()
                    replace_file(self._disk, directory, "id", found.encode())
                return found
        except TopicNotFoundError:
            return None

    def names(self, prefix: str) -> list[str]:
        with self._errors(prefix):
            if not self._disk.exists(self._root):
                return []
            found = [unquote(name) for name in self._disk.names(self._root)]
        return sorted(name for name in found if name.startswith(prefix) and self.exists(name))

    def check(self, topic: str) -> None:
        with self._errors(topic):
            text = read_file(self._disk, self._directory(topic), "settings")
        if text is None:
            raise TopicNotFoundError(f"no such topic, create it first: topic={topic}")
        if text != json.dumps({"topic": topic}).encode():
            raise UnsafeTopicError(f"the settings are not those of this topic: {self._directory(topic)}/settings")

    def append(self, topic: str, records: Sequence[RecordBytes], topic_id: str = "") -> int:
        body = b"".join([part for key, value in records for part in (_LENGTHS.pack(len(key), len(value)), key, value)])
        size = len(body)
        if not records:
            raise ValueError("an append has at least one record")
        if size > FRAME_BYTES_MAX:
            raise InvalidRequestError(f"an append is too large, at most {FRAME_BYTES_MAX} bytes: bytes={size}")
        with self._locked(topic, topic_id) as directory:
            path, end = self._recover(directory)
            if end.position > _FRAMES_AT and end.position + size > self._file_bytes_max:
                self._finish(path, end)
                path, end = self._create_file(directory, end.offset)
            head = _FRAME.pack(_FRAME.size - _CHECKED + size, 0, end.offset, len(records))
            crc = crc32c(body, crc32c(head[_CHECKED:], end.chain))
            file = self._disk.open(path)
            try:
                file.pwritev([head[:4], _CRC.pack(crc), head[_CHECKED:], body], end.position)
                file.datasync()
                after = _FrameStart(end.position + _FRAME.size + size, end.offset + len(records), crc)
                _write_watermark(file, after)
            finally:
                file.close()
        return end.offset

    def read(self, topic: str, offset: int, bytes_max: int) -> list[Stored]:
        directory = self._directory(topic)
        while True:
            if topic not in self._recovered:
                self.offsets(topic)
            with self._errors(topic):
                first, bases = self._first(directory), self._bases(topic, directory)
                base = max((base for base in bases if base <= offset), default=-1)
                if offset < first or base < 0:
                    raise OffsetOutOfRangeError(f"the offset was deleted: topic={topic} offset={offset}", first)
                try:
                    file = self._disk.open(_path(directory, base))
                except FileNotFoundError:
                    continue  # another process deletes
                try:
                    found, end = self._read(file, _path(directory, base), offset, bytes_max)
                finally:
                    file.close()
                if found:
                    return found
                if base != bases[-1]:
                    raise DamagedError(f"records are missing at the end of a file: {_path(directory, base)} from={end}")
                if end is None:
                    self._recovered.discard(topic)  # another process writes the watermark, or it is damaged
                    continue
                if offset == end:
                    return []
                if self._bases(topic, directory)[-1] == base:
                    raise OffsetOutOfRangeError(f"beyond the end: topic={topic} offset={offset} next={end}", first, end)

    def offsets(self, topic: str) -> tuple[int, int]:
        with self._locked(topic) as directory:
            return self._first(directory), self._recover(directory)[1].offset

    def delete_before(self, topic: str, offset: int, topic_id: str = "") -> None:
        with self._locked(topic, topic_id) as directory:
            first, (_, end) = self._first(directory), self._recover(directory)
            if offset > end.offset:
                raise OffsetOutOfRangeError(
                    f"beyond the end: topic={topic} offset={offset} next={end.offset}", first, end.offset
                )
            if offset > first:
                replace_file(self._disk, directory, "first", b"%d" % offset)
            bases = self._bases(topic, directory)
            gone = [_path(directory, base) for base, after in pairwise(bases) if after <= max(first, offset)]
            for path in gone:
                self._disk.unlink(path)
                self._index.pop(path, None)
            if gone:
                self._disk.sync_dir(directory)

    def delete(self, topic: str, topic_id: str = "") -> None:
        with suppress(TopicNotFoundError), self._held(topic, topic_id) as directory:
            self._disk.unlink(f"{directory}/settings")
            self._disk.sync_dir(directory)
            self._remove(directory)
            self._recovered.discard(topic)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _directory(self, topic: str) -> str:
        return f"{self._root}/{escape_name(topic)}"

    @contextmanager
    def _errors(self, topic: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise UnavailableError(f"the topic's directory: {why.lower()}: {self._directory(topic)}") from error

    @contextmanager
    def _locked(self, topic: str, topic_id: str = "") -> Iterator[str]:
        """Hold the lock of an existing topic. The caller looks for unconfirmed frames (`_recover`) inside, so that a
        later `read` need not, unless there was an error."""
        with self._held(topic, topic_id) as directory:
            yield directory
            self._recovered.add(topic)

    @contextmanager
    def _held(self, topic: str, topic_id: str = "") -> Iterator[str]:
        """Hold the lock of an existing topic. topic_id: of that topic; "": of any. Raises TopicNotFoundError."""
        directory = self._directory(topic)
        with self._errors(topic):
            if not self._disk.exists(f"{directory}/settings"):
                raise TopicNotFoundError(f"no such topic, create it first: topic={topic}")
            with self._lock(directory):
                if not self._disk.exists(f"{directory}/settings"):
                    raise TopicNotFoundError(f"no such topic, create it first: topic={topic}")
                if topic_id and self._id(directory) != topic_id:
                    raise topic_recreated(topic)
                yield directory

    def _id(self, directory: str) -> str:
        """The topic's id; "": none was drawn yet."""
        return (read_file(self._disk, directory, "id") or b"").decode(errors="replace")

    def _first(self, directory: str) -> int:
        text = read_file(self._disk, directory, "first")
        if text is None:
            return 0
        if not text.isdigit():
            raise DamagedError(f"not an offset, restore the file from a backup: {directory}/first")
        return int(text)

    def _bases(self, topic: str, directory: str) -> list[int]:
        """The first offsets of the topic's files, ascending."""
        try:
            names = self._disk.names(directory)
        except FileNotFoundError:
            raise TopicNotFoundError(f"no such topic, create it first: topic={topic}") from None
        stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        found = sorted(int(stem) for stem in stems if stem.isdigit())
        if not found:
            raise TopicNotFoundError(f"no such topic, create it first: topic={topic}")
        return found

    def _create_file(self, directory: str, base: int) -> tuple[str, _FrameStart]:
        """Create a file with its head, durably and atomically: readers do not hold the lock."""
        path = _path(directory, base)
        self._index.pop(path, None)
        head = _HEAD.pack(_VERSION, self._rng.randbytes(_NONCE_BYTES), base)
        checksum = crc32c(head)
        replace_file(self._disk, directory, path.rpartition("/")[2], head + _CRC.pack(checksum))
        return path, _FrameStart(_FRAMES_AT, base, checksum)

    def _finish(self, path: str, end: _FrameStart) -> None:
        """Make the watermark of a file durable: nothing behind it is looked for once there is another file. It is
        written again, as an earlier sync of it may have failed."""
        file = self._disk.open(path)
        try:
            _write_watermark(file, end)
            file.datasync()
        finally:
            file.close()

    def _remove(self, directory: str) -> None:
        """Remove what is left of a topic."""
        for name in self._disk.names(directory):
            if name.removesuffix(".new").endswith(_SUFFIX) or name in _BESIDE_RECORDS:
                self._disk.unlink(f"{directory}/{name}")
                self._index.pop(f"{directory}/{name}", None)
        self._disk.sync_dir(directory)

    def _recover(self, directory: str) -> tuple[str, _FrameStart]:
        """The topic's last file, and where its next frame goes. Confirms what is valid behind the watermark. Only the
        holder of the lock calls this."""
        base = self._bases(directory, directory)[-1]
        path = _path(directory, base)
        file = self._disk.open(path)
        try:
            start = _first_frame(file, path, base)
            watermark = _watermark(file)
            end = confirmed = watermark or start
            for frame in _frames(file, confirmed, file.size()):
                end = frame.after
            if end != confirmed:  # a failed sync marks pages as clean, though they are not on the disk
                file.pwritev([file.pread(end.position - confirmed.position, confirmed.position)], confirmed.position)
                file.datasync()
            if end != watermark:
                _write_watermark(file, end)
            return path, end
        finally:
            file.close()

    def _read(self, file: File, path: str, offset: int, bytes_max: int) -> tuple[list[Stored], int | None]:
        """Confirmed records of a file from `offset` on, and the offset behind the last confirmed one; None if the file
        has frames and no valid watermark."""
        start = _first_frame(file, path, int(path.rpartition("/")[2].removesuffix(_SUFFIX)))
        end = _watermark(file)
        if end is None:
            return [], None if file.size() > _FRAMES_AT else start.offset
        index = self._index.setdefault(path, [start])
        if index[0] != start:  # the topic was deleted and created again
            index = self._index[path] = [start]
        near = max((known for known in index if known.offset <= offset), default=start)
        found: list[Stored] = []
        size = 0
        for frame in _frames(file, near, end.position):
            if frame.at.position - index[-1].position >= _INDEX_BYTES:
                index.append(frame.at)
            if frame.after.offset > offset:
                for record in _records(frame, path):
                    if record.offset >= offset and (not found or size < bytes_max):
                        found.append(record)
                        size += len(record.key) + len(record.value)
            if size >= bytes_max or frame.after.position >= end.position:
                return found, end.offset
        if near.position < end.position:
            raise DamagedError(f"a frame before the watermark does not verify: {path}")
        return found, end.offset


class FileTopics:
    """Topics in a directory, for asyncio. A cancelled call goes on in its thread."""

    def __init__(self, topics: DirectoryTopics) -> None:
        self._topics = topics

    async def create(self, topic: str) -> None:
        await asyncio.to_thread(self._topics.create, topic)

    async def exists(self, topic: str) -> bool:
        return await asyncio.to_thread(self._topics.exists, topic)

    async def topic_id(self, topic: str) -> str | None:
        return await asyncio.to_thread(self._topics.topic_id, topic)

    async def names(self, prefix: str) -> list[str]:
        return await asyncio.to_thread(self._topics.names, prefix)

    async def check(self, topic: str) -> None:
        await asyncio.to_thread(self._topics.check, topic)

    async def append(self, topic: str, records: Sequence[RecordBytes], *, topic_id: str = "") -> int:
        return await asyncio.to_thread(self._topics.append, topic, records, topic_id)

    async def read(self, topic: str, offset: int, bytes_max: int) -> list[Stored]:
        return await asyncio.to_thread(self._topics.read, topic, offset, bytes_max)

    async def offsets(self, topic: str) -> tuple[int, int]:
        return await asyncio.to_thread(self._topics.offsets, topic)

    async def delete_before(self, topic: str, offset: int, *, topic_id: str = "") -> None:
        await asyncio.to_thread(self._topics.delete_before, topic, offset, topic_id)

    async def delete(self, topic: str, topic_id: str = "") -> None:
        await asyncio.to_thread(self._topics.delete, topic, topic_id)


# ---- bytes ----------------------------------------------------------------------------------------------------------


def _path(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}{_SUFFIX}"


def _first_frame(file: File, path: str, base: int) -> _FrameStart:
    """Where the first frame goes. Raises DamagedError, UnsupportedVersionError."""
    data = file.pread(_WATERMARK_AT, 0)
    if len(data) < _WATERMARK_AT or crc32c(data[: _HEAD.size]) != _CRC.unpack_from(data, _HEAD.size)[0]:
        raise DamagedError(f"the head of the file is damaged: {path}")
    version, _, first = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise UnsupportedVersionError(f"the file's format is not known to this release: version={version} {path}")
    if first != base:
        raise DamagedError(f"the file was renamed: first={first} {path}")
    return _FrameStart(_FRAMES_AT, base, crc32c(data[: _HEAD.size]))


def _watermark(file: File) -> _FrameStart | None:
    data = file.pread(_FRAMES_AT - _WATERMARK_AT, _WATERMARK_AT)
    if len(data) < _FRAMES_AT - _WATERMARK_AT or crc32c(data[:-4]) != _CRC.unpack(data[-4:])[0]:
        return None
    return _FrameStart(*_WATERMARK.unpack_from(data))


def _write_watermark(file: File, end: _FrameStart) -> None:
    data = _WATERMARK.pack(*end)
    file.pwritev([data, _CRC.pack(crc32c(data))], _WATERMARK_AT)


def _frames(file: File, at: _FrameStart, end: int) -> Iterator[_Frame]:
    """Frames that verify, from a place on, below a position."""
    while at.position + _FRAME.size <= end:
        head = file.pread(_FRAME.size, at.position)
        if len(head) < _FRAME.size:
            return
        length, crc, first, count = _FRAME.unpack(head)
        size = length + _CHECKED - _FRAME.size
        if (
            first != at.offset
            or not count
            or not 0 <= size <= FRAME_BYTES_MAX
            or at.position + _FRAME.size + size > end
        ):
            return
        body = file.pread(size, at.position + _FRAME.size)
        if len(body) < size or crc32c(body, crc32c(head[_CHECKED:], at.chain)) != crc:
            return
        after = _FrameStart(at.position + _FRAME.size + size, first + count, crc)
        yield _Frame(at, after, body)
        at = after


def _records(frame: _Frame, path: str) -> Iterator[Stored]:
    at = 0
    for offset in range(frame.at.offset, frame.after.offset):
        if at + _LENGTHS.size > len(frame.body):
            raise DamagedError(f"a frame's records do not fill it: {path} position={frame.at.position}")
        key_bytes, value_bytes = _LENGTHS.unpack_from(frame.body, at)
        at += _LENGTHS.size
        value_at = at + key_bytes
        yield Stored(offset, frame.body[at:value_at], frame.body[value_at : value_at + value_bytes])
        at = value_at + value_bytes
    if at != len(frame.body):
        raise DamagedError(f"a frame's records do not fill it: {path} position={frame.at.position}")
