"""Options from files, the environment and flags: each mistake ends in a ConfigError that names it. Rows `config.*`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlog.bookie.options import BookieOptions
from dlog.cli.plan import UpOptions
from dlog.errors import ConfigError
from dlog.io.settings import load
from proxies.read.options import ReadOptions
from proxies.write.options import WriteOptions
from tests.integration.cluster import ROOT
from tests.integration.hostile.table import each

CLASSES: dict[str, type[Any]] = {
    "bookie": BookieOptions,
    "write": WriteOptions,
    "read": ReadOptions,
    "up": UpOptions,
}

#: contents of a file
FILES: dict[str, bytes] = {
    "toml-syntax": b"[bookie\nport = 1",
    "toml-no-utf8": b'[bookie]\nhost = "\xff\xfe"',
    "toml-nested": b"a = " + b"[" * 100_000,
    "toml-number-of-5000-digits": b"[bookie]\nport = " + b"1" * 5000,
    "toml-key-twice": b"[bookie]\nport = 1\nport = 2",
    "section-unknown": b"[bookies]\nport = 1",
    "section-is-a-value": b"bookie = 1",
    "key-unknown": b"[bookie]\nprot = 1",
    "key-of-former-name": b"[read]\nhealth_port = 9102",
    "type-text-for-number": b'[bookie]\nport = "many"',
    "type-bool-for-number": b"[bookie]\nport = true",
    "type-list-for-text": b'[bookie]\nhost = ["a"]',
    "type-date-for-number": b"[bookie]\nport = 2026-11-20",
    "type-float-for-integer": b"[bookie]\nport = 1.5",
    "port-beyond": b"[bookie]\nport = 65536",
    "port-negative": b"[write]\nport = -1",
    "http-port-beyond": b"[write]\nhttp_port = 99999",
    "size-without-number": b'[write]\nstream_bytes_max = "MiB"',
    "size-unit-unknown": b'[write]\nstream_bytes_max = "3 parsecs"',
    "size-superscript": '[write]\nstream_bytes_max = "²"'.encode(),
    "size-endless": b"[write]\nstream_bytes_max = 9" + b"0" * 60,
    "time-nan": b"[bookie]\ncheckpoint_s = nan",
    "time-infinite": b"[bookie]\ncheckpoint_s = inf",
    "time-negative": b"[write]\nhello_s = -1.0",
    "time-zero": b"[bookie]\ncheckpoint_s = 0.0",
    "time-unit-unknown": b'[write]\nhello_s = "7 weeks"',
    "bound-zero": b"[read]\nconnections_max = 0",
    "bound-negative": b"[read]\nreaders_max = -5",
    "text-with-nul": b'[bookie]\nhost = "a\\u0000b"',
    "text-with-escape": b'[write]\nnamespace = "/dlog\\u001b[2J"',
    "id-illegal": b'[write]\nid = "../other"',
    "address-illegal": b'[write]\nadvertise = "no port"',
    "address-port-0": b'[write]\nadvertise = "host:0"',
    "log-level-unknown": b'[write]\nlog_level = "loud"',
    "log-format-unknown": b'[read]\nlog_format = "xml"',
    "batch-beyond-the-record": b"[write]\nbatch_bytes_max = 2000000",
    "reserve-above-minimum": b'[bookie]\ndisk_free_reserve_bytes = "2GiB"\ndisk_free_min_bytes = "1GiB"',
    "journal-file-tiny": b"[bookie]\njournal_file_bytes = 1024",
    "too-many-bookies": b"[up]\nbookies = 65",
    "section-of-a-client": b"[client]\nbatch_bytes_max = 1048576",  # no process would use it
}

#: DLOG_<ROLE>_<KEY>
VARIABLES: dict[str, tuple[str, str]] = {
    "env-key-unknown": ("DLOG_BOOKIE_PROT", "1"),
    "env-key-of-former-name": ("DLOG_BOOKIE_METRICS_PORT", "9100"),
    "env-not-a-number": ("DLOG_BOOKIE_PORT", "eighty"),
    "env-port-beyond": ("DLOG_WRITE_PORT", "70000"),
    "env-empty": ("DLOG_BOOKIE_PORT", ""),
    "env-time": ("DLOG_BOOKIE_CHECKPOINT_S", "-3"),
    "env-bool": ("DLOG_BOOKIE_SALVAGE", "perhaps"),
}

#: module and flags: the whole process, its last line of output and its exit code
PROCESSES: dict[str, tuple[str, ...]] = {
    "flag-unknown": ("proxies.write", "--frobnicate", "1"),
    "flag-without-value": ("proxies.read", "--port"),
    "flag-port": ("proxies.write", "--port", "99999"),
    "flag-abbreviated": ("actors.bookie", "--zoo", "h:1"),
    "file-missing": ("proxies.read", "--config", "no-such-file.toml"),
    "file-is-a-directory": ("actors.bookie", "--config", "."),
    "namespace-relative": ("proxies.write", "--namespace", "dlog"),
    "namespace-climbs": ("proxies.write", "--namespace", "/dlog/../zookeeper"),
    "zookeeper-no-address": ("proxies.write", "--zookeeper", "::::"),
    "zookeeper-port-beyond": ("proxies.read", "--zookeeper", "localhost:99999"),
    "zookeeper-empty-label": ("proxies.write", "--zookeeper", "127.0.0.1:2181,a..b:2181"),
    "host-nowhere": ("actors.bookie", "--host", "no.such.host.invalid", "--dir", "{tmp}/b"),
    "bookie-id-illegal": ("actors.bookie", "--bookie-id", "a/b", "--port", "0", "--dir", "{tmp}/b"),
    "bookie-dirs-equal": ("actors.bookie", "--journal-dirs", "{tmp}/x", "--ledger-dirs", "{tmp}/x", "--port", "0"),
    "bookie-dir-impossible": ("actors.bookie", "--dir", "/dev/null/x", "--port", "0"),
    "optimised-python": ("-O", "proxies.write"),
}


def told(cls: type[Any], section: str, path: Path | None, environ: dict[str, str]) -> str:
    try:
        load(cls, section, path, {}, environ=environ)
    except ConfigError as error:
        return f"ConfigError: {error.message}"
    return "taken"


@each("config", FILES)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, case: str, answer: str) -> None:
    path = tmp_path / "dlog.toml"
    path.write_bytes(FILES[case])
    section = next((name for name in CLASSES if b"[%s]" % name.encode() in FILES[case]), "bookie")
    said = told(CLASSES[section], section, path, {})
    assert said.startswith("ConfigError: ") and answer.removeprefix("531: ") in said, said
    assert len(said) < 2000


@each("config", VARIABLES)
def test_a_mistake_in_the_environment_is_named(case: str, answer: str) -> None:
    name, value = VARIABLES[case]
    section = name.split("_")[1].lower()
    said = told(CLASSES[section], section, None, {name: value})
    assert said.startswith("ConfigError: ") and answer.removeprefix("531: ") in said, said


@each("config", PROCESSES)
def test_a_process_that_cannot_start_says_why_and_ends(tmp_path: Path, case: str, answer: str) -> None:
    first, *flags = PROCESSES[case]
    command = [sys.executable, first, "-m", *flags] if first == "-O" else [sys.executable, "-m", first, *flags]
    done = subprocess.run(
        [word.replace("{tmp}", str(tmp_path)) for word in command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=180,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    assert "Traceback" not in said
    assert not done.stdout
    code, _, text = answer.partition(": ")
    assert f"exit {done.returncode}" == code
    assert text in said, said


def test_every_class_of_options_is_covered() -> None:
    sections = {name for name in CLASSES for text in FILES.values() if b"[%s]" % name.encode() in text}
    assert sections == set(CLASSES)


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
def test_defaults_are_options(cls: type[Any]) -> None:
    assert load(cls, "bookie", None, {}, environ={}) == cls()
