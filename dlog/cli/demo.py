"""`make demo`: a file goes in while processes are killed, and comes back whole.

    python -m dlog.cli.demo [FILE]

Starts a cluster in a temporary directory by `dlog up`, appends the lines of FILE, kills the owning write proxy with
SIGKILL once a third is acknowledged and a bookie of the ensemble a little later, finishes, reads everything back from
the first DLSN and from a txid in the middle, and compares line by line; then has Spark count its words, and compares
those. Exit 1 if one line or one count differs. Nothing is paced and nothing is pretended: what is printed was measured
in this run.
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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from dlog.cli.demo_words import count_words
from dlog.cli.discovery import Running, read_run_file
from dlog.cli.main import heard
from dlog.cli.telling import EXIT_FAILED, EXIT_OK, CommandError, FileRefusedError, OutputLostError, output, tell_error
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
BATCHES_MIN = 60  # so that kills fall between batches even of a small file
BATCH_BYTES = 180 * 1024
UP_TIMEOUT_S = 240.0


@dataclass(slots=True)
class Kill:
    """One process that was killed, and when."""

    what: str
    at_s: float
    acknowledged: int


@dataclass(slots=True)
class Appended:
    """What was acknowledged, batch by batch."""

    batches: list[BatchResult] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    records: int = 0

    def gap_s(self, kill: Kill) -> float:
        """The longest wait for an acknowledgement from the kill on, until the next kill or the end."""
        later = [k.at_s for k in self.kills if k.at_s > kill.at_s]
        end_s = min(later, default=self.times_s[-1])
        times = [t for t in self.times_s if kill.at_s <= t <= end_s]
        return max((b - a for a, b in zip([kill.at_s, *times], times, strict=False)), default=0.0)


@dataclass(slots=True)
class Compared:
    """What came back, against what went in."""

    lost: int
    duplicated: int
    displaced: int  # there, but not in its order
    mistold: int  # batches that do not lie where their acknowledgement said
    seconds: float

    @property
    def is_whole(self) -> bool:
        return not (self.lost or self.duplicated or self.displaced or self.mistold)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False)
@click.option("--keep", is_flag=True, help="Leave the directory of the cluster behind.")
def demo(file: str | None, keep: bool) -> int:
    """Append the lines of FILE to a cluster while processes are killed, read them back, compare.

    Without FILE: the sources of Python's standard library, cut at 300,000 lines.
    """
    begun_s = monotonic_s()
    lines = _lines_of(Path(file)) if file else _library_lines()
    directory = Path(tempfile.mkdtemp(prefix="dlog-demo-"))
    try:
        whole = asyncio.run(_demo(directory, lines))
    finally:
        if keep:
            _say(f"the cluster's directory is left at {directory}; `dlog up --dir {directory}` finds the data")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    _say(f"{'OK' if whole else 'FAILED'}: done in {monotonic_s() - begun_s:.1f} s")
    return EXIT_OK if whole else EXIT_FAILED


async def _demo(directory: Path, lines: list[bytes]) -> bool:
    size = sum(map(len, lines)) + len(lines)
    _say(f"{len(lines):,} lines, {size / 1e6:.1f} MB; starting ZooKeeper, 3 bookies, 2 write and 2 read proxies")
    begun_s = monotonic_s()
    async with _cluster(directory) as running:
        _say(f"the cluster is up after {monotonic_s() - begun_s:.1f} s: {running.connect}")
        async with connect(running.connect) as client:
            await client.create(STREAM)
            begun_s = monotonic_s()
            appended = await _append(client, directory, lines)
            seconds = monotonic_s() - begun_s
            _tell_append(appended, len(lines), size, seconds, begun_s)
            first = appended.batches[0].first
            everything = await _compare(client, at_dlsn(first), lines, appended.batches)
            _tell_compared(f"read back from {first}", everything, len(lines))
            txid, index = _middle(appended)
            half = await _compare(client, at_txid(txid), lines[index:], [])
            _tell_compared(f"read back from txid {txid} in the middle", half, len(lines) - index)
            owner = await client.owner(STREAM)
            _say(f"the stream is owned by {owner['location']} now, in epoch {owner['epoch']}")
        is_counted = await _count_words(running, lines)
    is_whole = everything.is_whole and half.is_whole and is_counted
    return is_whole and appended.records == len(lines) and len(appended.kills) == 2


# ---- the cluster ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _cluster(directory: Path) -> AsyncIterator[Running]:
    """`dlog up` in a process of its own, ended whatever happens."""
    process = await asyncio.create_subprocess_exec(
        *python_module("dlog", "up", "--dir", str(directory), "--json"),
        env=module_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(UP_TIMEOUT_S):
            told = await process.stdout.readline()
        if not told:
            raise CommandError("the cluster did not start", f"see {directory}/logs with --keep", misused=False)
        json.loads(told)
        running = read_run_file(directory)
        assert running is not None, "the run file is there before the line is said"
        yield running
    except TimeoutError:
        raise CommandError(f"the cluster was not up within {UP_TIMEOUT_S:g} s", "try again with --keep") from None
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
    """SIGKILL the part with that role whose address matches; returns what it was."""
    running = read_run_file(directory)
    assert running is not None, "the cluster runs"
    part = next(p for p in running.parts if p.role == role and matches(p.address) and p.pid)
    os.kill(part.pid, signal.SIGKILL)
    return f"{role} {'proxy ' if role != 'bookie' else ''}{part.id} (pid {part.pid}, {part.address})"


# ---- writing --------------------------------------------------------------------------------------------------------


async def _append(client: Client, directory: Path, lines: list[bytes]) -> Appended:
    """Append everything; kill the owner at a third, a bookie at a half, counted in acknowledged records."""
    appended = Appended()
    owner = await client.owner(STREAM)  # asked now, so that the kill itself is prompt
    with _bar(len(lines)) as advance:

        def on_written(batch: BatchResult) -> None:
            appended.batches.append(batch)
            appended.times_s.append(monotonic_s())
            appended.records += batch.count
            advance(batch.count)
            done = appended.records / len(lines)
            if not appended.kills and done >= 1 / 3:
                kill("write", lambda address: address == owner["location"])
            elif len(appended.kills) == 1 and done >= 1 / 2:
                kill("bookie", lambda _: True)

        def kill(role: str, matches: Callable[[str], bool]) -> None:
            what = _kill(directory, role, matches)
            appended.kills.append(Kill(what, monotonic_s(), appended.records))

        pipeline = client.pipeline(STREAM, on_written)
        for batch in _batches(lines):
            await pipeline.put(batch)
        await pipeline.finish()
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


async def _compare(client: Client, start: Position, lines: list[bytes], told: list[BatchResult]) -> Compared:
    """Read to the end and compare, line by line; and the places of batches with what was told of them, if it was."""
    begun_s = monotonic_s()
    found: list[bytes] = []
    places: dict[DLSN, tuple[int, int]] = {}
    async for batch in client.read_batches(STREAM, start):
        found += batch.payloads
        places[batch.dlsn] = batch.txid, len(batch)
    seconds = monotonic_s() - begun_s
    mistold = sum(1 for b in told if places.get(b.first) != (b.txid, b.count))
    if found == lines:
        return Compared(0, 0, 0, mistold, seconds)
    expected, came = Counter(lines), Counter(found)
    lost, duplicated = (expected - came).total(), (came - expected).total()
    displaced = sum(1 for a, b in zip(lines, found, strict=False) if a != b) if not (lost or duplicated) else 0
    return Compared(lost, duplicated, displaced, mistold, seconds)


async def _count_words(running: Running, lines: list[bytes]) -> bool:
    """Whether Spark counts the words that were written, each as often as it was."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        _say("not run: words counted in Spark; pip install 'dlogd[spark]' brings it")
        return True
    begun_s = monotonic_s()
    process = await asyncio.create_subprocess_exec(
        *python_module("dlog.cli.demo_words", running.zookeeper, running.namespace, STREAM),
        env=module_environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=die_with_parent(),
    )
    told, complaint = await process.communicate()
    if process.returncode:
        _say(f"Spark failed: {complaint.decode(errors='replace')[-2000:]}")
        return False
    seconds = monotonic_s() - begun_s
    counts, expected = json.loads(told), count_words(lines)
    common = ", ".join(f"{word} {count:,}" for word, count in expected.most_common(3))
    wrong = sum(1 for word in counts.keys() | expected.keys() if counts.get(word) != expected[word])
    _say(
        f"Spark counted {sum(counts.values()):,} words, {len(counts):,} different ones, straight from the bookies in "
        f"{seconds:.1f} s, its start included ({common}, ...); counted wrongly {wrong}"
    )
    return not wrong


# ---- telling --------------------------------------------------------------------------------------------------------


def _tell_append(appended: Appended, lines: int, size: int, seconds: float, begun_s: float) -> None:
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


def _tell_compared(what: str, compared: Compared, records: int) -> None:
    rate = records / compared.seconds if compared.seconds else 0
    _say(
        f"{what}: {records:,} records in {compared.seconds:.2f} s, {rate:,.0f} records/s; "
        f"lost {compared.lost}, duplicated {compared.duplicated}, out of order {compared.displaced}, "
        f"told a wrong place {compared.mistold}"
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
            f"cannot read the file: {(error.strerror or str(error)).lower()}: file={file}", "name a file of lines"
        ) from None
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise CommandError(f"the file is empty: file={file}", "name a file of lines")
    return lines


def _library_lines() -> list[bytes]:
    """Sources of the standard library, in the order of their names, cut at LINES_MAX lines."""
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
    """The exit code: 0 whole, 1 a line differs or something failed, 2 misused."""
    return heard(_run)


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
        return tell_error(FileRefusedError(error))
    except (DLogError, KeyboardInterrupt) as error:
        return tell_error(error) if isinstance(error, DLogError) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
