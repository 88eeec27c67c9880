"""Frames out of a stream, however its bytes come."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlog.wire.framing import FrameSplitter

KiB = 1024
WAYS = ("bytes", "reused")


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


class Receiver:
    """Takes bytes as a loop would bring them: as bytes, or in a buffer that it uses again."""

    def __init__(self, way: str, buffer_bytes: int) -> None:
        self.splitter = FrameSplitter(1 << 30)
        self.frames: list[memoryview] = []
        self._way = way
        self._buffer = bytearray(buffer_bytes)

    def take(self, data: bytes) -> None:
        if self._way == "bytes":
            self.frames += self.splitter.feed(data)
            return
        while data:
            size = min(len(self._buffer), len(data))
            self._buffer[:size] = data[:size]
            self.frames += self.splitter.feed(memoryview(self._buffer)[:size])
            self._buffer[:size] = b"x" * size  # it is somebody else's now
            data = data[size:]


@settings(max_examples=200, deadline=None)
@given(
    bodies=st.lists(st.integers(1, 200) | st.integers(10_000, 150_000), max_size=6),
    cuts=st.lists(st.integers(1, 120_000), min_size=1, max_size=20),
    way=st.sampled_from(WAYS),
    buffer_bytes=st.sampled_from((1, 5, 100, 64 * KiB)),
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


def test_what_is_declared_is_not_allocated_before_it_has_come() -> None:
    splitter = FrameSplitter(1 << 30)
    assert not list(splitter.feed((64 * KiB * KiB).to_bytes(4, "big") + bytes(1000)))
    assert splitter.buffered == 1004


@pytest.mark.parametrize("length", [0, 11, 0xFFFFFFFF])
@pytest.mark.parametrize("lasting", [True, False])
def test_frames_before_a_length_out_of_bounds_come_out_first(length: int, lasting: bool) -> None:
    data = frame(b"good") + length.to_bytes(4, "big") + b"any"
    frames = FrameSplitter(10).feed(data if lasting else bytearray(data))
    assert bytes(next(frames)) == b"good"
    with pytest.raises(ProtocolError, match="length out of bounds"):
        next(frames)


def test_a_bound_that_is_raised_between_two_frames_holds_for_the_second() -> None:
    splitter = FrameSplitter(4)
    frames = splitter.feed(bytearray(frame(b"1234") + frame(b"123456789")))
    assert bytes(next(frames)) == b"1234"
    splitter.length_max = 9
    assert bytes(next(frames)) == b"123456789"
