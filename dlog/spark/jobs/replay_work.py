"""Stores the state of a replay on disk, so that a killed one can continue: plan, runs, and published tables.

    WORK/plan.json               what is replayed and how, every piece, and known tables; written once, by the first run
    WORK/lock                    held by a running replay
    WORK/runs/                   run files and their indexes, one of each a piece
    WORK/notes/                  a note for each part that is done
    WORK/manifests/              of tables that were passed to a function, as below
    WORK/report.json             written at the end, when nothing failed and nothing is left to do
    TO/_replay/parts, stage      unpublished files
    TO/region=R/table=T/         files of a table and `_manifest.json`, which appear together
    TO/region=~none/table=0/     a file without a record, for readers that guess a column's type by its values: it makes
                                 `region` text, so that region 007 does not become the number 7

Invariants:
- what exists is complete: a table appears by one rename, and is never changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

from dlog.errors import ConfigError, DamagedError
from dlog.spark.jobs.replay_merge import empty_table
from dlog.spark.jobs.replay_runs import Split, publish
from dlog.spark.jobs.wal import KnownTable, RegionPiece, WalPlan

_VERSION = 3
_MANIFEST = "_manifest.json"
_NO_REGION = "~none"  # not a valid name of a stream
_POLYNOMIAL = 0x82F63B78  # of CRC32C, reflected


class Work:
    """The directories of one replay. to: None if records are passed to a function."""

    def __init__(self, root: Path, to: Path | None) -> None:
        self.runs = root / "runs"
        self.notes = root / "notes"
        self.parts = to / "_replay" / "parts" if to else None
        self.id = ""  # of the plan
        self._root = root
        self._to = to
        self._stage = to / "_replay" / "stage" if to else None
        self._manifests = root / "manifests"
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Work:
        """Raises ConfigError while another replay runs here."""
        try:
            for directory in (self.runs, self.notes, self.parts, self._stage, None if self._to else self._manifests):
                if directory is not None:
                    directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self._root / "lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.__exit__()
            raise ConfigError(f"another replay is running in this directory, use another: work={self._root}") from None
        except OSError as error:
            self.__exit__()
            raise ConfigError(f"the directories of the replay cannot be created: {error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def plan(self, identity: Mapping[str, Any], make: Callable[[], WalPlan], token: str) -> WalPlan:
        """The plan that the first run made. Raises ConfigError if that was another replay."""
        path = self._root / "plan.json"
        if not path.exists():
            made = make()
            content = {
                "version": _VERSION,
                "identity": identity,
                "pieces": [asdict(piece) for piece in made.pieces],
                "tables": [asdict(table) for table in made.tables],
            }
            publish(path, json.dumps(content, sort_keys=True).encode(), token)
        data = path.read_bytes()
        try:
            kept = json.loads(data)
            found = WalPlan(
                tuple(RegionPiece(**{**piece, "told": tuple(piece["told"])}) for piece in kept["pieces"]),
                tuple(KnownTable(**table) for table in kept["tables"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"the plan of a replay cannot be read; remove it to start over: file={path}") from error
        for name in sorted({*identity, *kept["identity"]}):
            if identity.get(name) != kept["identity"].get(name):
                raise ConfigError(
                    f"this directory holds another replay; use another directory, or remove it: work={self._root} "
                    f"differs={name}"
                )
        self.id = hashlib.sha256(data).hexdigest()[:16]
        return found

    def split_of(self, piece: RegionPiece) -> Split | None:
        """The index of a piece; None if it is not split yet. Raises DamagedError."""
        path = self.runs / f"{piece.region}-{piece.number:06d}.index"
        return Split.load(path) if path.exists() else None

    def manifest_of(self, region: str, table: int) -> dict[str, Any] | None:
        """The manifest of a published table, or None. Raises ConfigError for another replay's."""
        path = self._published(region, table)
        try:
            manifest = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            manifest = {}
        if not isinstance(manifest, dict) or manifest.get("replay") != self.id:
            raise ConfigError(f"this table was written by another replay; use another directory: file={path}")
        return cast("dict[str, Any]", manifest)

    def publish(self, notes: Sequence[Mapping[str, Any]], token: str) -> dict[str, Any]:
        """Publish a table, from the notes of its parts in order; returns its manifest. Raises ConfigError, OSError."""
        region, table = notes[0]["region"], int(notes[0]["table"])
        manifest = manifest_from(notes, self.id)
        data = json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n"
        path = self._published(region, table)
        if self._to is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            publish(path, data, token)
            return manifest
        assert self.parts is not None and self._stage is not None
        self._have_regions_be_text(str(notes[0]["file"]).rpartition(".")[2], token)
        stage = self._stage / f"{region}-{table}"
        stage.mkdir(exist_ok=True)
        for note, file in zip(notes, manifest["files"], strict=True):
            if (self.parts / note["file"]).exists():  # else an earlier run has moved it
                os.rename(self.parts / note["file"], stage / file["file"])
        (stage / _MANIFEST).unlink(missing_ok=True)
        publish(stage / _MANIFEST, data, token, through=self.parts)
        path.parent.parent.mkdir(exist_ok=True)
        try:
            os.rename(stage, path.parent)
        except OSError:
            there = self.manifest_of(region, table)
            if there is None:
                raise
            return there
        return manifest

    def _have_regions_be_text(self, suffix: str, token: str) -> None:
        assert self._to is not None
        path = self._to / f"region={_NO_REGION}" / "table=0" / f"none.{suffix}"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            publish(path, empty_table(suffix), token, through=self.parts)

    def report(self) -> dict[str, Any] | None:
        """The report, if finished."""
        path = self._root / "report.json"
        return cast("dict[str, Any]", json.loads(path.read_bytes())) if path.exists() else None

    def finish(self, report: Mapping[str, Any], token: str) -> None:
        """Store the report, and delete temporary files."""
        publish(self._root / "report.json", json.dumps(report, sort_keys=True).encode(), token)
        for directory in (self.runs, self.notes, self.parts, self._stage):
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)

    def _published(self, region: str, table: int) -> Path:
        if self._to is None:
            return self._manifests / f"region={region}" / f"table={table}.json"
        return self._to / f"region={region}" / f"table={table}" / _MANIFEST


