"""`make demo`: appends a file while processes are killed, reads it back, and compares.

    python -m dlog.cli.demo [FILE]
    python -m dlog.cli.demo --kafka HOST:PORT[,...] --victim PID [FILE]    as loadtest/kafka_demo.py runs it
    python -m dlog.cli.demo --objects ROOT --store STORE --victim PID [FILE]    as loadtest/s3_demo.py runs it

Starts a cluster in a temporary directory with `dlog up` and appends the lines of FILE. Kills the stream's owner with
SIGKILL when a third of the records is acknowledged, and a bookie, or the victim, at half of them. Then reads
everything back from the first DLSN and from a txid in the middle and compares line by line; has Spark count the words
and compares the counts. Exit 1 if a line or a count differs. All printed figures are measured in this run, without
pacing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from dlog.cli.demo_words import count_words
from dlog.cli.discovery import RunningCluster, read_run_file
from dlog.cli.main import run_flushed
from dlog.cli.output import EXIT_FAILED, EXIT_OK, CommandError, FileRefusedError, OutputLostError, output, print_error
from dlog.client.batch import BatchResult
from dlog.client.client import Client, connect
from dlog.client.position import Position, at_dlsn, at_txid
from dlog.errors import DLogError
from dlog.io.children import die_with_parent, module_environment, python_module
from dlog.io.clock import monotonic_s
from dlog.io.file_errors import names_file
from dlog.model.dlsn import DLSN

STREAM = "demo"
LINES_MAX = 300_000
BATCHES_MIN = 60  # so that kills fall between batches even with a small file
BATCH_BYTES = 180 * 1024
UP_TIMEOUT_S = 240.0
OBJECT_STORES = ("s3-direct", "s3")


@dataclass(slots=True)
class Kill:
    """One killed process, and when it was killed."""

    what: str
    at_s: float
    acknowledged: int


@dataclass(slots=True)
class Appended:
    """The acknowledged batches, with times, and the kills."""

    batches: list[BatchResult] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    records: int = 0

    def gap_s(self, kill: Kill) -> float:
        """The longest wait for an acknowledgement between this kill and the next one, or the end."""
        later = [k.at_s for k in self.kills if k.at_s > kill.at_s]
        end_s = min(later, default=self.times_s[-1])
        times = [t for t in self.times_s if kill.at_s <= t <= end_s]
        return max((b - a for a, b in zip([kill.at_s, *times], times, strict=False)), default=0.0)


@dataclass(slots=True)
class Compared:
    """Differences between the records read and those appended."""

    lost: int
    duplicated: int
    displaced: int  # read, but in the wrong order
    wrong_dlsn: int  # batches whose DLSN differs from that of their acknowledgement
    seconds: float

    @property
    def is_whole(self) -> bool:
        return not (self.lost or self.duplicated or self.displaced or self.wrong_dlsn)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False)
@click.option("--keep", is_flag=True, help="Keep the directory of the cluster.")
@click.option("--kafka", metavar="HOST:PORT[,...]", help="Have no bookies, and the stream on these brokers.")
@click.option("--objects", metavar="ROOT", help="Have no bookies, and the stream as objects below this root.")
@click.option("--store", type=click.Choice(OBJECT_STORES), help="With --objects: the store; s3-direct by default.")
@click.option("--victim", type=click.IntRange(1), metavar="PID", help="With either: a process of it to kill.")
def demo(
    file: str | None, keep: bool, kafka: str | None, objects: str | None, store: str | None, victim: int | None
) -> int:
    """Append the lines of FILE to a new cluster while processes are killed, read them back, compare.

    Without FILE: the source of Python's standard library, at most 300,000 lines.
    """
    if kafka is not None and objects is not None:
        raise click.UsageError("the stream is in one store: give --kafka or --objects")
    if (kafka is None and objects is None) != (victim is None):
        raise click.UsageError("--victim goes with --kafka or --objects, and they with it")
    if store is not None and objects is None:
        raise click.UsageError("--store goes with --objects")
    flags: tuple[str, ...] = ()
    if victim is not None:
        flags = ("--bookies", "0", *(("--kafka", kafka) if kafka is not None else ("--objects", str(objects))))
    begun_s = monotonic_s()
    lines = _lines_of(Path(file)) if file else _library_lines()
    directory = Path(tempfile.mkdtemp(prefix="dlog-demo-"))
    try:
        whole = asyncio.run(_demo(directory, lines, flags, store, victim))
    finally:
        if keep:
            _say(f"the cluster's directory is kept: {directory}; `dlog up --dir {directory}` starts it again")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    _say(f"{'OK' if whole else 'FAILED'}: done in {monotonic_s() - begun_s:.1f} s")
    return EXIT_OK if whole else EXIT_FAILED


async def _demo(
    directory: Path, lines: list[bytes], flags: Sequence[str], store: str | None, victim: int | None
) -> bool:
    """flags: of `dlog up`. store: of the stream; None: the default. victim: a process of the store to kill; None: a
    bookie."""
    size = sum(map(len, lines)) + len(lines)
    storage = "3 bookies, " if victim is None else ""
    _say(f"{len(lines):,} lines, {size / 1e6:.1f} MB; starting ZooKeeper, {storage}2 write and 2 read proxies")
    begun_s = monotonic_s()
    async with _cluster(directory, flags) as running:
        _say(f"the cluster is up after {monotonic_s() - begun_s:.1f} s: {running.connect}")
        async with connect(running.connect) as client:
            await (client.create(STREAM) if store is None else client.create(STREAM, store=store))
            begun_s = monotonic_s()
            appended = await _append(client, directory, lines, victim)
            seconds = monotonic_s() - begun_s
            _say_appended(appended, len(lines), size, seconds, begun_s)
            first = appended.batches[0].first
            everything = await _compare(client, at_dlsn(first), lines, appended.batches)
            _say_compared(f"read back from {first}", everything, len(lines))
            txid, index = _middle(appended)
            half = await _compare(client, at_txid(txid), lines[index:], [])
            _say_compared(f"read back from txid {txid} in the middle", half, len(lines) - index)
            owner = await client.owner(STREAM)
            _say(f"the stream is owned by {owner.location} now, in epoch {owner.epoch}")
        is_counted = await _count_words(running, lines)
    is_whole = everything.is_whole and half.is_whole and is_counted
    return is_whole and appended.records == len(lines) and len(appended.kills) == 2


# ---- the cluster ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _cluster(directory: Path, flags: Sequence[str]) -> AsyncIterator[RunningCluster]:
    """`dlog up` in its own process, which is stopped in any case."""
    process = await asyncio.create_subprocess_exec(
        *python_module("dlog", "up", "--dir", str(directory), "--json", *flags),
        env=module_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(UP_TIMEOUT_S):
            line = await process.stdout.readline()
        if not line:
            raise CommandError(
                "the cluster did not start", f"see {directory}/logs; --keep leaves it there", misused=False
            )
        json.loads(line)
        running = read_run_file(directory)
        assert running is not None, "the run file is written before the line is printed"
        yield running
    except TimeoutError:
        raise CommandError(
            f"the cluster was not up within {UP_TIMEOUT_S:g} s", "run it with --keep and see its logs"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(20):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()


def _kill(directory: Path, role: str, matches: Callable[[str], bool]) -> str:
    """SIGKILL the part with this role whose address matches; returns its description."""
    running = read_run_file(directory)
    assert running is not None, "the cluster runs"
    part = next(p for p in running.parts if p.role == role and matches(p.address) and p.pid)
    os.kill(part.pid, signal.SIGKILL)
    return f"{role} {'proxy ' if role != 'bookie' else ''}{part.id} (pid {part.pid}, {part.address})"


def _kill_victim(pid: int) -> str:
    """SIGKILL the process given by --victim; returns its description."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        raise CommandError(f"no process has this id: pid={pid}", "name one with --victim") from None
    return f"a process of the store (pid {pid})"


