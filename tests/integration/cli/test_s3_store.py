"""Clusters with streams on the store `s3`, with real processes that are killed, frozen and badly configured.

Uploads, compactions and deletions come seconds after each other here; a configuration file makes them so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Any

import pytest

from dlog import connect_sync
from dlog.io.children import die_with_parent, module_environment, python_module
from dlog.model.ids import WAL_STREAM
from loadtest.systems import versitygw
from loadtest.systems.nodes import listens
from tests.integration.cli.up import PATIENCE_S, Up, dlog, up, up_for_many, wait_until
from tests.integration.storage import need_storage
from tests.ports import HOST, free_port

LINES = b"".join(b"line %d\n" % n for n in range(5000))
#: hardly compressible, so that a few of them fill an upload
WIDE = b"".join(b"%s\n" % random.Random(n).randbytes(60).hex().encode() for n in range(3000))
SOON = """\
[objects]
upload_bytes = 262144
upload_s = 1.0
stream_object_bytes = 65536
wal_segment_bytes = 262144
compaction_s = 1.0
split_after_s = 1.0
marked_grace_s = 0.0
merged_grace_s = 0.0
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("s3-config") / "dlog.toml"
    file.write_text(SOON)
    return file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3") / "objects"


@pytest.fixture(scope="module")
def on_objects(tmp_path_factory: pytest.TempPathFactory, root: Path, config: Path) -> Iterator[Up]:
    """One cluster without bookies for the tests that do not end it: its logs and metadata are chunks."""
    flags = ("--bookies", "0", "--objects", f"file://{root}", "--config", str(config))
    with up_for_many(tmp_path_factory, "s3", *flags) as running:
        yield running


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, (out[-3000:], err)
    return out


def shown(cluster: Up, stream: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ok(cluster, "show", stream, "--json"))
    return told


def stores_of(cluster: Up, stream: str) -> list[str]:
    """The stores of the stream's segments, oldest first, each run of equal ones once."""
    stores = [segment["store"] for segment in shown(cluster, stream)["segments"]]
    return [store for n, store in enumerate(stores) if n == 0 or stores[n - 1] != store]


def read_by_each(cluster: Up, stream: str) -> bytes:
    """What the read proxies give, which must be the same through each of them."""
    proxies = [part for part in cluster.running.parts if part.role == "read"]
    first, *others = (
        ok(cluster, "read", stream, "--from-start", "--connect", f"dlog://{part.address}") for part in proxies
    )
    assert all(other == first for other in others)
    return first


def kill_all(cluster: Up) -> None:
    """SIGKILL every process of the cluster at once."""
    for pid in (cluster.process.pid, *(part.pid for part in cluster.running.parts)):
        with contextlib.suppress(ProcessLookupError):  # they die with their parent, and may have ended already
            os.kill(pid, signal.SIGKILL)
    cluster.process.wait()


def kill_writers(cluster: Up) -> None:
    writers = [part for part in cluster.running.parts if part.role == "write" and part.pid]
    for part in writers:
        os.kill(part.pid, signal.SIGKILL)


def append_during(cluster: Up, stream: str, *events: Callable[[], object]) -> bytes:
    """Append to a stream with one command, which goes on while the events happen one after another; returns what."""
    parts = [b"".join(b"%d %d %s\n" % (of, n, b"x" * 80) for n in range(5000)) for of in range(len(events) + 1)]
    log = cluster.directory.parent / f"append-{stream}.log"
    command = python_module("dlog", "append", stream, "-", "--dir", str(cluster.directory))
    with log.open("wb") as out, Popen(command, stdin=PIPE, stdout=out, stderr=out) as appending:
        assert appending.stdin is not None
        written = 0
        for part, event in zip(parts, (*events, None), strict=True):
            appending.stdin.write(part)
            appending.stdin.flush()
            written += part.count(b"\n")
            if event is not None:
                last = ok(cluster, "read", stream, "--from-start", "--follow", "--limit", str(written - 4000))
                assert last.count(b"\n") == written - 4000, "it is being written"
                event()
        appending.stdin.close()
        assert appending.wait(PATIENCE_S) == 0, log.read_text()
    return b"".join(parts)


def told(cluster: Up, event: str) -> list[dict[str, Any]]:
    """The events of this name in the logs of the write proxies."""
    lines = (line for log in (cluster.directory / "logs").glob("write-*.log") for line in log.read_text().splitlines())
    return [json.loads(line) for line in lines if f'"event": "{event}"' in line]


