"""Output that cannot be written: a closed pipe, a disk without space, a non-blocking pipe with a slow reader; every
command, by a table.

Invariants:
- A closed pipe ends a command quietly with exit code 0: its reader has enough.
- Output that cannot be written is a failure: one line on stderr with the next step, exit code 1.
- Output on stderr never changes how a command ends.
- A slow reader gets everything, also through a non-blocking pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from dlog import connect_sync
from dlog.cli.main import dlog as commands
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import LedgerId
from dlog.model.ledger import LedgerKey
from tests.integration.cli.up import Up, dlog, up_for_many, wait_until
from tests.integration.spark.abandoned import Abandoned
from tests.stopped_bookie import stopped_bookie

PATIENCE_S = 120.0
# without bookies: their cookies would stay, so that bookies of the shared ZooKeeper would be away
SMALL = " --bookies 0 --write-proxies 1 --read-proxies 1 --zookeeper {zookeeper} --namespace /{victim}"


class Case(NamedTuple):
    """`arguments` may name {stream}, {ledger}, {sink} and {victim}, a name of this case's own; `makes` creates it as a
    stream."""

    arguments: str
    makes: bool = False


CASES: dict[str, Case] = {
    "alter": Case("alter {victim} --retention 1h", makes=True),
    "append": Case("append {stream} -"),
    "append --json": Case("append {stream} - --json"),
    "bookie convert": Case("bookie convert {stopped} --to sorted"),
    "bookie decommission": Case("bookie decommission nobody:1"),
    "bookie fsck": Case("bookie fsck {stopped}"),
    "bookie fsck --json": Case("bookie fsck {stopped} --json"),
    "bookie gc": Case("bookie gc --wait"),
    "bookie ls": Case("bookie ls"),
    "bookie pause": Case("bookie pause nobody:1 --end"),
    "bookie replace": Case("bookie replace nobody:1 {bookie}"),
    "bookie status": Case("bookie status"),
    "cluster init": Case("cluster init"),
    "cluster rebalance": Case("cluster rebalance --dry-run"),
    "cluster status": Case("cluster status"),
    "cluster status --watch": Case("cluster status --watch"),
    "cluster status --watch --json": Case("cluster status --watch --every 100ms --json"),
    "create": Case("create {victim}-new"),
    "delete": Case("delete {victim} --yes", makes=True),
    "explain": Case("explain {stream} 1:0:0"),
    "ledger adopt": Case("ledger adopt {stray}"),
    "ledger create": Case("ledger create - --quorum 1/1/1"),
    "ledger ls": Case("ledger ls"),
    "ledger ls --json": Case("ledger ls --json"),
    "ledger read": Case("ledger read {ledger}"),
    "ledger read --format raw": Case("ledger read {ledger} --format raw"),
    "ledger recover": Case("ledger recover {ledger} --yes"),
    "ledger show": Case("ledger show {ledger}"),
    "ledger strays": Case("ledger strays --gap 10"),
    "ledger verify": Case("ledger verify {ledger}"),
    "ledger verify --all": Case("ledger verify --all"),
    "ledger verify --all --json": Case("ledger verify --all --json"),
    "ls": Case("ls"),
    "object fsck": Case("object fsck"),
    "object fsck --json": Case("object fsck --json"),
    "object ls": Case("object ls"),
    "object search": Case("object search {objects} --from 0"),
    "object show": Case("object show {objects}"),
    "owners": Case("owners"),
    "read": Case("read {stream} --limit 3"),
    "read --format json": Case("read {stream} --limit 3 --format json"),
    "seal": Case("seal {victim}", makes=True),
    "region clean": Case("region clean n/r --topics file://{topics}"),
    "region create": Case("region create n/r --topics file://{topics}"),
    "region drop": Case("region drop n/r --table 2 --topics file://{topics}"),
    "region mark": Case("region mark n/r --table 1 --below 1 --topics file://{topics}"),
    "region read": Case("region read n/r --table 1 --topics file://{topics}"),
    "region read --json": Case("region read n/r --json --topics file://{topics}"),
    "region show": Case("region show n/r --topics file://{topics}"),
    "region verify": Case("region verify n/r --topics file://{topics}"),
    "region write": Case("region write n/r --table 1 --topics file://{topics}"),
    "show": Case("show {stream}"),
    "sink ls": Case("sink ls"),
    "sink retire": Case("sink retire {sink} --dry-run"),
    "truncate": Case("truncate {victim} 1:0:0", makes=True),
    "up": Case("up --dir {directory}/more" + SMALL),
    "up --json": Case("up --dir {directory}/json --json" + SMALL),
    "--help": Case("--help"),
    "--version": Case("--version"),
    "ledger ls --help": Case("ledger ls --help"),
    "bookie run --help": Case("bookie run --help"),
    "read-proxy run --help": Case("read-proxy run --help"),
    "recovery run --help": Case("recovery run --help"),
    "write-proxy run --help": Case("write-proxy run --help"),
}

#: commands that a signal ends, and output after which they get it
ENDLESS = {
    "up": b"the cluster is up",
    "up --json": b'"connect"',
    "cluster status --watch": b"\n\ntime ",  # of the second block
    "cluster status --watch --json": b"}\n{",
}

#: commands that print the same twice
STEADY = {
    "bookie convert", "bookie fsck", "bookie fsck --json", "explain", "ledger read", "ledger read --format raw",
    "ledger show", "ledger verify", "read", "read --format json", "--help", "--version", "ledger ls --help",
    "bookie run --help", "read-proxy run --help", "recovery run --help", "write-proxy run --help",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster of this file's own: `ledger verify --all` reads every entry, and that of the other files has many."""
    with up_for_many(tmp_path_factory, "output") as running:
        yield running


