import asyncio
import base64
import json
import sys
from asyncio.subprocess import PIPE

import pytest

from dlog.cli.output import CommandError
from dlog.cli.read import _SHAPES, parse_time
from dlog.client.record import RecordBatch
from dlog.model.dlsn import of
from dlog.wire.proxy import Start
from tests.unit.client.proxy_double import Double
from tests.unit.client.test_reader import log_of

BATCH = RecordBatch(of(1, 2, 3), 7, 99, [b"a", b"", b"\xff"], "one")


def test_shapes() -> None:
    assert _SHAPES["text"](BATCH) == b"a\n\n\xff\n"
    assert _SHAPES["positions"](BATCH) == b"1:2:3\t7\ta\n1:2:4\t7\t\n1:2:5\t7\t\xff\n"
    assert _SHAPES["raw"](BATCH) == b"a\xff"
    assert _SHAPES["framed"](BATCH) == b"\0\0\0\1a\0\0\0\0\0\0\0\1\xff"
    told = [json.loads(line) for line in _SHAPES["json"](BATCH).splitlines()]
    assert told[0] == {"dlsn": "1:2:3", "position": "one@1:2:4", "txid": 7, "unix_ms": 99, "payload": "a"}
    assert base64.b64decode(told[2]["payload_base64"]) == b"\xff"


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("1700000000", 1_700_000_000_000),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000_000),
        ("10m", 1_699_999_400_000),
        ("2d", 1_699_827_200_000),
        ("1.5h", 1_699_994_600_000),
        ("8000d", 1_008_800_000_000),
        ("1700000000.5", 1_700_000_000_500),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ],
)
def test_times(text: str, unix_ms: int) -> None:
    position = parse_time(text, now_s=1_700_000_000.0)
    assert (position.kind, position.value) == (Start.TIME, unix_ms)


@pytest.mark.parametrize(
    "text",
    ["yesterday", "", "10x", "m", "nan", "20261120", "2026-11-20", "0", "12d d", "1e3h", "1_0m", "\u0661\u0660m"],
)
def test_what_is_no_time_says_how_one_is_written(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_time(text, now_s=1000.0)
    assert "10m" in caught.value.next_step


@pytest.mark.parametrize("text", ["30000d", "20261120m", "12000d", "9999-01-01T00:00Z", "9999999999"])
def test_a_time_long_before_or_after_every_record_is_refused(text: str) -> None:
    """It would read from the first record, or nothing, without a word."""
    with pytest.raises(CommandError, match="between 2001-09-09 and 2100"):
        parse_time(text, now_s=1_700_000_000.0)


@pytest.mark.parametrize("text", ["2023-11-14T22:13:20", "2023-11-14", "2023-11-14 22:13"])
def test_a_time_says_of_which_zone_it_is(text: str) -> None:
    """Without a zone it would be another time for another program, or on another machine."""
    with pytest.raises(CommandError, match="without a time zone") as caught:
        parse_time(text, now_s=1000.0)
    assert "Z for UTC" in caught.value.next_step


@pytest.mark.parametrize("follow", [[], ["--follow", "--limit", "1"]])
async def test_a_time_in_the_future_is_told_unless_the_reader_waits_for_it(follow: list[str]) -> None:
    async with Double(log_of(b"a"), role="read") as double:
        command = [sys.executable, "-m", "dlog", "read", "s", "--from-time", "2099-01-01T00:00Z", *follow]
        process = await asyncio.create_subprocess_exec(*command, "--connect", double.target, stdout=PIPE, stderr=PIPE)
        _, err = await process.communicate()
    assert process.returncode == 0
    assert (b"the time is in the future" in err) == (not follow), err.decode()