def objects_of(root: Path) -> dict[str, int]:
    """The objects of streams below a root, with their bytes."""
    found = {}
    for path in root.glob("*/streams/**/*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file():
                found[str(path.relative_to(root))] = path.stat().st_size
    return found


def wal_segments_of(root: Path) -> set[str]:
    """The segments of logs of nodes below a root."""
    found = set()
    for begin in root.glob(f"*/segments/*/{0:020d}"):
        with contextlib.suppress(FileNotFoundError):
            if WAL_STREAM.encode() in begin.read_bytes():
                found.add(begin.parent.name)
    return found


@contextlib.contextmanager
def proxy(cluster: Up, role: str, name: str, **environment: str) -> Iterator[tuple[Popen[bytes], str, Path]]:
    """A further proxy of the cluster, with nothing configured but by `environment`: process, address and log."""
    port, log = free_port(), cluster.directory.parent / f"{name}-{role}.log"
    flags = ("--zookeeper", cluster.running.zookeeper, "--namespace", cluster.running.namespace, "--host", HOST)
    command = python_module(f"proxies.{role}", *flags, "--port", str(port), "--id", name)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=DEVNULL,
            stdout=out,
            stderr=STDOUT,
            env=module_environment(DLOG_FILE_DIRECTORY=cluster.running.file_directory, **environment),
            preexec_fn=die_with_parent(),
        )
    try:
        wait_until(lambda: asyncio.run(listens(port)) or process.poll() is not None, "it does not begin")
        yield process, f"{HOST}:{port}", log
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


# ---- a cluster that has objects in a directory, and no bookies ---------------------------------------------------


def test_what_is_appended_becomes_objects_and_the_log_is_deleted(on_objects: Up, root: Path) -> None:
    ok(on_objects, "create", "s", "--store", "s3", "--segment-bytes", "512KiB")
    written = b""
    for _ in range(8):
        ok(on_objects, "append", "s", given=WIDE)
        written += WIDE
    assert read_by_each(on_objects, "s") == written
    assert stores_of(on_objects, "s") == ["s3"] and len(shown(on_objects, "s")["segments"]) > 1
    wait_until(lambda: sum(objects_of(root).values()) > len(written) * 0.6, "nothing is uploaded")
    nodes = {event["node"] for event in told(on_objects, "object_node.begun")}
    wait_until(lambda: len(wal_segments_of(root)) <= 2 * len(nodes), "logs are not deleted")
    wait_until(lambda: bool(told(on_objects, "objects.compacted")), "nothing is compacted")
    for part in [part for part in on_objects.running.parts if part.role == "read"]:
        on_objects.wait_restarted(on_objects.kill_part("read", part.address))  # it has the newest entries in memory
    assert read_by_each(on_objects, "s") == written


def test_an_owner_that_is_killed_while_it_appends_loses_repeats_and_reorders_nothing(on_objects: Up) -> None:
    ok(on_objects, "create", "killed", "--store", "s3")
    written = append_during(
        on_objects,
        "killed",
        lambda: on_objects.kill_part("write", shown(on_objects, "killed")["owner"]["location"]),
    )
    assert read_by_each(on_objects, "killed") == written
    assert shown(on_objects, "killed")["owner"]["epoch"] >= 2


def test_all_write_proxies_killed_at_once_lose_nothing(on_objects: Up) -> None:
    ok(on_objects, "create", "all-killed", "--store", "s3")
    written = append_during(on_objects, "all-killed", lambda: kill_writers(on_objects))
    assert read_by_each(on_objects, "all-killed") == written


def test_an_owner_that_was_frozen_and_taken_over_has_its_appends_refused(on_objects: Up) -> None:
    ok(on_objects, "create", "frozen", "--store", "s3")
    frozen: list[int] = []

    def freeze() -> None:
        owner = on_objects.part("write", shown(on_objects, "frozen")["owner"]["location"])
        os.kill(owner.pid, signal.SIGSTOP)
        frozen.append(owner.pid)

    ended = len(told(on_objects, "object_node.ended"))
    try:
        written = append_during(on_objects, "frozen", freeze)
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: len(told(on_objects, "object_node.ended")) > ended, "the node that was frozen goes on")
    assert read_by_each(on_objects, "frozen") == written
    assert shown(on_objects, "frozen")["owner"]["epoch"] >= 2
    ok(on_objects, "append", "frozen", given=LINES)
    assert read_by_each(on_objects, "frozen") == written + LINES


