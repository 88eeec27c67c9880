"""An S3 server for those who have none: `peers start versitygw` by the lines that it prints, and the demo on it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.io.objects import Objects
from dlog.io.settings import load
from dlog.stores.object_storage.locations import parse_root
from dlog.stores.object_storage.probe import probe
from dlog.stores.s3_direct.options import ObjectsOptions
from tests.integration.storage import need_storage

ROOT = Path(__file__).resolve().parents[3]
EXPORT = re.compile(r"export (DLOG_OBJECTS_\w+)=(\S+)")


async def probe_root(options: ObjectsOptions) -> None:
    async with Objects(options) as objects:
        await probe(objects, parse_root(options.root), "0123456789abcdef" * 2)


def test_the_lines_that_it_prints_give_a_storage_that_segments_can_be_written_to(tmp_path: Path) -> None:
    need_storage("s3")
    command = [sys.executable, "-m", "loadtest", "peers", "start", "versitygw", "--dir", str(tmp_path / "data")]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        printed = ""
        while not printed.endswith("Ctrl-C stops it\n"):
            line = server.stdout.readline()
            assert line, printed
            printed += line
        options = load(ObjectsOptions, "objects", None, {"root": "s3://logs/x"}, environ=dict(EXPORT.findall(printed)))
        asyncio.run(probe_root(options))
        pid = re.search(r"^versitygw .* pid=(\d+) .* bucket=logs$", printed, re.MULTILINE)
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        assert server.stdout is not None
        server.stdout.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid[1]), 0)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["s3-direct", "s3"])
def test_the_demo_on_s3_brings_every_line_back(tmp_path: Path, store: str) -> None:
    need_storage("s3")
    lines = tmp_path / "lines.txt"
    lines.write_text("".join(f"line {number}\n" for number in range(20_000)))
    command = [sys.executable, "-m", "loadtest.s3_demo", "--store", store, str(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated 0, out of order 0" in done.stdout and "SIGKILL a process of the store" in done.stdout
