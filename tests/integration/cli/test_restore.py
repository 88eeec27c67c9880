"""ZooKeeper restored from a backup, as docs/restore.md describes it: what was acknowledged since is lost, and nothing
that is acknowledged afterwards is taken for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.integration.cli.up import Up, dlog, up

SMALL = ("--write-proxies", "1", "--read-proxies", "1")


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, err
    return out


def append(cluster: Up, stream: str, line: str) -> str:
    """Where it is, as acknowledged."""
    told: Any = json.loads(ok(cluster, "append", stream, "--json", given=f"{line}\n".encode()).splitlines()[-1])
    return str(told["last"])


def test_what_is_acknowledged_after_a_restore_is_what_lies_there(tmp_path: Path) -> None:
    """Stop; copy; append; stop; put the copy back: the ids of ledgers come again, and bookies know them."""
    directory = tmp_path / "c"
    streams = ("a", "b", "c")
    with up(directory, *SMALL) as first:
        for stream in streams:
            ok(first, "create", stream)
            append(first, stream, "kept")
        assert first.end() == 0
    shutil.copytree(directory / "zookeeper", tmp_path / "backup")
    with up(directory) as second:
        for stream in streams:
            append(second, stream, f"lost {stream}")
        assert second.end() == 0
    shutil.rmtree(directory / "zookeeper")
    shutil.copytree(tmp_path / "backup", directory / "zookeeper")
    with up(directory) as third:
        for stream in reversed(streams):  # so that each meets the ledger of another one
            place = append(third, stream, f"new {stream}")
            found = json.loads(ok(third, "read", stream, "--from", place, "--json").splitlines()[0])
            assert (found["dlsn"], found["payload"]) == (place, f"new {stream}")
            assert ok(third, "read", stream) == f"kept\nnew {stream}\n".encode()
        assert third.end() == 0
    with up(directory) as fourth:  # ledgers that were left open are recovered
        for stream in streams:
            append(fourth, stream, "newest")
            assert ok(fourth, "read", stream) == f"kept\nnew {stream}\nnewest\n".encode()
