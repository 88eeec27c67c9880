"""Commands that a signal ends before they are done: they report what is known, and name what is unknown."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dlog.wire import proxy
from tests.integration.cluster import ROOT
from tests.unit.client.proxy_double import Double, Log, Peer
from tests.unit.client.scripts import Holding

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@asynccontextmanager
async def command(*words: str, ignoring: signal.Signals | None = None) -> AsyncIterator[Process]:
    def begin() -> None:
        for number in SIGNALS:  # a test run under nohup ignores SIGHUP, and its children inherit that
            signal.signal(number, signal.SIG_DFL)
        if ignoring is not None:
            signal.signal(ignoring, signal.SIG_IGN)

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dlog", *words, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE, preexec_fn=begin
    )
    try:
        async with asyncio.timeout(90):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ended(process: Process) -> tuple[int, str, str]:
    """Its exit code and output; its standard input stays open."""
    assert process.stdout is not None and process.stderr is not None
    async with asyncio.TaskGroup() as group:
        out, err = (group.create_task(stream.read()) for stream in (process.stdout, process.stderr))
    return await process.wait(), out.result().decode(), err.result().decode()


@pytest.mark.parametrize("number", SIGNALS)
async def test_what_was_acknowledged_before_a_signal_is_told(number: signal.Signals) -> None:
    async with Double() as double, command("append", "s", "--connect", double.target) as process:
        assert process.stdin is not None
        process.stdin.write(b"".join(b"%d\n" % n for n in range(50)))
        await double.wait(lambda: len(double.log.payloads) == 50)
        process.send_signal(number)
        code, out, err = await ended(process)
    assert code == 1
    assert out.startswith("50 records, 1:0:0 .. ")
    assert "stopped by a signal: 50 records are written, and no other record of the input" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", SIGNALS)
async def test_what_may_be_written_is_told_apart(number: signal.Signals) -> None:
    holding = Holding()
    holding.on = False
    async with (
        Double(script=holding) as double,
        command("append", "s", "--json", "--connect", double.target) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(b"a\nb\n")
        await double.wait(lambda: len(double.log.payloads) == 2)
        holding.on = True
        process.stdin.write(b"c\n")
        await double.wait(lambda: bool(holding.held))
        process.send_signal(number)
        code, out, err = await ended(process)
    told = json.loads(err)["error"]
    assert (code, json.loads(out)["records"]) == (1, 2)
    assert told["message"] == "stopped by a signal: 2 records are written, 1 more may be"
    assert told["outcome_unknown"] and "twice" in told["next"]


async def test_a_second_signal_ends_it_at_once_and_the_same_is_told() -> None:
    holding = Holding()
    async with Double(script=holding) as double, command("append", "s", "--connect", double.target) as process:
        assert process.stdin is not None
        process.stdin.write(b"a\nb\n")
        await double.wait(lambda: bool(holding.held))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        code, out, err = await ended(process)
    assert (code, out) == (1, "0 records\n")
    assert "0 records are written, 2 more may be" in err


async def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """A command started with an ignored signal, as under nohup, keeps ignoring it."""
    async with (
        Double() as double,
        command("append", "s", "--connect", double.target, ignoring=signal.SIGHUP) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(b"a\n")
        await double.wait(lambda: len(double.log.payloads) == 1)
        process.send_signal(signal.SIGHUP)
        process.stdin.write(b"b\n")
        await double.wait(lambda: len(double.log.payloads) == 2)
        process.stdin.close()
        code, out, _ = await ended(process)
    assert (code, out.split(",")[0]) == (0, "2 records")


CHANGES: dict[str, tuple[str, ...]] = {
    "create": ("create", "s"),
    "delete": ("delete", "s", "--yes"),
    "seal": ("seal", "s"),
    "alter": ("alter", "s", "--retention", "1h"),
    "truncate": ("truncate", "s", "1:0:0"),
}


def log_for(words: tuple[str, ...]) -> Log:
    """The proxy's state before the command: the stream, unless it is to be created."""
    return Log(incarnation=None if words[0] == "create" else "a1")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
async def test_a_change_that_has_no_answer_is_called_unknown(words: tuple[str, ...], number: signal.Signals) -> None:
    asked = (proxy.Create, proxy.Delete, proxy.Seal, proxy.Truncate, proxy.Alter)

    def mute(peer: Peer, message: proxy.Message) -> bool:
        return isinstance(message, asked)

    async with Double(log_for(words), script=mute) as double, command(*words, "--connect", double.target) as process:
        await double.wait(lambda: any(double.of(kind) for kind in asked))
        process.send_signal(number)
        code, out, err = await ended(process)
    assert (code, out) == (1, "")
    assert "stopped before the reply came" in err
    assert "is unknown: `dlog" in err
    assert "record" not in err


@pytest.mark.parametrize("words", CHANGES.values(), ids=CHANGES)
async def test_a_change_of_unknown_outcome_says_how_to_look(words: tuple[str, ...]) -> None:
    def unknown(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Create | proxy.Delete | proxy.Seal | proxy.Truncate | proxy.Alter):
            peer.send(proxy.Failed(message.request, 500, "no answer from ZooKeeper", outcome_unknown=True))
            return True
        return False

    async with Double(log_for(words), script=unknown) as double, command(*words, "--connect", double.target) as process:
        code, _, err = await ended(process)
    assert code == 1
    assert "is unknown: `dlog" in err
    assert "record" not in err