# ---- writing --------------------------------------------------------------------------------------------------------


async def _append(client: Client, directory: Path, lines: list[bytes], victim: int | None) -> Appended:
    """Append all lines; kill the owner when a third of them is acknowledged, and a bookie, or the victim, at half."""
    appended = Appended()
    owner = await client.owner(STREAM)  # looked up now, so that the kill itself is prompt
    with _bar(len(lines)) as advance:

        def on_written(batch: BatchResult) -> None:
            appended.batches.append(batch)
            appended.times_s.append(monotonic_s())
            appended.records += batch.count
            advance(batch.count)
            done = appended.records / len(lines)
            if not appended.kills and done >= 1 / 3:
                killed(_kill(directory, "write", lambda address: address == owner.location))
            elif len(appended.kills) == 1 and done >= 1 / 2:
                killed(_kill(directory, "bookie", lambda _: True) if victim is None else _kill_victim(victim))

        def killed(what: str) -> None:
            appended.kills.append(Kill(what, monotonic_s(), appended.records))

        async with client.pipeline(STREAM, on_written) as pipeline:
            for batch in _batches(lines):
                await pipeline.put(batch)
    return appended


def _batches(lines: list[bytes]) -> Iterator[list[bytes]]:
    count_max = max(1, len(lines) // BATCHES_MIN)
    batch: list[bytes] = []
    size = 0
    for line in lines:
        if batch and (size + len(line) > BATCH_BYTES or len(batch) >= count_max):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line) + 4
    if batch:
        yield batch


