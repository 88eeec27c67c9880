"""The two directories of job `table`: the table's files, and the checkpoint of the query that writes them.

    TO/_dlog_table.json, CHECKPOINT/dlog_table.json      identity of the table; equal in both, above all `id`

Invariants:
- a table and a checkpoint belong to each other for ever;
- a directory with other contents is refused before a byte is written.

Both may be on any file system that Hadoop knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from dlog.errors import ConfigError, DamagedError
from dlog.spark.offsets import StreamPosition, parse_positions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_TABLE, OF_CHECKPOINT = "_dlog_table.json", "dlog_table.json"
_BYTES_MAX = 1 << 20


class Files:
    """A directory, through Hadoop's file systems."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        """Raises ConfigError for an invalid path, or an unknown file system."""
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        try:
            self._root = jvm.org.apache.hadoop.fs.Path(path)
            self._fs = self._root.getFileSystem(cast(Any, spark)._jsparkSession.sessionState().newHadoopConf())
        except Exception as error:  # noqa: BLE001 - Java raises many kinds
            raise ConfigError(
                f"not a path on a file system that Spark reaches: path={path[:200]}: {_short(error)}"
            ) from None
        self.path = path

    def names(self, under: str = "") -> list[str]:
        """Names in the directory, without Hadoop's checksum files; empty without a directory."""
        path = self._at(under)
        if not self._fs.exists(path):
            return []
        found = [status.getPath().getName() for status in self._fs.listStatus(path)]
        return sorted(name for name in found if not (name.startswith(".") and name.endswith(".crc")))

    def read(self, name: str) -> bytes | None:
        """The beginning of a file, at most 1 MiB; None if there is none."""
        path = self._at(name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return bytes(stream.readNBytes(_BYTES_MAX))
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        """Write a file, which appears complete."""
        part = self._at(f".{name}-{uuid4().hex[:12]}")
        stream = self._fs.create(part, True)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        if not self._fs.rename(part, self._at(name)):
            raise ConfigError(f"a file cannot be written, check permissions: path={self.path}/{name}")

    def delete(self, name: str) -> None:
        self._fs.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name) if name else self._root


def claim(to: Files, checkpoint: Files, what: Mapping[str, Any], *, write: bool = True) -> None:
    """Bind the two directories to each other and to `what`. Either they are bound already, or both are empty.

    Raises ConfigError that names the other contents. write: False only checks.
    """
    of_table, of_checkpoint = _read(to, OF_TABLE), _read(checkpoint, OF_CHECKPOINT)
    for files, identity in ((to, of_table), (checkpoint, of_checkpoint)):
        for key in sorted(what) if identity is not None else ():
            if identity is not None and identity.get(key) != what[key]:
                kind = "checkpoint" if files is checkpoint else "table"
                raise ConfigError(
                    f"this directory holds the {kind} of another query: path={files.path} {key}={identity.get(key)} "
                    f"wanted={what[key]}"
                )
    if of_table is not None and of_checkpoint is not None:
        if of_table.get("id") != of_checkpoint.get("id"):
            raise ConfigError(
                f"this table was written with another checkpoint: to={to.path} checkpoint={checkpoint.path}"
            )
        return
    if of_checkpoint is not None or _is_used(checkpoint, OF_CHECKPOINT):
        raise ConfigError(
            f"this checkpoint belongs to another query, or its table is gone; name an empty directory: "
            f"checkpoint={checkpoint.path}"
        )
    if _is_used(to, OF_TABLE):
        why = "it was written with another checkpoint" if of_table is not None else "it has other contents"
        raise ConfigError(f"name an empty directory for the table, {why}: to={to.path}")
    if write:
        identity = of_table or {**what, "id": uuid4().hex}  # of_table: a run was killed at this point
        data = json.dumps(identity, sort_keys=True).encode() + b"\n"
        if of_table is None:
            to.write(OF_TABLE, data)
        checkpoint.write(OF_CHECKPOINT, data)


def _is_used(files: Files, but: str) -> bool:
    """Whether the directory has other files; names with a leading dot are left by starts that were killed."""
    return any(name != but and not name.startswith(".") for name in files.names())


def _read(files: Files, name: str) -> dict[str, Any] | None:
    data = files.read(name)
    if data is None:
        return None
    try:
        identity = json.loads(data)
    except (ValueError, RecursionError):
        identity = None
    if not isinstance(identity, dict):
        raise DamagedError(f"the identity of a table cannot be read; use another directory: file={files.path}/{name}")
    return identity


def done_up_to(checkpoint: Files) -> tuple[int, dict[str, StreamPosition]]:
    """The last batch in the table, -1 if there is none, and the next position of each stream. Raises DamagedError."""
    batches = [int(name) for name in checkpoint.names("commits") if name.isdigit()]
    if not batches:
        return -1, {}
    last = max(batches)
    data = checkpoint.read(f"offsets/{last}")
    lines = (data or b"").decode(errors="replace").splitlines()
    if len(lines) < 3:  # a version, Spark's settings, then the offset of each source
        raise DamagedError(f"offsets of a checkpoint cannot be read: checkpoint={checkpoint.path} batch={last}")
    return last, parse_positions(lines[2], f"offsets of batch {last}")


def _short(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
