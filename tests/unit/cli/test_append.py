"""Turning input into batches: every line is a record, wherever chunks end."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.cli import append
from dlog.cli.append import framed_batches, line_batches
from dlog.cli.output import CommandError
from dlog.client.options import RECORD_BYTES_MAX
from dlog.errors import DLogError, NotEnoughBookiesError, RecordTooLargeError

Batches = Callable[[int], AsyncIterator[tuple[list[bytes], int]]]


async def all_of(batches: Batches, data: bytes) -> tuple[list[bytes], int]:
    """Records of the input, and its bytes, with the input in a pipe that is written while it is read."""
    reading, writing = os.pipe()

    async def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            await asyncio.to_thread(pipe.write, data)

    records: list[bytes] = []
    counted = 0
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            async for batch, size in batches(reading):
                assert sum(map(len, batch)) + 4 * len(batch) <= RECORD_BYTES_MAX + 4
                records += batch
                counted += size
    finally:
        os.close(reading)
    return records, counted


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b" "))), st.booleans())
def test_lines_are_records(lines: list[bytes], ends: bool) -> None:
    data = b"".join(line + b"\n" for line in lines)
    if not ends and data:
        data = data[:-1]
        if lines and not lines[-1]:
            lines = lines[:-1]
    records, counted = asyncio.run(all_of(line_batches, data))
    assert records == lines
    assert counted == len(data)


@given(st.lists(st.binary(max_size=30)))
def test_framed_records(payloads: list[bytes]) -> None:
    data = b"".join(struct.pack(">I", len(p)) + p for p in payloads)
    records, counted = asyncio.run(all_of(framed_batches, data))
    assert (records, counted) == (payloads, len(data))


async def test_small_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "CHUNK_BYTES", 7)
    file = tmp_path / "lines"
    lines = [b"x" * (n % 23) for n in range(200)]
    file.write_bytes(b"\n".join(lines))
    descriptor = os.open(file, os.O_RDONLY)
    found = [record async for batch, _ in line_batches(descriptor) for record in batch]
    os.close(descriptor)
    assert found == lines


async def test_the_longest_line_there_may_be_shares_its_batch_with_nobody_it_does_not_fit() -> None:
    long = b"x" * RECORD_BYTES_MAX
    records, _ = await all_of(line_batches, b"a\n" + long + b"\nb\n")
    assert records == [b"a", long, b"b"]


async def test_an_empty_pipe_never_stops_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop may report bytes that were read already; a read would then block on the writer and stop the loop."""
    reading, writing = os.pipe()
    loop = asyncio.get_running_loop()
    tell: list[Callable[[], None]] = []
    monkeypatch.setattr(loop, "add_reader", lambda fd, callback: tell.append(callback))
    monkeypatch.setattr(loop, "remove_reader", lambda fd: None)
    batches = line_batches(reading)
    try:
        for line in (b"one", b"two"):
            following = asyncio.ensure_future(anext(batches))  # noqa: TID251
            for _ in range(3):
                await asyncio.sleep(0)
            tell[0]()  # there is nothing
            for _ in range(3):
                await asyncio.sleep(0)
            assert not following.done()
            os.write(writing, line + b"\n")
            tell[0]()
            assert (await following)[0] == [line]
            tell[0]()  # it has been read already
    finally:
        await batches.aclose()  # type: ignore[attr-defined]
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("tail", [b"\nb\n", b""])
async def test_a_line_that_is_too_long_is_named(tail: bytes) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await all_of(line_batches, b"a\nb\n" + b"x" * (RECORD_BYTES_MAX + 1) + tail)
    assert caught.group_contains(RecordTooLargeError, match="record 3 ")


async def test_a_torn_frame_is_told() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await all_of(framed_batches, b"\0\0\0\1x\0\0")
    assert caught.group_contains(CommandError, match="ends inside record 2")


async def test_a_length_out_of_bounds_is_told_before_it_is_waited_for() -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        await all_of(framed_batches, b"\xff\xff\xff\xff")
    assert caught.group_contains(RecordTooLargeError, match="record 1 ")


class Waiting:
    """A pipeline that must wait."""

    obstacle: DLogError | None = NotEnoughBookiesError("not written, no segment to write to: writable=2")


async def test_why_nothing_is_acknowledged_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(30):
        await append._explain_waiting(Waiting(), quiet=False)  # type: ignore[arg-type]
    assert capsys.readouterr().err == "waiting: not written, no segment to write to: writable=2\n"


async def test_nothing_is_said_while_all_is_well_or_to_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    await append._explain_waiting(Waiting(), quiet=True)  # type: ignore[arg-type]
    well = Waiting()
    well.obstacle = None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await append._explain_waiting(well, quiet=False)  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