@pytest.fixture(scope="module")
def places(cluster: Up) -> dict[str, str]:
    """A stream with records, the ledger that holds them, which is closed while the stream goes on in another, and a
    sink with a stage."""
    ledger = made(cluster, "out")
    code, _, err = dlog("ledger", "recover", ledger, "--yes", directory=cluster.directory)
    assert code == 0, err
    with connect_sync(cluster.running.connect) as client:
        sink = Abandoned(cluster, client).sink
    code, _, err = dlog("create", "objects", "--store", "s3", directory=cluster.directory)
    assert code == 0, err
    made(cluster, "objects")
    topics = str(cluster.directory / "topics")
    for words in ("region create n/r", "region write n/r --table 1", "region write n/r --table 2"):
        code, _, err = dlog(
            *words.split(), "--topics", f"file://{topics}", directory=cluster.directory, given=b"1\n2\n"
        )
        assert code == 0, err
    bookie, stopped = cluster.part("bookie").address, cluster.directory / "stopped-bookie"
    stopped_bookie(stopped)
    found = {"bookie": bookie, "stream": "out", "ledger": ledger, "sink": sink, "topics": topics, "objects": "objects"}
    return found | {"stopped": str(stopped)}


def made(cluster: Up, stream: str) -> str:
    """A new stream with a few records; returns its ledger."""
    code, _, err = dlog("append", stream, "--create", directory=cluster.directory, given=b"one\ntwo\nthree\n" * 50)
    assert code == 0, err
    code, out, err = dlog("show", stream, "--json", directory=cluster.directory)
    assert code == 0, err
    return str(json.loads(out)["segments"][0]["location"])


async def forget(cluster: Up, ledger: LedgerId) -> None:
    """Remove a ledger that bookies hold from metadata, as a restore of ZooKeeper may."""
    running = cluster.running
    async with await ZooKeeperMetadata.connect(running.zookeeper, running.namespace) as metadata:
        await metadata.delete(LedgerKey(ledger))


