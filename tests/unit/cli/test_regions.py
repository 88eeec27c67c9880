"""`dlog region`: errors say what to do next; input is written as it arrives; what was written before an end is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dlog.cli import regions
from dlog.cli.main import main
from dlog.client.regions import Region
from dlog.io.file_topics import DirectoryTopics


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DLOG_KAFKA_TOPICS", f"file://{tmp_path}/topics")
    assert main(["region", "create", "app/orders"]) == 0
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    assert main(["region", "write", "app/orders", "--table", "7", str(lines)]) == 0
    return tmp_path / "topics"


WRONG = {
    "region show orders": "name it as NAMESPACE/NAME",
    "region show app/other": "`dlog region create NAMESPACE/NAME` creates a region",
    "region show app/a/b": "a region has 1 to 100 of a-z A-Z 0-9 _ -",
    "region read app/orders --from 2": "add --table NUMBER",
    "region read app/orders --table 8": "no record of this table was ever written",
    "region read app/orders --table 7 --from 9": "beyond the next one: table=7 sequence=9 next=3",
    "region mark app/orders --table 7 --below 9": "a mark lies between the last mark and the next record",
    "region write app/orders --table 7 nowhere": "nowhere",
    "region show app/orders --topics ftp://x": "use file:///path or kafka://host:port,host:port",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_says_what_to_do(command: str, topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(command.split()) == 2
    assert WRONG[command] in capsys.readouterr().err


def test_without_topics_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DLOG_KAFKA_TOPICS", raising=False)
    assert main(["region", "show", "app/orders"]) == 2
    assert "DLOG_KAFKA_TOPICS" in capsys.readouterr().err


def test_damage_is_told_with_the_command_that_goes_on(topics: Path, capsys: pytest.CaptureFixture[str]) -> None:
    DirectoryTopics(str(topics)).append("app.data.orders", [(b"foreign", b"x")])
    capsys.readouterr()
    assert main(["region", "read", "app/orders", "--table", "7"]) == 1
    assert "offset=4" in (said := capsys.readouterr().err) and "--skip-damaged" in said
    assert main(["region", "read", "app/orders", "--table", "7", "--skip-damaged"]) == 1
    out, err = capsys.readouterr()
    assert "left out: data topic: not a record of a region: key_bytes=7 value_bytes=1 offset=4" in err
    assert main(["region", "verify", "app/orders"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["7", "2"]
    assert out.splitlines()[-1] == "app/orders: 2 records, 1 problems"


@pytest.mark.parametrize(("variable", "value"), [("DLOG_KAFKA_FLUSH", "maybe"), ("DLOG_KAFKA_NOTHING", "1")])
def test_a_wrong_setting_of_kafka_is_refused(
    topics: Path, variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["region", "show", "app/orders"]) == 2
    assert variable.removeprefix("DLOG_KAFKA_").lower() in capsys.readouterr().err.lower()


def test_version_0_is_written_on_request_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_KAFKA_TOPICS", f"file://{tmp_path}/topics")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    topics = DirectoryTopics(str(tmp_path / "topics"))
    for kind in ("meta", "data"):
        topics.create(f"app.{kind}.5")
    for given in (["--format", "0"], []):
        assert main(["region", "write", "app/5", "--table", "7", *given, str(lines)]) == 0
    assert main(["region", "mark", "app/5", "--table", "7", "--below", "2"]) == 0
    records = topics.read("app.data.5", 0, 1 << 20)
    assert [key.hex() for _, key, _ in records] == [f"01{5:016x}{7:016x}{sequence:016x}00" for sequence in (1, 2, 3, 4)]
    assert [value for _, _, value in records] == [b"\0one", b"\0two"] * 2
    capsys.readouterr()
    assert main(["region", "show", "app/5"]) == 0
    assert "records of version 0: no fence keeps a second writer out" in capsys.readouterr().out
    topics.append("app.data.5", [records[0][1:]])
    assert main(["region", "verify", "app/5"]) == 1
    assert "does not count, it is not the next one: expected=5: table=7 sequence=1 offset=4" in capsys.readouterr().out
    assert main(["region", "write", "app/5", "--table", "7", "--format", "1", str(lines)]) == 0
    capsys.readouterr()
    assert main(["region", "write", "app/5", "--table", "7", "--format", "0", str(lines)]) == 2
    assert "no record of version 0 counts any more, open it with format 1" in capsys.readouterr().err
    assert main(["region", "read", "app/5", "--table", "7"]) == 1
    assert capsys.readouterr().out.splitlines() == ["two", *["one", "two"] * 2]
    assert main(["region", "show", "app/5"]) == 0
    assert "version 0" not in capsys.readouterr().out


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a non-blocking pipe; this is its end for writing, which the test closes."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield writing


def after_each_write(monkeypatch: pytest.MonkeyPatch, then: Callable[[Sequence[bytes]], None]) -> None:
    """Call `then` with the records of each write that is durable."""
    write = Region.write

    async def observed(region: Region, table: int, payloads: list[bytes]) -> tuple[int, ...]:
        sequences = await write(region, table, payloads)
        then(payloads)
        return sequences

    monkeypatch.setattr(Region, "write", observed)


def payloads_of(topics: Path) -> list[bytes]:
    return [value for _, _, value in DirectoryTopics(str(topics)).read("app.data.orders", 0, 1 << 24)]


def test_each_line_of_a_non_blocking_pipe_is_written_as_it_arrives(
    topics: Path, given: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [b"line %d\n" % n for n in range(5)]
    os.write(given, left.pop(0))

    def go_on(_: Sequence[bytes]) -> None:
        if left:
            os.write(given, left.pop(0))
        else:
            os.close(given)

    after_each_write(monkeypatch, go_on)
    capsys.readouterr()
    assert main(["region", "write", "app/orders", "--table", "7"]) == 0
    assert capsys.readouterr().out == "app/orders table 7: 5 records, sequences 3 to 7\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_input_is_waited_for_leaves_nothing_unknown(
    topics: Path,
    given: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    os.write(given, b"three\nfour\n")
    after_each_write(monkeypatch, lambda _: os.kill(os.getpid(), number))
    capsys.readouterr()
    assert main(["region", "write", "app/orders", "--table", "7"]) == 1
    os.close(given)
    told = capsys.readouterr().err
    assert "written before: 2 records, sequences 3 to 4" in told
    assert "stopped by a signal: 2 records are written, and no other record of the input" in told
    assert "unknown" not in told


def test_after_a_signal_the_records_under_way_may_be_written(
    topics: Path, given: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def unanswered(region: Region, table: int, payloads: list[bytes]) -> tuple[int, ...]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(Region, "write", unanswered)
    monkeypatch.setattr(regions, "STOP_S", 0.0)
    os.write(given, b"three\nfour\n")
    capsys.readouterr()
    assert main(["region", "write", "app/orders", "--table", "7"]) == 1
    os.close(given)
    told = capsys.readouterr().err
    assert "stopped by a signal: 0 records are written, 2 more may be" in told
    assert "the next `dlog region write` settles it" in told


@pytest.mark.parametrize(("file", "says"), [("nowhere", "no such file"), (".", "directory"), ("-", "input is closed")])
def test_input_that_cannot_be_opened_deposes_no_owner(
    topics: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], file: str, says: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    before = payloads_of(topics)
    capsys.readouterr()
    assert main(["region", "write", "app/orders", "--table", "7", file]) == 2
    assert says in capsys.readouterr().err
    assert payloads_of(topics) == before


@pytest.mark.parametrize("lengths", [(200_000, 900_000), (1,) * 30_000])
def test_lines_that_fit_alone_are_split_into_writes_that_are_allowed(
    topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], lengths: tuple[int, ...]
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"".join(b"x" * length + b"\n" for length in lengths))
    capsys.readouterr()
    assert main(["region", "write", "app/orders", "--table", "8", str(file)]) == 0
    out = capsys.readouterr().out
    assert out == f"app/orders table 8: {len(lengths)} records, sequences 1 to {len(lengths)}\n"


def test_a_line_too_long_for_a_region_is_named(
    topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"short\n" + b"x" * 1_044_389 + b"\n")
    capsys.readouterr()
    assert main(["region", "write", "app/orders", "--table", "7", str(file)]) == 2
    assert "record 2 of the input is larger than 1044388 bytes: bytes=1044389" in capsys.readouterr().err


def test_a_followed_region_is_printed_at_once_and_an_interrupt_is_no_failure(
    topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, sleep, seen = tmp_path / "out", asyncio.sleep, list[str]()

    async def look(seconds: float) -> None:
        if seconds:  # it has read all there is
            seen.append(file.read_text())
            os.kill(os.getpid(), signal.SIGINT)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", look)
    with file.open("w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["region", "read", "app/orders", "--follow", "--json"]) == 0
    assert [json.loads(line)["payload"] for line in seen[0].splitlines()] == ["one", "two"]
