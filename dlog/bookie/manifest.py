"""The MANIFEST of a ledger directory: its valid files, and the marks up to which the journals are no longer needed.

JSON, to be readable; the last line is the CRC32C of the text before it.

Invariants:
- each checkpoint replaces it as a whole; a file that it does not name does not exist;
- its marks never move backwards.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from dlog.bookie.journal import FIRST_MARKS, JournalMark, JournalMarks
from dlog.errors import DamagedError, UnsupportedVersionError

_VERSION = 4  # ledger states may have an explicit LAC; since 3 the chain under which they were seen, and the file GONE
_DATABASE = 5  # written only if the index is a database
_SEVERAL_JOURNALS = 6  # written only if there are several
_READABLE = (2, 3, 4, _DATABASE, _SEVERAL_JOURNALS)


class RunFile(NamedTuple):
    """An index run. `crc`: of its footer, which identifies it."""

    run: int
    size: int
    crc: int


class LogFile(NamedTuple):
    """An entry log, its valid length, and the offset of its last table of contents (0: none)."""

    log: int
    length: int
    section: int


class LogRange(NamedTuple):
    """Bytes of an entry log, from `begin` up to `end`."""

    log: int
    begin: int
    end: int


class IndexKind(enum.StrEnum):
    """Kinds of the index: sorted runs, or a database."""

    SORTED = "sorted"
    DB = "db"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`next_file`: id of the next run, log or database. `limbo`: a damaged journal was salvaged; no entry is denied.

    `unindexed`: where an interrupted flush of an index that is, or was, a database left entries, which the index need
    not lead to. Of an index that is a database: `database`: its number, 0 if there is none yet; `database_writes`:
    number of its last write.
    """

    marks: JournalMarks = FIRST_MARKS
    next_file: int = 1
    runs: tuple[RunFile, ...] = ()  # oldest first
    logs: tuple[LogFile, ...] = ()  # the last one may grow
    limbo: bool = False
    kind: IndexKind = IndexKind.SORTED
    database: int = 0
    database_writes: int = 0
    unindexed: tuple[LogRange, ...] = ()


def encode(manifest: Manifest) -> bytes:
    document: dict[str, Any] = {
        "version": _VERSION,
        "mark": list(manifest.marks[0]),
        "next_file": manifest.next_file,
        "runs": [list(run) for run in manifest.runs],
        "logs": [list(log) for log in manifest.logs],
        "limbo": manifest.limbo,
    }
    if manifest.kind is IndexKind.DB:
        document |= {
            "version": _DATABASE,
            "index": str(manifest.kind),
            "database": manifest.database,
            "database_writes": manifest.database_writes,
        }
    if manifest.kind is IndexKind.DB or manifest.unindexed:
        document["unindexed"] = [list(part) for part in manifest.unindexed]
    if len(manifest.marks) > 1:
        document |= {"version": _SEVERAL_JOURNALS, "more_marks": [list(mark) for mark in manifest.marks[1:]]}
    text = json.dumps(document, indent=1).encode() + b"\n"
    return text + b"%08x\n" % crc32c(text)


def decode(data: bytes) -> Manifest:
    """Inverse of `encode`. Raises DamagedError, or UnsupportedVersionError for another version's."""
    text, crc = data[:-9], data[-9:]
    if crc != b"%08x\n" % crc32c(text):
        raise DamagedError("a ledger directory's MANIFEST does not verify, put back a good copy")
    document = json.loads(text)
    if document["version"] not in _READABLE:
        raise UnsupportedVersionError(
            f"MANIFEST was written by another version of dlog, start that one: version={document['version']}"
        )
    return Manifest(
        marks=tuple(JournalMark(*mark) for mark in (document["mark"], *document.get("more_marks", ()))),
        next_file=document["next_file"],
        runs=tuple(RunFile(*run) for run in document["runs"]),
        logs=tuple(LogFile(*log) for log in document["logs"]),
        limbo=document["limbo"],
        kind=IndexKind(document.get("index", IndexKind.SORTED)),
        database=document.get("database", 0),
        database_writes=document.get("database_writes", 0),
        unindexed=tuple(LogRange(*part) for part in document.get("unindexed", ())),
    )