def manifest_from(notes: Sequence[Mapping[str, Any]], replay: str) -> dict[str, Any]:
    """The manifest of a table, from the notes of its parts in order. crc32c: of all its payloads, joined."""
    first, last = notes[0], notes[-1]
    crc = 0
    for note in notes:
        crc = joined_crc32c(crc, note["crc32c"], note["bytes"])
    files = []
    for note in notes:
        if "file" in note:
            kept = {key: note[key] for key in note if key not in ("region", "table", "part", "file")}
            suffix = str(note["file"]).rpartition(".")[2]
            files.append({"file": f"part-{note['part']:05d}.{suffix}", **kept})
    return {
        "region": first["region"],
        "table": first["table"],
        "replay": replay,
        "first_dlsn": first["first_dlsn"],
        "last_dlsn": last["last_dlsn"],
        "first_sequence": first["first_sequence"],
        "last_sequence": last["last_sequence"],
        "records": sum(note["records"] for note in notes),
        "bytes": sum(note["bytes"] for note in notes),
        "parts": len(notes),
        "files": files,
        "crc32c": crc,
    }


def joined_crc32c(first: int, second: int, second_bytes: int) -> int:
    """The CRC32C of two byte strings, joined, from those of each: the first is advanced by as many zero bytes as the
    second has, a linear map that is computed by squaring."""
    step = [_POLYNOMIAL, *(1 << bit for bit in range(31))]  # one zero bit
    for _ in range(3):
        step = _squared(step)  # one zero byte
    while second_bytes:
        if second_bytes & 1:
            first = _times(step, first)
        second_bytes >>= 1
        step = _squared(step)
    return first ^ second


def _times(matrix: Sequence[int], vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
    return total


def _squared(matrix: Sequence[int]) -> list[int]:
    return [_times(matrix, column) for column in matrix]
