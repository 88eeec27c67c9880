"""Tests cutting frames out of a stream, however its bytes arrive."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlog.wire.framing import LENGTH_BYTES, ROOM_BYTES, ROOM_RATIO, FrameSplitter

KiB = 1024
WAYS = ("bytes", "reused", "in place")


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Receiver:
    """Receives bytes as a loop would pass them: as bytes, in a buffer that is used again, or into the final buffer."""

    def __init__(self, way: str, buffer_bytes: int) -> None:
        self.splitter = FrameSplitter(1 << 30)
        self.frames: list[memoryview] = []
        self._way = way
        self._buffer = bytearray(buffer_bytes)

    def take(self, data: bytes) -> None:
        if self._way == "bytes":
            self.frames += self._fed(data)
            return
        while data and self._way == "in place":
            waiting = self.splitter.have >= LENGTH_BYTES
            room = self.splitter.room if waiting else memoryview(self._buffer)
            size = min(len(room), len(data))
            assert size, "there is always room for something"
            room[:size] = data[:size]
            frames: Iterable[memoryview]
            if waiting:
                frames = self.splitter.filled(size)
            else:
                frames = self._fed(room[:size])
                room[:size] = b"x" * size  # other connections use it too, before frames are looked at
            self.frames += frames
            data = data[size:]
        while data:
            size = min(len(self._buffer), len(data))
            self._buffer[:size] = data[:size]
            self.frames += self._fed(memoryview(self._buffer)[:size])
            self._buffer[:size] = b"x" * size  # another user has it now
            data = data[size:]

    def _fed(self, data: bytes | memoryview) -> Iterable[memoryview]:
        frame = self.splitter.only(data)
        return self.splitter.feed(data) if frame is None else (frame,)


@settings(max_examples=200)
@given(
    bodies=st.lists(st.integers(1, 200) | st.integers(10_000, 900_000), max_size=6),
    cuts=st.lists(st.integers(1, 6) | st.integers(1, 400_000), min_size=1, max_size=20),
    way=st.sampled_from(WAYS),
    buffer_bytes=st.sampled_from((1, 5, 100, 64 * KiB, 1024 * KiB)),
    seed=st.integers(0, 100),
)
def test_every_frame_comes_out_once_and_stays(
    bodies: list[int], cuts: list[int], way: str, buffer_bytes: int, seed: int
) -> None:
    rng = random.Random(seed)
    sent = [rng.randbytes(size) for size in bodies]
    stream = b"".join(map(frame, sent))
    if buffer_bytes < 100:
        stream, sent = stream[:2000], []
    receiver = Receiver(way, buffer_bytes)
    at = step = 0
    while at < len(stream):
        receiver.take(stream[at : at + cuts[step % len(cuts)]])
        at, step = at + cuts[step % len(cuts)], step + 1
    if sent:
        assert [bytes(f) for f in receiver.frames] == sent
        assert receiver.splitter.buffered == 0
    whole = sum(4 + len(f) for f in receiver.frames)
    assert stream[:whole] == b"".join(frame(bytes(f)) for f in receiver.frames)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_declared_is_not_allocated_before_it_has_come(way: str) -> None:
    receiver = Receiver(way, 4 * KiB)
    receiver.take((64 * KiB * KiB).to_bytes(4, "big"))
    come = 4
    while come < 8 * KiB * KiB:
        receiver.take(bytes(KiB))
        come += KiB
        assert come <= receiver.splitter.buffered <= max(ROOM_BYTES, ROOM_RATIO * come)
    assert not receiver.frames and receiver.splitter.begun == 1


def fed(splitter: FrameSplitter, data: bytes, way: str) -> Iterator[memoryview]:
    return splitter.feed(data if way == "bytes" else bytearray(data))


@pytest.mark.parametrize("length", [0, 11, 0xFFFFFFFF])
@pytest.mark.parametrize("way", WAYS[:2])
def test_frames_before_a_length_out_of_bounds_come_out_first(length: int, way: str) -> None:
    frames = fed(FrameSplitter(10), frame(b"good") + length.to_bytes(4, "big") + b"any", way)
    assert bytes(next(frames)) == b"good"
    with pytest.raises(ProtocolError, match="length out of bounds"):
        next(frames)


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_length_out_of_bounds_at_once_is_told_when_frames_are_taken(way: str) -> None:
    frames = fed(FrameSplitter(10), (11).to_bytes(4, "big"), way)
    with pytest.raises(ProtocolError, match="length out of bounds"):
        next(frames)


@pytest.mark.parametrize("of", [bytes, bytearray])
def test_one_whole_frame_is_told_as_one_and_nothing_else_is(of: Callable[[bytes], bytes | bytearray]) -> None:
    splitter = FrameSplitter(10)
    data = of(frame(b"1234"))
    only = splitter.only(data)
    assert only is not None and bytes(only) == b"1234" and splitter.have == 0
    if isinstance(data, bytearray):
        data[:] = bytes(8)  # another user has it now
        assert bytes(only) == b"1234"
    for other in (b"", b"\0\0", frame(b""), frame(b"12345678901"), frame(b"1234")[:-1], frame(b"1234") + b"\0"):
        assert splitter.only(of(other)) is None and splitter.have == 0
    assert list(splitter.feed(of(frame(b"1234")[:6]))) == []
    assert splitter.only(of(frame(b"1"))) is None  # the rest of a frame that has begun


def test_a_bound_that_is_raised_between_two_frames_holds_for_the_second() -> None:
    splitter = FrameSplitter(4)
    frames = splitter.feed(bytearray(frame(b"1234") + frame(b"123456789")))
    assert bytes(next(frames)) == b"1234"
    splitter.length_max = 9
    assert bytes(next(frames)) == b"123456789"
