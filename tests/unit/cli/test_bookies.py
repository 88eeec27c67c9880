"""Tests `dlog bookie gc` and the display of a bookie's address: the result of a collection, or why there is no
answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dlog.cli import bookies
from dlog.cli.main import main
from dlog.cli.parameters import named_bookie
from dlog.io.metadata import BookieInfo
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.wire.bookie import (
    Code,
    Collect,
    CollectionReport,
    CollectionState,
    EntryAdded,
    Response,
    encode_response,
)
from dlog.wire.bookie_port import RequestDecoder


async def collected(answers: Sequence[Response | bytes], *, waits: bool = True) -> tuple[dict[str, Any], list[int]]:
    """The row of a bookie that gives these answers, one per request, and then ends the connection; and the requested
    numbers."""
    left = list(answers)
    numbers: list[int] = []
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = RequestDecoder()
        while data := await reader.read(4096):
            (request,) = decoder.feed(data)
            assert isinstance(request, Collect)
            numbers.append(request.number)
            if not left:
                break
            answer = left.pop(0)
            writer.write(answer if isinstance(answer, bytes) else b"".join(encode_response(answer)))
        writer.close()
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        row = await bookies._collect(BookieInfo(BookieId("b:1"), "127.0.0.1", port), waits)
        await served.wait()
        assert row["bookie"] == "b:1"
        return row, numbers
    finally:
        server.close()


STARTED = CollectionReport(7, CollectionState.STARTED)
RUNNING = CollectionReport(7, CollectionState.RUNNING)
DONE = CollectionReport(7, CollectionState.DONE, 2, 4096, 10, 1, "a remark")


async def test_waits_for_the_collection_it_was_told_of() -> None:
    row, numbers = await collected([STARTED, RUNNING, RUNNING, DONE])
    assert numbers == [0, 7, 7, 7]
    assert (row["state"], row["removed"], row["reclaimed_bytes"]) == ("done", 2, 4096)
    assert (row["ledgers"], row["unseen"], row["reason"]) == (10, 1, "a remark")


@pytest.mark.parametrize(("report", "state"), [(STARTED, "started"), (RUNNING, "joined")])
async def test_without_waiting_says_whether_it_was_started_or_joined(report: CollectionReport, state: str) -> None:
    row, numbers = await collected([report], waits=False)
    assert (row["state"], row["removed"], numbers) == (state, None, [0])


async def test_a_refusal_has_its_reason() -> None:
    row, _ = await collected([CollectionReport(0, CollectionState.REFUSED, reason="gc_s is 0")])
    assert (row["state"], row["removed"], row["reason"]) == ("refused", None, "gc_s is 0")


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([], "it closed the connection: Java bookies and older ones"),
        ([STARTED], "it closed the connection"),
        ([EntryAdded(LedgerId(1), EntryId(1), Code.OK)], "is it a bookie of this version?"),
        ([STARTED, CollectionReport(7, CollectionState.UNKNOWN, code=Code.BAD_REQUEST)], "is it a bookie of this"),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], "length"),
    ],
)
async def test_what_is_no_report_is_no_answer(answers: list[Response | bytes], reason: str) -> None:
    row, _ = await collected(answers)
    assert row["state"] == "no answer" and reason in row["reason"] and row["removed"] is None


async def test_nobody_at_the_address_is_no_answer() -> None:
    row = await bookies._collect(BookieInfo(BookieId("b:1"), "127.0.0.1", 1), True)
    assert row["state"] == "no answer" and "Connect call failed" in row["reason"]


@pytest.mark.parametrize(
    ("text", "id"),
    [("[::1]:3181", "::1:3181"), ("::1:3181", "::1:3181"), ("[fe80::1]:1", "fe80::1:1"), ("h:3181", "h:3181")],
)
def test_a_bookie_is_named_by_its_id_or_by_the_address_that_is_listed(text: str, id: str) -> None:
    assert named_bookie(text) == id


@pytest.mark.parametrize("command", ["status", "gc", "pause --for 10m", "decommission", "replace [::1]:1"])
def test_every_command_takes_the_listed_address(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, is_bookie in (("[::1]:3181", True), ("[h]:3181", False)):
        main(["bookie", *command.split(), name, "--zookeeper", ":"])
        assert ("not a bookie id" in capsys.readouterr().err) == (not is_bookie)
