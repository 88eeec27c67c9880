"""The commands on a real cluster: what is appended is read back, and every misuse gets an error."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.up import Up, dlog

LINES = [b"line %d " % n + b"x" * (n % 90) for n in range(20_000)]


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, err
    return out


def told(cluster: Up, *arguments: str, given: bytes = b"") -> Any:
    return json.loads(ok(cluster, *arguments, "--json", given=given))


def test_a_file_goes_in_and_comes_out(cluster: Up, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(LINES) + b"\n")
    ok(cluster, "create", "file")
    last = ok(cluster, "append", "file", str(file)).decode().splitlines()[-1]
    assert last.startswith("20,000 records, 1:0:0 .. ")
    assert ok(cluster, "read", "file") == file.read_bytes()
    more = told(cluster, "append", "file", str(file))
    assert more["records"] == 20_000
    assert ok(cluster, "read", "file", "--from", more["first"]) == file.read_bytes()


def test_a_pipe_framed_records_and_every_format(cluster: Up) -> None:
    payloads = [b"a", b"", b"with\nnewline", b"\xff\xfe"]
    framed = b"".join(struct.pack(">I", len(p)) + p for p in payloads)
    summary = told(cluster, "append", "framed", "--create", "--framed", given=framed)
    assert (summary["records"], summary["bytes"]) == (4, len(framed))
    assert ok(cluster, "read", "framed", "--format", "framed") == framed
    assert ok(cluster, "read", "framed", "--format", "raw") == b"".join(payloads)
    rows = [json.loads(line) for line in ok(cluster, "read", "framed", "--format", "json").splitlines()]
    assert [row["dlsn"] for row in rows] == ["1:0:0", "1:0:1", "1:0:2", "1:0:3"]
    assert "payload_base64" in rows[3]
    txid, time_ms = rows[0]["txid"], rows[0]["unix_ms"]
    assert ok(cluster, "read", "framed", "--from-txid", str(txid), "--limit", "1") == b"a\n"
    assert ok(cluster, "read", "framed", "--from-time", str(time_ms), "--limit", "1") == b"a\n"
    assert ok(cluster, "read", "framed", "--from-txid", str(txid + 10_000_000)) == b""


def test_a_closed_pipe_is_no_error(cluster: Up) -> None:
    ok(cluster, "append", "pipe", "--create", given=b"\n".join(LINES))
    command = f"{sys.executable} -m dlog read pipe --dir {cluster.directory} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=180, check=True)
    assert done.stdout == LINES[0] + b"\n0\n"
    assert done.stderr == b""


def test_a_stream_from_its_creation_to_its_deletion(cluster: Up) -> None:
    ok(cluster, "create", "life", "--ensemble", "3", "--write-quorum", "3", "--ack-quorum", "2", "--retention", "1h")
    assert "life" in told(cluster, "ls")
    shown = told(cluster, "show", "life")
    assert shown["settings"]["retention_s"] == 3600
    assert b"none yet" in ok(cluster, "show", "life")
    ok(cluster, "append", "life", given=b"one\ntwo\n")
    assert told(cluster, "alter", "life", "--retention", "2h")["settings"]["retention_s"] == 7200
    assert told(cluster, "show", "life")["settings"] == {**shown["settings"], "retention_s": 7200}
    [owner] = [o for o in told(cluster, "owners") if o["stream"] == "life"]
    assert owner["location"] in {p.address for p in cluster.running.parts if p.role == "write"}
    explained = told(cluster, "explain", "life", "1:0:1")
    assert len(explained["bookies"]) == 3
    assert "record 1 of a batch of 2" in explained["slot"]
    ok(cluster, "seal", "life")
    assert ok(cluster, "read", "life", "--follow") == b"one\ntwo\n", "a sealed stream ends a follower too"
    code, _, err = dlog("append", "life", directory=cluster.directory, given=b"three\n")
    assert code == 1
    assert "sealed" in err
    ok(cluster, "delete", "life", "--yes")
    assert "life" not in told(cluster, "ls")


def test_truncation_by_whole_segments(cluster: Up, tmp_path: Path) -> None:
    ok(cluster, "create", "short", "--segment-bytes", "64KiB")
    file = tmp_path / "lines"
    file.write_bytes(b"\n".join(LINES) + b"\n")
    for _ in range(3):
        ok(cluster, "append", "short", str(file))
    segments = told(cluster, "show", "short")["segments"]
    assert len(segments) > 1
    ok(cluster, "truncate", "short", "2:0:0")
    left = ok(cluster, "read", "short", "--from-start", "--limit", "1", "--format", "json")
    assert json.loads(left)["dlsn"].startswith("2:")
    code, _, err = dlog("read", "short", "--from", "1:0:0", directory=cluster.directory)
    assert code == 1
    assert "truncated" in err and "next:" in err


def test_the_layers_below(cluster: Up) -> None:
    ok(cluster, "append", "below", "--create", given=b"one\ntwo\n")
    place = told(cluster, "show", "below")["segments"][0]["location"]
    assert int(place) in {row["ledger"] for row in told(cluster, "ledger", "ls")}
    assert told(cluster, "ledger", "show", place)["state"] == "open"
    assert b"bytes" in ok(cluster, "ledger", "read", place)
    assert told(cluster, "ledger", "verify", place)["wrong"] == []
    sums = json.loads(ok(cluster, "ledger", "verify", "--all", "--json").splitlines()[-1])
    assert (sums["bad_ledgers"], sums["not_verified"]) == (0, 0) and sums["ledgers"] > 0 and sums["entries"] > 0
    assert b"could not be verified" in ok(cluster, "ledger", "verify", "--all", "--at-once", "1").splitlines()[-1]
    assert all(row["alive"] and 0 < row["free_bytes"] < row["total_bytes"] for row in told(cluster, "bookie", "status"))
    assert len(told(cluster, "bookie", "ls")) == 3
    assert [row["state"] for row in told(cluster, "bookie", "gc", "--wait")] == ["done"] * 3
    status = told(cluster, "cluster", "status")
    assert len(status["members"]) == 7
    assert not told(cluster, "cluster", "init")["made"], "harmless when it is done again"
    recovered = told(cluster, "ledger", "recover", place, "--yes")
    assert told(cluster, "ledger", "show", place)["entries"] == recovered["last_entry"] + 1
    ok(cluster, "append", "below", given=b"three\n")
    assert ok(cluster, "read", "below") == b"one\ntwo\nthree\n", "the owner lost its ledger and goes on in another"


def test_a_ledger_is_made_of_lines(cluster: Up) -> None:
    lines = [b"%d" % n for n in range(3000)]
    words = ("ledger", "create", "-", "--quorum", "2/2/1", "--custom", "who=me", "--digest", "HMAC")
    made = told(cluster, *words, "--id", str(2**62 + 1), given=b"\n".join(lines))
    assert (made["ledger"], made["entries"], made["state"], made["digest"]) == (2**62 + 1, 3000, "closed", "HMAC")
    assert made["custom"]["who"] == "me" and made["write_quorum"] == 2
    assert ok(cluster, "ledger", "read", str(2**62 + 1), "--format", "raw") == b"".join(lines)
    assert b"3 entries, 3 bytes" in ok(cluster, "ledger", "create", "-", "--quorum", "1/1/1", given=b"a\nb\nc\n")
    code, _, err = dlog(*words, "--id", str(2**62 + 1), directory=cluster.directory)
    assert code == 2 and "choose another id" in err
    code, _, err = dlog(*words, directory=cluster.directory, given=b"a\n" * 200_000 + b"b" * 2_000_000)
    assert code == 2 and "is larger than" in err
    left = err.split("`dlog ledger recover ")[1].split("`")[0]
    ok(cluster, "ledger", "recover", left, "--yes")
    assert told(cluster, "ledger", "show", left)["state"] == "closed"


def test_a_watched_status_is_redrawn_on_a_terminal(cluster: Up) -> None:
    """The cursor goes back to the first line of the block, so that the screen holds one."""
    reads, writes = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dlog", "cluster", "status", "--watch", "--every", "100ms"],
        stdout=writes,
        stderr=subprocess.PIPE,
        env={**os.environ, "DLOG_DIR": str(cluster.directory), "TERM": "xterm", "COLUMNS": "100", "LINES": "50"},
    )
    os.close(writes)
    with process:
        shown = b""
        while shown.count(b"ledgers under-replicated") < 3:
            shown += os.read(reads, 4096)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # EIO: nobody has the other end any more
            while more := os.read(reads, 4096):
                shown += more
        assert process.stderr is not None
        assert (process.wait(), process.stderr.read()) == (0, b"")
    os.close(reads)
    first, *others = shown.split(b"time ")[1:]
    lines = first.count(b"\n")
    assert lines > 10 and len(others) >= 2
    assert shown.count(b"\x1b[1A") >= lines * (len(others) - 1)


def test_a_planned_restart_is_announced_shown_and_ended(cluster: Up) -> None:
    one, other = (row["bookie"] for row in told(cluster, "bookie", "ls")[:2])
    assert b"not taken for lost within the next 600 s" in ok(cluster, "bookie", "pause", one, "--for", "10m")
    left = {row["bookie"]: row["pause_left_s"] for row in told(cluster, "bookie", "ls")}
    assert 0 < left[one] <= 600 and left[other] is None
    assert 0 < told(cluster, "cluster", "status")["paused"][one] <= 600
    assert f"paused     {one} (".encode() in ok(cluster, "cluster", "status")
    assert f"restart of {one} is over".encode() in ok(cluster, "bookie", "pause", one, "--end")
    assert told(cluster, "cluster", "status")["paused"] == {}
    assert told(cluster, "bookie", "pause", one, "--end") == {"bookie": one, "seconds": None, "ended": False}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("show", "nosuch"), 1, "dlog create"),
        (("append", "nosuch"), 1, "dlog create"),
        (("read", "nosuch"), 1, "no such stream"),
        (("seal", "nosuch"), 1, "no such stream"),
        (("truncate", "nosuch", "1:0:0"), 1, "no such stream"),
        (("delete", "nosuch", "--yes"), 1, "no such stream"),
        (("explain", "nosuch", "1:0:0"), 1, "no such stream"),
        (("create", "odd", "--store", "tape"), 2, "is not one of"),
        (("create", "odd", "--ensemble", "1", "--write-quorum", "2"), 2, "quorum"),
        (("cluster", "status", "--every", "2s"), 2, "add --watch"),
        (("cluster", "status", "--watch", "--every", "0"), 2, "at least 100ms"),
        (("cluster", "status", "--watch", "--every", "soon"), 2, "not a duration"),
        (("ledger", "show", "987654"), 1, "ledger ls"),
        (("ledger", "verify", "987654"), 1, "ledger ls"),
        (("ledger", "verify"), 2, "or add --all"),
        (("ledger", "verify", "1", "--all"), 2, "leave out LEDGER or --all"),
        (("ledger", "verify", "1", "--at-once", "2"), 2, "leave out LEDGER or --at-once"),
        (("ledger", "verify", "--all", "--at-once", "0"), 2, "--at-once"),
        (("ledger", "create", "-", "--quorum", "3"), 2, "as 3/3/2"),
        (("ledger", "create", "-", "--quorum", "1/2/1"), 2, "ensemble >= write quorum"),
        (("ledger", "create", "-", "--custom", "dlog.x=1"), 2, "write KEY=VALUE"),
        (("ledger", "create", "nosuchfile"), 2, "check the name"),
        (("bookie", "status", "nobody:1"), 1, "bookie ls"),
        (("bookie", "pause", "nobody:1"), 1, "bookie ls"),
        (("bookie", "pause", "nobody:1", "--for", "soon"), 2, "not a duration"),
        (("bookie", "replace", "nobody:1", "nobody:2"), 1, "bookie ls"),
        (("bookie", "replace", "nobody:1", "nobody:1"), 2, "cannot replace itself"),
        (("bookie", "replace", "nobody:1", "nobody:2", "--rate", "1"), 2, "leave --rate out"),
        (("cluster", "rebalance", "--rate", "1"), 2, "leave --rate out"),
        (("cluster", "rebalance", "--until", "2"), 2, "--until"),
        (("bookie", "gc", "nobody:1", "nobody:2"), 1, "bookie=nobody:1,nobody:2"),
        (("up",), 2, "runs on this directory already"),
    ],
)
def test_misuse(cluster: Up, arguments: tuple[str, ...], code: int, says: str) -> None:
    found, _, err = dlog(*arguments, directory=cluster.directory, given=b"x\n")
    assert found == code, err
    assert says in err
    assert "Traceback" not in err


def test_a_stream_that_exists(cluster: Up) -> None:
    ok(cluster, "create", "twice")
    code, _, err = dlog("create", "twice", directory=cluster.directory)
    assert code == 1
    assert "exists" in err
