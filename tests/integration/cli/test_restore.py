"""ZooKeeper restored from a backup, as docs/restore.md describes it: records acknowledged since the backup are lost,
and no later record is taken for one of them. The commands of that page are run as printed there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.cli.up import Up, dlog, up
from tests.parts import need

ROOT = Path(__file__).resolve().parents[3]
SMALL = ("--write-proxies", "1", "--read-proxies", "1")
STREAMS = ("a", "b", "c")


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, err
    return out


def told(cluster: Up, *arguments: str) -> Any:
    return json.loads(ok(cluster, *arguments, "--json"))


def append(cluster: Up, stream: str, line: str) -> str:
    """Append a record; returns its acknowledged position."""
    lines = ok(cluster, "append", stream, "--json", given=f"{line}\n".encode()).splitlines()
    return str(json.loads(lines[-1])["last"])


def run_page(mark: str, where: Path, **words: str) -> list[str]:
    """Run the commands of docs/restore.md behind this mark, with these words replaced; returns the output of each."""
    text = (ROOT / "docs" / "restore.md").read_text()
    blocks = re.findall(rf"<!-- restore: {mark} -->\n *```console\n(.*?)```", text, re.DOTALL)
    assert blocks
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DLOG_")}
    environment |= {"DLOG_DIR": str(where / "data"), "PYTHONPATH": str(ROOT)}
    printed = []
    for command in re.findall(r"\$ (.*)", "".join(blocks)):
        for word, meant in words.items():
            command = command.replace(word, meant)
        command = re.sub(r"^dlog ", f"{sys.executable} -m dlog ", command)
        done = subprocess.run(command, shell=True, cwd=where, env=environment, capture_output=True, check=False)
        printed.append(done.stdout.decode())
        assert done.returncode == 0, (command, done.stderr.decode())
    return printed


def live_and_restore(where: Path) -> None:
    """Stop; copy; start, append, stop; restore the copy. The record of stream x that gets lost is "lost x"."""
    with up(where / "data", *SMALL) as first:
        for stream in STREAMS:
            ok(first, "create", stream)
            append(first, stream, "kept")
        assert first.end() == 0
    shutil.copytree(where / "data" / "zookeeper", where / "backup" / "zookeeper")
    with up(where / "data") as second:
        for stream in STREAMS:
            append(second, stream, f"lost {stream}")
        assert second.end() == 0
    run_page("stopped", where)


def test_what_is_acknowledged_after_a_restore_is_what_lies_there(tmp_path: Path) -> None:
    """ZooKeeper gives out ids of ledgers again that bookies know."""
    live_and_restore(tmp_path)
    with up(tmp_path / "data") as third:
        for stream in reversed(STREAMS):  # so that each gets the ledger id of another one
            place = append(third, stream, f"new {stream}")
            found = json.loads(ok(third, "read", stream, "--from", place, "--json").splitlines()[0])
            assert (found["dlsn"], found["payload"]) == (place, f"new {stream}")
            assert ok(third, "read", stream) == f"kept\nnew {stream}\n".encode()
        assert third.end() == 0
    with up(tmp_path / "data") as fourth:  # ledgers that were left open are recovered
        for stream in STREAMS:
            append(fourth, stream, "newest")
            assert ok(fourth, "read", stream) == f"kept\nnew {stream}\nnewest\n".encode()


def test_the_page_finds_what_no_stream_names(tmp_path: Path) -> None:
    live_and_restore(tmp_path)
    with up(tmp_path / "data") as cluster:
        strays = told(cluster, "ledger", "strays")["strays"]
        assert len(strays) >= len(STREAMS) and all(len(stray["bookies"]) >= 2 for stray in strays)
        contents = set()
        for stray in strays:
            ledger = str(stray["ledger"])
            table, as_json, *_ = run_page("started", tmp_path, LEDGER=ledger)
            assert ledger in table and ledger in as_json
            contents |= set(re.findall(rb"lost [abc]", (tmp_path / f"{ledger}.entries").read_bytes()))
        assert contents == {b"lost a", b"lost b", b"lost c"}
        assert told(cluster, "ledger", "strays")["strays"] == []
        code, _, said = dlog("ledger", "adopt", str(strays[0]["ledger"]), directory=cluster.directory)
        assert code == 2 and "has metadata already" in said
        code, _, said = dlog("ledger", "adopt", "987654", directory=cluster.directory)
        assert code == 2 and "ledger strays" in said


def test_the_audit_of_the_page_runs_as_it_stands_there(tmp_path: Path) -> None:
    """tests/integration/spark/test_job_audit.py checks what an audit finds."""
    need(importlib.util.find_spec("pyspark") is not None, "PySpark", "pip install 'dlogd[spark]'")
    with up(tmp_path / "data", *SMALL) as cluster:
        ok(cluster, "append", "s", "--create", given=b"x\n")
        (printed,) = run_page("audit", tmp_path)
        assert "1 streams" in printed
