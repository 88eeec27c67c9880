"""The manifest of a ledger directory: which files count, and up to where the journal is no longer needed.

One small text, replaced as a whole by each checkpoint. What it does not name does not exist. The mark never moves
backwards. JSON, so that a person can read it; the last line is the CRC32C of what stands before it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.journal import FIRST_MARK, Mark
from dlog.errors import DamagedError, UnsupportedVersionError

_VERSION = 3  # states of ledgers say under which chain they were seen; GONE counts
_READABLE = (2, 3)


class RunFile(NamedTuple):
    """An index run. `crc`: of its footer, so that no other run is taken for it."""

    run: int
    size: int
    crc: int


class LogFile(NamedTuple):
    """An entry log, how much of it counts, and where its last table of contents begins (0: none)."""

    log: int
    length: int
    section: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`next_file` numbers the next run or log. `limbo`: a damaged journal was salvaged here; nothing is denied."""

    mark: Mark = FIRST_MARK
    next_file: int = 1
    runs: tuple[RunFile, ...] = ()  # oldest first
    logs: tuple[LogFile, ...] = ()  # the last one may grow
    limbo: bool = False


def encode(manifest: Manifest) -> bytes:
    document = {
        "version": _VERSION,
        "mark": list(manifest.mark),
        "next_file": manifest.next_file,
        "runs": [list(run) for run in manifest.runs],
        "logs": [list(log) for log in manifest.logs],
        "limbo": manifest.limbo,
    }
    text = json.dumps(document, indent=1).encode() + b"\n"
    return text + b"%08x\n" % crc32c(text)


def decode(data: bytes) -> Manifest:
    """Raises DamagedError, or UnsupportedVersionError for one written by another version."""
    text, crc = data[:-9], data[-9:]
    if crc != b"%08x\n" % crc32c(text):
        raise DamagedError("a ledger directory's MANIFEST does not verify")
    document = json.loads(text)
    if document["version"] not in _READABLE:
        raise UnsupportedVersionError(f"MANIFEST was written by another version: version={document['version']}")
    return Manifest(
        mark=Mark(*document["mark"]),
        next_file=document["next_file"],
        runs=tuple(RunFile(*run) for run in document["runs"]),
        logs=tuple(LogFile(*log) for log in document["logs"]),
        limbo=document["limbo"],
    )
