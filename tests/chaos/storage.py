"""The object storage of a run: an S3 server as one more part, a proxy with faults in front of it, and the check at the
end that metadata name every object.

Proxies reach it as `versitygw`: through a link, then through the fault proxy.

Invariants:
- Uploads, compactions, deletions and new segments of the write-ahead logs come seconds after each other, so that a run
  of two minutes has hundreds of each under faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dlog.cli.parts import PartFailedError, SupervisedProcess, last_words
from dlog.hostport import join_host_port
from dlog.io.children import die_with_parent, module_environment, python_module
from loadtest.systems import versitygw
from loadtest.systems.nodes import HOST, listens
from tests.integration.stores.s3_fault_proxy import Fault, S3FaultProxy

NAME = "versitygw"
ROOT = f"s3://{versitygw.BUCKET}/chaos"
_READY_S = 30.0
_UPLOADED_S = 300.0
_AGAIN_S = 1.0
_DISTURBED_S = 3.0  # else requests of a rare kind fail for the rest of the run
_SOON = """\
[objects]
root = "{root}"
wal = "{wal}"
upload_bytes = 262144
upload_s = 1.0
stream_object_bytes = 65536
node_cache_bytes_max = 33554432
wal_segment_bytes = 1048576
compaction_s = 2.0
split_after_s = 5.0
minor_bytes = 2097152
major_bytes = 16777216
marked_grace_s = 3.0
merged_grace_s = 3.0
"""
#: by the name that a plan has: the fault, and the methods whose next requests have it
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "drop-request": (Fault.DROP_REQUEST, ("PUT", "GET", "HEAD", "POST")),
    "drop-answer": (Fault.DROP_ANSWER, ("PUT", "POST")),
    "late-request": (Fault.LATE_REQUEST, ("PUT", "POST")),
    "cut-answer": (Fault.CUT_ANSWER, ("GET",)),
    "repeat": (Fault.REPEAT, ("PUT", "POST")),
    "conflict": (Fault.CONFLICT, ("PUT",)),
    "busy": (Fault.BUSY, ("PUT", "GET", "HEAD", "POST")),
}


class S3Part(SupervisedProcess):
    """versitygw on a directory. It keeps what it answered when it is killed, but not when the power fails."""

    role = NAME

    def __init__(self, port: int, directory: Path, log: Path, on_change: Callable[[SupervisedProcess], None]) -> None:
        super().__init__(NAME, join_host_port(HOST, port), on_change)
        self._port = port
        self._data = directory
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def wait_killed(self) -> None:
        if self._process is not None:
            await self._process.wait()

    async def _start(self) -> None:
        (self._data / versitygw.BUCKET).mkdir(parents=True, exist_ok=True)
        line, keys = versitygw.command(self._port, self._data)
        with self._log.open("ab") as log:
            said_before = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *line,
                stdin=DEVNULL,
                stdout=log,
                stderr=STDOUT,
                env=module_environment(**keys),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self.pid = self._process.pid
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                while self._process.returncode is None:
                    if await listens(self._port):
                        return
                    await asyncio.sleep(0.05)
        self._kill()
        raise PartFailedError(
            f"{NAME} did not start: {last_words(self._log, said_before)}", f"see its log, {self._log}"
        )

    async def _wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    def _terminate(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class Storage:
    """What the parts of one cluster need to have objects. wal: store of the write-ahead log of `s3`."""

    def __init__(self, directory: Path, logs: Path, port: int, wal: str, on_change: Any) -> None:
        self.part = S3Part(port, directory / "objects", logs / f"{NAME}.log", on_change)
        self.faulty = S3FaultProxy(f"http://{HOST}:{port}")
        self.config = directory / "proxies.toml"
        self.environment: dict[str, str] = {}
        self.config.write_text(_SOON.format(root=ROOT, wal=wal))

    def reach(self, port: int) -> None:
        """Take note of the port of the link to the fault proxy."""
        self.environment = {**versitygw.settings(port, "objects"), "DLOG_OBJECTS_ROOT": ROOT}

    async def disturb(self, name: str, count: int, for_s: float) -> None:
        """Have the next `count` requests of each method fail in this way, for at most _DISTURBED_S; those that are late
        reach the server after `for_s`."""
        fault, methods = FAULTS[name]
        for method in methods:
            self.faulty.faults[method] += [fault] * count
        await asyncio.sleep(_DISTURBED_S)
        for method in methods:
            self.faulty.faults[method] = [one for one in self.faulty.faults[method] if one is not fault]
        if fault is Fault.LATE_REQUEST:
            await asyncio.sleep(for_s)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # the server is down: they are lost
                await self.faulty.land_late()

    def heal(self) -> None:
        self.faulty.faults.clear()


async def check(run: Callable[..., Any], streams: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Wait until all entries of all ended segments are in objects, then compare the bucket with the metadata. Returns
    what `dlog object fsck` told, and what is wrong, as lines. run: the command `dlog`, see `command`.

    Objects that are prepared and not committed are not wrong: their writers died, and the controller marks and deletes
    them an hour later. Neither is a segment of `s3-direct` that a proxy created and died before it listed it, until it
    is an hour old.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _UPLOADED_S
    while True:
        try:
            waiting = [one for stream in streams for one in await _not_uploaded(run, stream)]
            if not waiting:
                told = await run("object", "fsck", "--json")
                return told, [f"found by fsck: {one['kind']} {one['place']}: {one['why']}" for one in told["findings"]]
        except RuntimeError as error:  # the metadata are not read in time
            waiting = [str(error)]
        if loop.time() > end_s:
            return {}, [f"not uploaded: {what}" for what in waiting]
        await asyncio.sleep(_AGAIN_S)


async def _not_uploaded(run: Callable[..., Any], stream: str) -> list[str]:
    told = await run("object", "show", stream, "--json", "--limit", "100000")
    return [
        f"{stream}, segment {one['segment']}: {one['uploaded']} of {one['entries']} entries, {one['state']}"
        for one in told["segments"]
        if one["state"] == "cannot be read" or (one["state"] == "ended" and one["uploaded"] != one["entries"])
    ]


async def command(zookeeper: str, namespace: str, environment: dict[str, str], arguments: Sequence[str]) -> Any:
    """Run a command of `dlog` that prints JSON, and return that. Raises RuntimeError if it could not do its work."""
    process = await asyncio.create_subprocess_exec(
        *python_module("dlog", *arguments, "--zookeeper", zookeeper, "--namespace", namespace),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=module_environment(**environment),
        preexec_fn=die_with_parent(),
    )
    out, err = await process.communicate()
    told = json.loads(out) if out else {}
    if process.returncode not in (0, 1) or not told or "error" in told:
        what = f"dlog {' '.join(arguments)} ended with {process.returncode}"
        raise RuntimeError(f"{what}: {told.get('error')} {err.decode()[-2000:]}")
    return told