def test_a_stream_moves_between_stores_while_it_is_written(on_objects: Up) -> None:
    ok(on_objects, "create", "moved", "--store", "s3", "--segment-bytes", "64KiB")
    command = python_module("dlog", "append", "moved", "-", "--dir", str(on_objects.directory))
    written: list[bytes] = []
    with Popen(command, stdin=PIPE, stdout=DEVNULL) as appending:
        stdin = appending.stdin
        assert stdin is not None

        def write_until(stores: list[str]) -> None:
            """Write until the stream has segments in these stores, in this order."""
            while stores_of(on_objects, "moved") != stores:
                line = b"%d %s\n" % (len(written), random.Random(len(written)).randbytes(20_000).hex().encode())
                written.append(line)
                stdin.write(line)
                stdin.flush()

        there = ["s3"]
        write_until(there)
        for store in ("s3-direct", "s3", "file", "s3"):
            ok(on_objects, "alter", "moved", "--store", store)
            there.append(store)
            write_until(there)
        stdin.close()
        assert appending.wait(PATIENCE_S) == 0
    assert read_by_each(on_objects, "moved") == b"".join(written)


def test_what_is_truncated_retired_or_deleted_leaves_no_objects(on_objects: Up, root: Path) -> None:
    for event in ("truncated", "retired"):
        ok(on_objects, "create", event, "--store", "s3", "--segment-bytes", "64KiB")
        while len(shown(on_objects, event)["segments"]) < 4:
            ok(on_objects, "append", event, given=WIDE)
    everything = ok(on_objects, "read", "truncated", "--from-start")
    kept = shown(on_objects, "truncated")["segments"][-1]["number"]
    ok(on_objects, "truncate", "truncated", f"{kept}:0:0")
    wait_until(lambda: not shown(on_objects, "truncated")["segments_to_delete"], "truncated segments stay")
    assert everything.endswith(read_by_each(on_objects, "truncated"))
    ok(on_objects, "alter", "retired", "--retention", "1s")
    wait_until(lambda: shown(on_objects, "retired")["segments"][0]["number"] > 1, "old segments stay")

    names = [line.split()[0].decode() for line in ok(on_objects, "ls").splitlines()]
    assert not any(name.startswith("_dlog.") for name in names)
    for name in names:
        ok(on_objects, "delete", name, "--yes")
    wait_until(lambda: not objects_of(root), f"objects stay: {list(objects_of(root))}")
    code, _, err = dlog("read", "truncated", directory=on_objects.directory)
    assert code == 1 and "no such stream" in err, err
    ok(on_objects, "create", "truncated", "--store", "s3")
    ok(on_objects, "append", "truncated", given=LINES)
    assert read_by_each(on_objects, "truncated") == LINES


def test_clients_cannot_change_streams_with_reserved_names(on_objects: Up) -> None:
    ok(on_objects, "append", "any", "--create", given=LINES)
    for command in (
        ("create", "_dlog.x"),
        ("append", "_dlog.objects"),
        ("alter", "_dlog.objects", "--store", "file"),
        ("truncate", "_dlog.objects", "1:0:0"),
        ("seal", "_dlog.objects"),
        ("delete", "_dlog.objects", "--yes"),
    ):
        code, _, err = dlog(*command, directory=on_objects.directory, given=LINES)
        assert code != 0 and "reserved for dlog itself" in err and "choose another name" in err, (command, err)


def test_a_proxy_without_objects_says_what_to_configure(on_objects: Up) -> None:
    """Some streams it leaves to other proxies; the others it cannot read."""
    many, read, refused = WIDE * 4, 0, ""
    with proxy(on_objects, "read", "bare") as (_, address, _), connect_sync(on_objects.running.connect) as client:
        while not refused:
            name, read = f"elsewhere-{read}", read + 1
            ok(on_objects, "create", name, "--store", "s3")
            ok(on_objects, "append", name, given=many)
            client.hand_over(name)  # else the owner gives what it has in memory
            ok(on_objects, "append", name, given=WIDE)
            arguments = ("read", name, "--from-start", "--connect", f"dlog://{address}")
            code, out, err = dlog(*arguments, directory=on_objects.directory)
            if code:
                assert (code, out) == (1, b"")
                assert "store=s3" in err and "set `root` in [objects], or DLOG_OBJECTS_ROOT" in err, err
                refused = name
            else:
                assert out == many + WIDE
                assert read < 40, "it reads what it cannot reach"
    with proxy(on_objects, "write", "bare") as (_, address, _):
        create = ("create", "more", "--store", "s3", "--connect", f"dlog://{address}")
        code, _, err = dlog(*create, directory=on_objects.directory)
        assert code == 2 and "no such store, choose one of" in err, err
    assert read_by_each(on_objects, refused) == many + WIDE


