"""How a process begins and ends, as seen from outside: exit codes, signals, the ready line, logs on stderr only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dlog.io.settings import HELD

ROOT = Path(__file__).parents[3]
PRELUDE = """
import asyncio, gc, sys, time
import uvloop
from dlog.errors import ConfigError, DamagedError, UnavailableError
from dlog.events import BookieLost
from dlog.io import logs, metrics, process
"""


def start(
    body: str, *flags: str, held: bool = False, output: int = subprocess.PIPE, closes: bool = False
) -> subprocess.Popen[str]:
    """output: where stdout and stderr go. closes: they are closed instead."""
    main = "async def main():\n" + textwrap.indent(textwrap.dedent(body), "    ")
    script = f"{PRELUDE}\n{main}\nsys.exit(process.run(main))\n"
    return subprocess.Popen(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", sys.executable, "-c", script]
        if closes
        else [sys.executable, *flags, "-c", script],
        cwd=ROOT,
        env={**os.environ, HELD: "1"} if held else None,
        stdin=subprocess.PIPE if held else None,
        stdout=output,
        stderr=output,
        text=True,
    )


def finish(body: str, *flags: str) -> tuple[int, str, str]:
    process = start(body, *flags)
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "body, code, words",
    [
        ("return 0", 0, ""),
        ("return 7", 7, ""),
        ("raise ConfigError('no such option: key=prot')", 2, "ConfigError: no such option: key=prot\n"),
        ("raise UnavailableError('away')", 1, "UnavailableError: away\n"),
        ("raise DamagedError('bits')", 1, "DamagedError: bits\n"),
        (
            "open('/nowhere/x')",
            2,
            "FileNotFoundError: no such file or directory: file=/nowhere/x; check the name\n",
        ),
        (
            "raise ExceptionGroup('one', [OSError(28, 'No space left on device', '/full')])",
            1,
            "OSError: no space left on device: file=/full; free space on that file system\n",
        ),
        (
            "raise ExceptionGroup('both', [ExceptionGroup('x', [UnavailableError('away')])])",
            1,
            "UnavailableError: away\n",
        ),
    ],
)
def test_exit_codes(body: str, code: int, words: str) -> None:
    assert finish(body) == (code, "", words)


def test_a_bug_is_a_traceback() -> None:
    code, _, err = finish("raise AssertionError('invariant')")
    assert code == 1 and "Traceback" in err and "invariant" in err


def test_assertions_may_not_be_switched_off() -> None:
    code, out, err = finish("print('ran')", "-O")
    assert (code, out) == (2, "") and "-O" in err


def test_the_loop_is_uvloop_and_what_is_loaded_is_frozen() -> None:
    body = """
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    assert gc.get_freeze_count() == 0
    process.ready("bookie", "b:1", "127.0.0.1:1")
    assert gc.get_freeze_count() > 1000
    return 0
    """
    assert finish(body) == (0, "ready bookie b:1 127.0.0.1:1\n", "")


@pytest.mark.parametrize("where", ["full", "nobody", "non-blocking", "closed"])
def test_a_process_serves_on_whatever_its_output_takes(where: str) -> None:
    """Output that fails, of the ready line or of a log line, neither ends the process nor makes it fail."""
    body = """
    logs.setup("json")
    for _ in range(10_000):
        logs.log_event(BookieLost("b:1", "reason"))
    process.ready("bookie", "b", "a")
    logs.log_event(BookieLost("b:1", "again"))
    return 0
    """
    reads, writes = os.pipe()
    if where == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), writes)
    elif where == "nobody":
        os.close(reads)
    else:
        os.set_blocking(writes, False)
    process = start(body, output=writes, closes=where == "closed")
    os.close(writes)
    assert process.wait(timeout=180) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(number: signal.Signals) -> None:
    body = """
    logs.setup("json")
    stopping = process.stop_event(logs.log_event)
    process.ready("bookie", "b", "a")
    await stopping.wait()
    sys.stdout.write("drained\\n")
    return 0
    """
    process = start(body)
    assert process.stdout is not None and process.stdout.readline() == "ready bookie b a\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (0, "drained\n")
    assert json.loads(err)["signal"] == number.name


def test_the_second_signal_ends_at_once() -> None:
    body = """
    stopping = process.stop_event()
    process.ready("bookie", "b", "a")
    await stopping.wait()
    process.ready("draining", "for", "ever")
    await asyncio.Event().wait()
    """
    process = start(body)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline().startswith("ready draining")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_stalled_loop_is_measured_and_told() -> None:
    body = """
    logs.setup("json")
    await asyncio.sleep(0.2)
    time.sleep(0.6)
    await asyncio.sleep(0.2)
    assert metrics.LOOP_STALL_SECONDS.value > 0.25
    assert metrics.MINOR_FAULTS.value > 0
    return 0
    """
    code, out, err = finish(body)
    assert (code, out) == (0, ""), err
    event = json.loads(err.splitlines()[-1])
    assert (event["event"], event["level"]) == ("loop.stalled", "warning") and event["stall_ms"] > 250


def test_logs_are_json_off_a_terminal_and_libraries_speak_the_same() -> None:
    body = """
    import logging
    logs.setup(role="bookie")
    logs.log_event(BookieLost("b:1", "reset"))
    logging.getLogger("aiozk").warning("said %s", "this")
    logging.getLogger("aiozk").info("not this")
    return 0
    """
    code, out, err = finish(body)
    assert (code, out) == (0, "")
    ours, theirs = map(json.loads, err.splitlines())
    assert (ours["event"], ours["peer"], ours["reason"], ours["role"]) == ("bookie.lost", "b:1", "reset", "bookie")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("said this", "aiozk", "warning")
    assert "timestamp" in ours


def test_text_logs_are_for_people() -> None:
    code, _, err = finish("logs.setup('text')\nlogs.log_event(BookieLost('b:1', 'reset'))\nreturn 0")
    assert code == 0 and "bookie.lost" in err and "peer=b:1" in err and "{" not in err


@pytest.mark.parametrize(("said", "begins"), [("\n", True), ("", False)])
def test_a_process_that_is_held_begins_when_it_is_told_to_and_not_when_its_parent_ends(said: str, begins: bool) -> None:
    process = start("print('begun')\nreturn 0", held=True)
    out, _ = process.communicate(said, timeout=180)
    assert out == ("begun\n" if begins else "")
    assert process.returncode == (0 if begins else 1)