@contextmanager
def closed_pipe() -> Iterator[int]:
    """The write end of a pipe whose read end is closed before any process starts."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        yield writes
    finally:
        os.close(writes)


@contextmanager
def full_disk() -> Iterator[int]:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        yield full
    finally:
        os.close(full)


def run(cluster: Up, arguments: Sequence[str], stdout: int, stderr: int = subprocess.PIPE) -> tuple[int, str]:
    """Run one command; returns its exit code and stderr."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DLOG_") and k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "dlog", *arguments],
        input=b"a\nb\n",
        stdout=stdout,
        stderr=stderr,
        timeout=PATIENCE_S,
        env={**environment, "DLOG_DIR": str(cluster.directory)},
        check=False,
    )
    return done.returncode, (done.stderr or b"").decode()


def arguments_of(cluster: Up, name: str, kind: str, places: dict[str, str], tmp_path: Path) -> list[str]:
    victim = f"{kind}-{name}".replace(" ", "")
    stray = ""
    if CASES[name].makes:
        made(cluster, victim)
    if "{stray}" in CASES[name].arguments:
        stray = made(cluster, victim)
        asyncio.run(forget(cluster, LedgerId(int(stray))))
    more = {"victim": victim, "stray": stray, "directory": tmp_path, "zookeeper": cluster.running.zookeeper}
    return CASES[name].arguments.format(**places, **more).split()