# ---- a cluster with bookies ------------------------------------------------------------------------------------------


def test_with_bookies_kill_9_of_everything_at_once_loses_nothing(tmp_path: Path, config: Path) -> None:
    directory, root, elsewhere = tmp_path / "c", tmp_path / "objects", tmp_path / "elsewhere"
    with up(directory, "--objects", f"file://{root}", "--config", str(config)) as first:
        ok(first, "create", "plain")
        assert shown(first, "plain")["settings"]["store"] == "ledger", "the default stays with bookies"
        ok(first, "create", "s", "--store", "s3")
        written = append_during(
            first,
            "s",
            lambda: first.kill_part("write", shown(first, "s")["owner"]["location"]),
            lambda: first.kill_part("bookie"),
        )
        assert read_by_each(first, "s") == written
        ok(first, "alter", "s", "--store", "ledger")
        ok(first, "alter", "s", "--store", "s3")
        ok(first, "append", "s", given=LINES)
        kill_all(first)
    code, _, err = dlog("up", "--objects", f"file://{elsewhere}", directory=directory)
    assert code == 2 and "not at this root" in err, err
    assert not elsewhere.exists(), "nothing is created there"
    with up(directory, "--objects", f"file://{root}", "--config", str(config)) as again:
        assert read_by_each(again, "s") == written + LINES
        ok(again, "append", "s", given=LINES)
        assert read_by_each(again, "s") == written + LINES + LINES
        assert set(stores_of(again, "s")) >= {"s3"}
        assert again.end() == 0


# ---- a cluster on an S3 server ---------------------------------------------------------------------------------------


def test_on_an_s3_server_that_is_killed_and_comes_back(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as s3:
        for name, text in versitygw.settings(s3.port, "objects").items():
            monkeypatch.setenv(name, text)
        root = f"s3://{versitygw.BUCKET}/streams"
        with monkeypatch.context() as wrong:
            wrong.setenv("DLOG_OBJECTS_S3_SECRET_KEY", "another")
            code, _, err = up_refused(tmp_path / "c", root)
            assert code == 2 and "correct --objects, or the section [objects]" in err, err
        flags = ("--bookies", "0", "--objects", root, "--config", str(config))
        with up(tmp_path / "c", *flags) as running:
            ok(running, "create", "s", "--store", "s3")
            written = append_during(
                running,
                "s",
                lambda: running.kill_part("write", shown(running, "s")["owner"]["location"]),
                s3.kill_and_start,
            )
            assert read_by_each(running, "s") == written
            assert stores_of(running, "s") == ["s3"]
            wait_until(lambda: bool(told(running, "object_node.uploaded")), "nothing is uploaded")
            ok(running, "append", "s", given=LINES)
            assert read_by_each(running, "s") == written + LINES
            assert running.end() == 0


class KilledS3Server:
    """versitygw on a directory, on a port that stays the same."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._data, self._log = directory / "data", directory / "log"
        (self._data / versitygw.BUCKET).mkdir(parents=True)
        self._process: Popen[bytes] | None = None

    def start(self) -> None:
        line, keys = versitygw.command(self.port, self._data)
        with self._log.open("ab") as out:
            self._process = Popen(
                line, stdin=DEVNULL, stdout=out, stderr=out, env={**os.environ, **keys}, preexec_fn=die_with_parent()
            )
        wait_until(lambda: asyncio.run(listens(self.port)), "the S3 server does not begin")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_and_start(self) -> None:
        self.kill()
        self.start()


@contextlib.contextmanager
def s3_server(directory: Path) -> Iterator[KilledS3Server]:
    need_storage("s3")
    server = KilledS3Server(directory)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def up_refused(directory: Path, root: str) -> tuple[int, bytes, str]:
    """Start a cluster that must be refused, with the environment of this process."""
    done = subprocess.run(
        python_module("dlog", "up", "--dir", str(directory), "--bookies", "0", "--objects", root),
        env=module_environment(),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.decode()
