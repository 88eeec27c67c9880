"""`dlog` and the other commands: wrong uses by a person or a script. Rows `cli.*`.

Cases about descriptors run in processes of their own; the others run in this one. An error is a line that begins with
`dlog:`, never a traceback; nothing of it goes to standard output.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.cli.main import main
from tests.integration.cluster import ROOT
from tests.integration.hostile.table import each

NOBODY = ("--connect", "dlog://127.0.0.1:1")
NO_ZOOKEEPER = ("--zookeeper", "127.0.0.1:1")
BYTES = "\udcff\udcfe"  # arguments from the shell that are not UTF-8

#: arguments, without any cluster
CASES: dict[str, tuple[str, ...]] = {
    "command-unknown": ("frobnicate",),
    "command-empty": ("",),
    "option-unknown": ("ls", "--frob"),
    "option-without-value": ("ls", "--connect"),
    "cluster-unknown": ("ls",),
    "connect-nonsense": ("ls", "--connect", "nonsense"),
    "connect-other-scheme": ("ls", "--connect", "http://127.0.0.1:80"),
    "connect-port-0": ("ls", "--connect", "dlog://h:0"),
    "connect-port-beyond": ("ls", "--connect", "dlog://h:65536"),
    "connect-port-superscript": ("ls", "--connect", "dlog://h:²"),
    "connect-port-5000-digits": ("ls", "--connect", "dlog://h:" + "1" * 5000),
    "connect-ipv6-bare": ("ls", "--connect", "dlog://::1:7400"),
    "connect-empty-between": ("ls", "--connect", "dlog://h:1,,h:2"),
    "connect-space": ("ls", "--connect", "dlog://h h:1"),
    "connect-no-utf8": ("ls", "--connect", f"dlog://{BYTES}:1"),
    "connect-nobody": ("ls", *NOBODY),
    "up-argument": ("up", "now"),
    "up-bookies-negative": ("up", "--bookies", "-1"),
    "up-bookies-many": ("up", "--bookies", "65"),
    "up-port-beyond": ("up", "--port", "65536"),
    "up-config-missing": ("up", "--config", "no-such-file"),
    "up-dir-impossible": ("up", "--dir", "/dev/null/x"),
    "up-plan-garbage": ("up", "--dir", "garbage"),
    "up-plan-types": ("up", "--dir", "types"),
    "create-missing": ("create",),
    "create-twice-named": ("create", "a", "b", *NOBODY),
    "create-name-empty": ("create", "", *NOBODY),
    "create-name-slash": ("create", "a/b", *NOBODY),
    "create-name-no-utf8": ("create", BYTES, *NOBODY),
    "create-ensemble-0": ("create", "s", "--ensemble", "0", *NOBODY),
    "create-ensemble-text": ("create", "s", "--ensemble", "three", *NOBODY),
    "create-retention-unit": ("create", "s", "--retention", "7parsecs", *NOBODY),
    "create-retention-nan": ("create", "s", "--retention", "nan", *NOBODY),
    "create-retention-infinite": ("create", "s", "--retention", "inf", *NOBODY),
    "create-retention-negative": ("create", "s", "--retention", "-1h", *NOBODY),
    "create-bytes-unit": ("create", "s", "--segment-bytes", "3q", *NOBODY),
    "create-bytes-superscript": ("create", "s", "--segment-bytes", "²", *NOBODY),
    "create-bytes-5000-digits": ("create", "s", "--segment-bytes", "1" * 5000, *NOBODY),
    "append-missing": ("append",),
    "append-file-missing": ("append", "s", "no-such-file", *NOBODY),
    "append-file-is-a-directory": ("append", "s", ".", *NOBODY),
    "append-name-climbs": ("append", "../s", "no-such-file", *NOBODY),
    "read-missing": ("read",),
    "read-from-nonsense": ("read", "s", "--from", "x", *NOBODY),
    "read-from-5000-digits": ("read", "s", "--from", "1" * 5000, *NOBODY),
    "read-from-underscore": ("read", "s", "--from", "1_0:0:0", *NOBODY),
    "read-from-arabic-digits": ("read", "s", "--from", "١:0:0", *NOBODY),
    "read-from-beyond-64-bits": ("read", "s", "--from", f"{2**63}:0:0", *NOBODY),
    "read-txid-text": ("read", "s", "--from-txid", "x", *NOBODY),
    "read-txid-negative": ("read", "s", "--from-txid", "-1", *NOBODY),
    "read-txid-huge": ("read", "s", "--from-txid", str(2**64), *NOBODY),
    "read-time-nonsense": ("read", "s", "--from-time", "yesterday", *NOBODY),
    "read-time-nan": ("read", "s", "--from-time", "nan", *NOBODY),
    "read-time-year-1": ("read", "s", "--from-time", "0001-01-01T00:00Z", *NOBODY),
    "read-time-without-a-zone": ("read", "s", "--from-time", "2026-11-20T08:00", *NOBODY),
    "read-contradiction": ("read", "s", "--tail", "--from-start", *NOBODY),
    "read-limit-negative": ("read", "s", "--limit", "-1", *NOBODY),
    "read-format-unknown": ("read", "s", "--format", "xml", *NOBODY),
    "ls-argument": ("ls", "extra", *NOBODY),
    "show-missing": ("show",),
    "show-name-dot-dot": ("show", "..", *NOBODY),
    "truncate-missing": ("truncate", "s", *NOBODY),
    "truncate-nonsense": ("truncate", "s", "abc", *NOBODY),
    "seal-name": ("seal", "a b", *NOBODY),
    "delete-unasked": ("delete", "s", *NOBODY),
    "owners-argument": ("owners", "s", *NOBODY),
    "explain-missing": ("explain", "s", *NOBODY),
    "explain-nonsense": ("explain", "s", "abc", *NOBODY),
    "explain-name": ("explain", "..", "1:0:0", *NOBODY),
    "ledger-command-unknown": ("ledger", "frob"),
    "ledger-show-text": ("ledger", "show", "x"),
    "ledger-show-negative": ("ledger", "show", "-1"),
    "ledger-show-beyond": ("ledger", "show", str(2**63), *NO_ZOOKEEPER),
    "ledger-recover-unasked": ("ledger", "recover", "1", *NO_ZOOKEEPER),
    "ledger-read-range": ("ledger", "read", "1", "--first", "-1"),
    "ledger-cluster-unknown": ("ledger", "ls"),
    "bookie-id-illegal": ("bookie", "status", "a b", *NO_ZOOKEEPER),
    "bookie-gc-id-illegal": ("bookie", "gc", "b:1", "a/b", *NO_ZOOKEEPER),
    "cluster-zookeeper-nonsense": ("cluster", "status", "--zookeeper", ":::"),
    "cluster-zookeeper-port-beyond": ("cluster", "status", "--zookeeper", "h:99999"),
    "cluster-namespace-relative": ("cluster", "init", *NO_ZOOKEEPER, "--namespace", "dlog"),
    "cluster-namespace-climbs": ("cluster", "init", *NO_ZOOKEEPER, "--namespace", "/a/../b"),
    "cluster-namespace-no-utf8": ("cluster", "init", *NO_ZOOKEEPER, "--namespace", f"/{BYTES}"),
    "dir-of-nothing": ("ls", "--dir", "no-such-directory"),
    "run-file-garbage": ("ls", "--dir", "garbage"),
}

#: a shell line: descriptors that are closed, full or gone
LINES: dict[str, str] = {
    "stdin-closed": "{dlog} append s - --connect dlog://127.0.0.1:1 <&-",
    "stdout-closed": "{dlog} --help >&-",
    "stdout-closed-read": "{dlog} read s --connect dlog://127.0.0.1:1 >&-",
    "stdout-full": "{dlog} --help >/dev/full",
    "stdout-gone": "{dlog} --help | head -c 0",
    "stderr-closed": "{dlog} ls --connect nonsense 2>&-",
    "append-file-no-utf8": "{dlog} append s $(printf '\\377') --connect dlog://127.0.0.1:1",
    "dir-no-utf8": "{dlog} ls --dir $(printf '\\377')",
    "bytes-in-variable": "DLOG_CONNECT=$(printf '\\377') {dlog} ls",
    "region-in-variable": "DLOG_REGION=e/u {dlog} ls --connect dlog://127.0.0.1:1",
    "loadtest-workload-unknown": "{python} -m loadtest no-such-workload",
    "loadtest-option-unknown": "{python} -m loadtest --frob",
    "loadtest-set-nonsense": "{python} -m loadtest append --set window",
    "loadtest-set-unknown": "{python} -m loadtest append --set colour=red",
    "loadtest-set-negative": "{python} -m loadtest append --set window=-1",
    "loadtest-connect-nonsense": "DLOG_CONNECT=nonsense {python} -m loadtest append",
    "hunt-room-unknown": "{python} -m tests.simulation no-such-room",
    "hunt-seeds-text": "{python} -m tests.simulation ledger --seeds many",
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("DLOG_CONNECT", "DLOG_DIR", "DLOG_ZOOKEEPER", "DLOG_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "cluster.json").write_bytes(b"\xff\x00 not JSON")
    (tmp_path / "garbage" / "run.json").write_text('{"parts": 5}')
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "cluster.json").write_text('{"host": 5, "namespace": [], "bookies": "many", "write": {}}')
    return tmp_path


@each("cli", CASES)
def test_a_mistake_ends_in_a_message(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], case: str, answer: str
) -> None:
    code = main(list(CASES[case]))
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert not told.out, "errors go to standard error"
    _judge(code, told.err, answer)


@each("cli", LINES)
def test_descriptors_and_other_commands(tmp_path: Path, case: str, answer: str) -> None:
    line = LINES[case].format(dlog=f"{sys.executable} -m dlog", python=sys.executable)
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        cwd=ROOT,
        env={**os.environ, "DLOG_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said and "Exception ignored" not in said, said
    _judge(done.returncode, said, answer)


def _judge(code: int, said: str, answer: str) -> None:
    expected, _, text = answer.partition(": ")
    assert f"exit {code}" == expected, said[:600]
    assert text in said, said[:600]
    assert len(said) < 8000