def test_every_command_is_in_the_table() -> None:
    def leaves(group: click.Group, before: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from leaves(command, f"{before}{name} ")
            else:
                yield f"{before}{name}"

    assert isinstance(commands, click.Group)
    jobs = {name for name in leaves(commands, "") if name.startswith("pipeline ")}  # in tests/unit/cli/test_pipeline.py
    servers = {name for name in leaves(commands, "") if name.endswith(" run")}  # they print nothing, but for --help
    assert set(leaves(commands, "")) - jobs - servers <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_pipe_closed_before_the_start_is_no_failure(
    cluster: Up, places: dict[str, str], name: str, tmp_path: Path
) -> None:
    with closed_pipe() as nobody:
        code, said = run(cluster, arguments_of(cluster, name, "closed", places, tmp_path), nobody)
    assert (code, said) == (0, "")


@pytest.mark.parametrize("name", CASES)
def test_output_without_room_is_a_failure_in_a_line(
    cluster: Up, places: dict[str, str], name: str, tmp_path: Path
) -> None:
    with full_disk() as full:
        code, said = run(cluster, arguments_of(cluster, name, "full", places, tmp_path), full)
    assert code == 1, said
    if "--json" in CASES[name].arguments:
        told = json.loads(said)["error"]
        assert (told["kind"], told["next"]) == ("OutputLostError", "free disk space, or redirect the output elsewhere")
        return
    first, step = said.splitlines()
    assert first == "dlog: cannot write the output: no space left on device"
    assert step == "  next: free disk space, or redirect the output elsewhere"


@contextmanager
def full_pipe() -> Iterator[tuple[int, int, int]]:
    """A full non-blocking pipe: the read end, the write end, and the number of bytes in it."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writes, False)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += os.write(writes, b"\0" * 4096)
    try:
        yield reads, writes, filled
    finally:
        os.close(reads)


def waits_or_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the command waits in poll(2) for space in its output (its loop waits in epoll), or has ended."""
    if process.poll() is not None:
        return True
    return Path(f"/proc/{process.pid}/wchan").read_text().startswith("poll_schedule")


def read_slowly(cluster: Up, arguments: Sequence[str], mark: bytes | None = None) -> tuple[int, bytes, str]:
    """Run one command on a full pipe, which is read once the command waits; returns its exit code, output, stderr.

    mark: output after which it is ended by a signal.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DLOG_") and k != "PYTHONUNBUFFERED"}
    with full_pipe() as (reads, writes, filled):
        process = subprocess.Popen(
            [sys.executable, "-m", "dlog", *arguments],
            stdin=subprocess.PIPE,
            stdout=writes,
            stderr=subprocess.PIPE,
            env={**environment, "DLOG_DIR": str(cluster.directory)},
        )
        os.close(writes)
        assert process.stdin is not None and process.stderr is not None
        with process:
            process.stdin.write(b"a\nb\n")
            process.stdin.close()
            wait_until(lambda: waits_or_ended(process), "the command neither waits for its reader nor ends")
            out = b""
            while more := os.read(reads, 4096):
                out += more
                if mark is not None and mark in out:
                    process.send_signal(signal.SIGINT)
                    mark = None
            said = process.stderr.read().decode()
        return process.returncode, out[filled:], said


@pytest.mark.parametrize("name", CASES)
def test_a_slow_reader_of_a_non_blocking_pipe_gets_everything(
    cluster: Up, places: dict[str, str], name: str, tmp_path: Path
) -> None:
    arguments = arguments_of(cluster, name, "slow", places, tmp_path)
    mark = ENDLESS.get(name)
    code, out, said = read_slowly(cluster, arguments, mark)
    assert (code, said) == (0, "")
    assert out
    if "--json" in arguments:
        assert all(json.loads(line) is not None for line in out.splitlines())
    if name in STEADY:
        assert out == dlog(*arguments, directory=cluster.directory)[1]


@pytest.mark.parametrize("name", ["up", "cluster status --watch", "read", "ls"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_whose_output_nobody_reads(
    cluster: Up, places: dict[str, str], name: str, number: signal.Signals, tmp_path: Path
) -> None:
    arguments = arguments_of(cluster, name, f"unread{number}", places, tmp_path)
    with full_pipe() as (_, writes, _), (tmp_path / "stderr").open("w+b") as said:
        os.set_blocking(writes, True)
        process = subprocess.Popen(
            [sys.executable, "-m", "dlog", *arguments],
            stdout=writes,
            stderr=said,
            env={**os.environ, "DLOG_DIR": str(cluster.directory)},
        )
        os.close(writes)
        with process:
            wait_until(lambda: waits_or_ended(process), "the command neither waits for its reader nor ends")
            assert process.poll() is None
            process.send_signal(number)
            try:
                assert process.wait(PATIENCE_S) in (0, 1, -number)
            finally:
                process.kill()
        assert b"Traceback" not in (tmp_path / "stderr").read_bytes()


@pytest.mark.parametrize(
    "arguments", ["read {big}", "read {big} --format framed", "read {big} --json", "ledger read {ledger}", "ls"]
)
def test_more_than_a_pipe_holds_arrives_whole(cluster: Up, places: dict[str, str], arguments: str) -> None:
    code, _, err = dlog("append", "big", "--create", directory=cluster.directory, given=b"0123456789abcdef\n" * 20_000)
    assert code == 0, err
    ledger = json.loads(dlog("show", "big", "--json", directory=cluster.directory)[1])["segments"][0]["location"]
    words = arguments.format(big="big", ledger=ledger).split()
    code, out, said = read_slowly(cluster, words)
    assert (code, said) == (0, "")
    assert out == dlog(*words, directory=cluster.directory)[1]


@pytest.mark.parametrize(
    ("arguments", "code"), [(("ls",), 0), (("show", "nosuch"), 1), (("read", "a/b"), 2), (("frobnicate",), 2)]
)
def test_nobody_on_stderr_changes_nothing(cluster: Up, arguments: tuple[str, ...], code: int) -> None:
    with full_disk() as full, closed_pipe() as nobody:
        assert run(cluster, arguments, subprocess.DEVNULL, stderr=full)[0] == code
        assert run(cluster, arguments, subprocess.DEVNULL, stderr=nobody)[0] == code


def test_records_are_appended_whoever_hears_of_it(cluster: Up) -> None:
    made(cluster, "unheard")
    with closed_pipe() as nobody:
        assert run(cluster, ("append", "unheard"), nobody, stderr=nobody)[0] == 0
    code, out, err = dlog("read", "unheard", directory=cluster.directory)
    assert (code, out.splitlines()[-2:]) == (0, [b"a", b"b"]), err