def _middle(appended: Appended) -> tuple[int, int]:
    """A txid from the middle, and the index of the first record that has it or a higher one."""
    middle = appended.batches[len(appended.batches) // 2].txid
    index = 0
    for batch in appended.batches:
        if batch.txid >= middle:
            break
        index += batch.count
    return middle, index


# ---- reading --------------------------------------------------------------------------------------------------------


async def _compare(client: Client, start: Position, lines: list[bytes], results: list[BatchResult]) -> Compared:
    """Read to the end and compare line by line; compare also DLSNs with the acknowledgements in `results`."""
    begun_s = monotonic_s()
    found: list[bytes] = []
    acknowledged: dict[DLSN, tuple[int, int]] = {}
    async for batch in client.read_batches(STREAM, start):
        found += batch.payloads
        acknowledged[batch.dlsn] = batch.txid, len(batch)
    seconds = monotonic_s() - begun_s
    wrong_dlsn = sum(1 for b in results if acknowledged.get(b.first) != (b.txid, b.count))
    if found == lines:
        return Compared(0, 0, 0, wrong_dlsn, seconds)
    expected, came = Counter(lines), Counter(found)
    lost, duplicated = (expected - came).total(), (came - expected).total()
    displaced = sum(1 for a, b in zip(lines, found, strict=False) if a != b) if not (lost or duplicated) else 0
    return Compared(lost, duplicated, displaced, wrong_dlsn, seconds)


async def _count_words(running: RunningCluster, lines: list[bytes]) -> bool:
    """Whether Spark counts each word as often as it was written."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        _say("not run: word count in Spark; install it with pip install 'dlogd[spark]'")
        return True
    begun_s = monotonic_s()
    process = await asyncio.create_subprocess_exec(
        *python_module("dlog.cli.demo_words", running.zookeeper, running.namespace, STREAM),
        env=module_environment(DLOG_KAFKA_TOPICS=running.kafka_topics, DLOG_OBJECTS_ROOT=running.objects_root),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent(),
    )
    result, complaint = await process.communicate()
    if process.returncode:
        _say(f"Spark failed: {complaint.decode(errors='replace')[-2000:]}")
        return False
    seconds = monotonic_s() - begun_s
    counts, expected = json.loads(result), count_words(lines)
    async with connect(running.connect) as client:
        store = (await client.stat(STREAM)).segments[0].store
    common = ", ".join(f"{word} {count:,}" for word, count in expected.most_common(3))
    source = {"ledger": "the bookies", "kafka": "Kafka"}.get(store, "the objects")
    wrong = sum(1 for word in counts.keys() | expected.keys() if counts.get(word) != expected[word])
    _say(
        f"Spark counted {sum(counts.values()):,} words, {len(counts):,} different ones, directly from {source} in "
        f"{seconds:.1f} s, its start included ({common}, ...); wrong counts {wrong}"
    )
    return not wrong


# ---- output ---------------------------------------------------------------------------------------------------------


def _say_appended(appended: Appended, lines: int, size: int, seconds: float, begun_s: float) -> None:
    first, last = appended.batches[0].first, appended.batches[-1].last
    _say(
        f"appended {appended.records:,} of {lines:,} records, {size / 1e6:.1f} MB, {first} .. {last}, "
        f"{seconds:.2f} s, {appended.records / seconds:,.0f} records/s, kills included"
    )
    for kill in appended.kills:
        _say(
            f"  at {kill.at_s - begun_s:.2f} s, {kill.acknowledged:,} acknowledged: SIGKILL {kill.what}; "
            f"longest wait for an acknowledgement from then on {appended.gap_s(kill) * 1000:.0f} ms"
        )


def _say_compared(what: str, compared: Compared, records: int) -> None:
    rate = records / compared.seconds if compared.seconds else 0
    _say(
        f"{what}: {records:,} records in {compared.seconds:.2f} s, {rate:,.0f} records/s; "
        f"lost {compared.lost}, duplicated {compared.duplicated}, out of order {compared.displaced}, "
        f"wrong DLSN {compared.wrong_dlsn}"
    )


def _say(text: str) -> None:
    with output():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    if not sys.stdout.isatty():
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task("append", total=total)
        yield lambda count: bar.advance(task, count)


# ---- input ----------------------------------------------------------------------------------------------------------


def _lines_of(file: Path) -> list[bytes]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CommandError(
            f"cannot read the file: {(error.strerror or str(error)).lower()}: file={file}", "name a text file"
        ) from None
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise CommandError(f"the file is empty: file={file}", "name a file with lines")
    return lines


def _library_lines() -> list[bytes]:
    """Lines of the standard library's source files, sorted by name, at most LINES_MAX."""
    lines: list[bytes] = []
    for source in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in source.parts or "dist-packages" in source.parts:
            continue
        with contextlib.suppress(OSError, CommandError):
            lines += _lines_of(source)
        if len(lines) >= LINES_MAX:
            return lines[:LINES_MAX]
    return lines


def main() -> int:
    """Returns the exit code: 0 all equal, 1 a difference or a failure, 2 wrong usage."""
    return run_flushed(_run)


def _run() -> int:
    try:
        return int(demo.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except OutputLostError:
        raise
    except OSError as error:
        if not names_file(error):
            raise
        return print_error(FileRefusedError(error))
    except (DLogError, KeyboardInterrupt) as error:
        return print_error(error) if isinstance(error, DLogError) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
