"""Plans changes of a stream's metadata as the operations of one ZooKeeper multi. Pure. R is the stream's root znode.

Invariants:
- Every change sets `R/owner` under the version that was read, so of two changes based on one read only one succeeds.
- Every change checks or sets `R/ledgers`, which every Java writer sets when it starts or completes a segment.
- Every change checks `R/life-<incarnation>`, a name unique to this incarnation: versions restart at 0 when a stream is
  deleted and created under the same name.

Source: DistributedLog `ZKLogSegmentMetadataStore`, `ZKLogStreamMetadataStore`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dlog.io.zookeeper_protocol import Check, Create, Created, Delete, Op, Set, Stat
from dlog.model.segment import Segment, StreamMetadata
from dlog.wire.stream_metadata import (
    LOG_VERSION,
    encode_number,
    encode_owner,
    encode_segment,
    encode_settings,
    encode_sinks,
    parse_segment_name,
    segment_name,
)


@dataclass(frozen=True, slots=True)
class StreamVersion:
    """Version of a stream's metadata, opaque to callers: the value and its znodes' versions; segments have theirs in
    the value (`Segment.metadata_version`). None: no such znode (a stream created by Java has no owner, no settings).
    """

    value: StreamMetadata = field(repr=False)
    ledgers: int
    max_txid: int
    allocation: int | None
    owner: int | None
    settings: int | None
    sinks: int | None
    incarnation: str  # incarnation id; "": none was assigned


def incarnation_path(root: str, incarnation: str) -> str:
    """Path of the znode that identifies one incarnation of the stream."""
    return f"{root}/life-{incarnation}"


def plan_removal(root: str, incarnation: str, owner_version: int, below: list[str], at_once: int) -> list[list[Op]]:
    """Remove all paths in `below` (the stream's own included) of a stream that was deleted in this incarnation.

    The znodes that identify the stream, `owner` and `life-*` among them, go together and last: until then a reader
    finds that it was deleted, and in which incarnation. Every multi checks both, so none touches the next stream.
    """
    same: list[Op] = [Check(incarnation_path(root, incarnation), 0), Check(f"{root}/owner", owner_version)]
    segments = f"{root}/ledgers/"
    first = sorted(path for path in below if path.startswith(segments))
    last = sorted((path for path in below if not path.startswith(segments)), key=lambda path: -path.count("/"))
    chunks = [first[start : start + at_once] for start in range(0, len(first), at_once)] + [last]
    return [[*same, *(Delete(path) for path in chunk)] for chunk in chunks]


def plan_creation(root: str, value: StreamMetadata, incarnation: str) -> list[Op]:
    """Create R and all znodes below it. The first six are DistributedLog's, in its order."""
    ops: list[Op] = [
        Create(root),
        Create(f"{root}/maxtxid", encode_number(value.max_txid)),
        Create(f"{root}/version", LOG_VERSION),
        Create(f"{root}/lock"),
        Create(f"{root}/readLock"),
        Create(f"{root}/ledgers", encode_number(value.max_segment)),
        Create(f"{root}/allocation", value.allocated.encode()),
        Create(f"{root}/owner", _encode_owner(value, incarnation)),
        Create(incarnation_path(root, incarnation)),
        Create(f"{root}/settings", encode_settings(value.settings)),
    ]
    return ops + [Create(_path(root, segment), encode_segment(segment)) for segment in value.listed]


def plan_incarnation(root: str, old: StreamVersion, incarnation: str) -> list[Op]:
    """Give a stream without an incarnation id (Java created it) one, and change nothing else."""
    owner = _set_or_create(f"{root}/owner", _encode_owner(old.value, incarnation), old.owner)
    return [owner, Create(incarnation_path(root, incarnation)), Check(f"{root}/ledgers", old.ledgers)]


def plan_change(root: str, old: StreamVersion, new: StreamMetadata) -> list[Op]:
    """Change the value read into `new`; ZooKeeper refuses the multi if anything it depends on has changed since.

    The stream must have an incarnation id. Asserts that it is the same stream, that its epoch does not decrease, and
    that no completed segment is reopened.
    """
    was = old.value
    assert new.name == was.name, "a change concerns one stream"
    assert new.owner.epoch >= was.owner.epoch, "epochs only grow"
    assert old.incarnation, "a stream is changed only after it has an incarnation id"
    assert old.owner is not None, "the incarnation id is written into the owner's znode"
    ops: list[Op] = [
        Check(incarnation_path(root, old.incarnation), 0),
        Set(f"{root}/owner", _encode_owner(new, old.incarnation), old.owner),
    ]
    segment_ops = _plan_segments(root, was, new)
    ops += segment_ops
    if new.max_segment != was.max_segment or any(not isinstance(op, Set) for op in segment_ops):
        ops.append(Set(f"{root}/ledgers", encode_number(new.max_segment), old.ledgers))
    else:
        ops.append(Check(f"{root}/ledgers", old.ledgers))
    if new.max_txid != was.max_txid:
        ops.append(Set(f"{root}/maxtxid", encode_number(new.max_txid), old.max_txid))
    if new.allocated != was.allocated:
        ops.append(_set_or_create(f"{root}/allocation", new.allocated.encode(), old.allocation))
    if new.settings != was.settings or old.settings is None:
        ops.append(_set_or_create(f"{root}/settings", encode_settings(new.settings), old.settings))
    if new.sinks != was.sinks:
        ops.append(_set_or_create(f"{root}/sinks", encode_sinks(new.sinks), old.sinks))
    return ops


def version_after(
    root: str, old: StreamVersion, new: StreamMetadata, ops: list[Op], results: list[Any]
) -> StreamVersion:
    """The version of `new`, with its segments' versions and times, from the results of the multi that wrote it."""
    versions: dict[str, int | None] = {}
    stamped: dict[int, Segment] = {}
    listed, unix_ms = new.listed, time_of(results)
    for op, result in zip(ops, results, strict=True):
        match op, result:
            case Create(path=path), Created():
                versions[path] = result.stat.version
            case Set(path=path), Stat():
                versions[path] = result.version
            case _:
                continue
        named = parse_segment_name(path.removeprefix(f"{root}/ledgers/"))
        segment = listed.find(named[1]) if named is not None else None
        if segment is not None:
            made_ms = unix_ms if segment.completed and isinstance(op, Create) else segment.metadata_unix_ms
            stamped[segment.number] = replace(segment, metadata_unix_ms=made_ms, metadata_version=versions[path] or 0)
    ledgers = versions.get(f"{root}/ledgers", old.ledgers)
    max_txid = versions.get(f"{root}/maxtxid", old.max_txid)
    assert ledgers is not None
    assert max_txid is not None
    return StreamVersion(
        value=replace(new, changed_unix_ms=unix_ms).with_stamps(stamped),
        ledgers=ledgers,
        max_txid=max_txid,
        allocation=versions.get(f"{root}/allocation", old.allocation),
        owner=versions.get(f"{root}/owner", old.owner),
        settings=versions.get(f"{root}/settings", old.settings),
        sinks=versions.get(f"{root}/sinks", old.sinks),
        incarnation=old.incarnation,
    )


def time_of(results: list[Any]) -> int:
    """When a multi took place, in Unix ms by the leader's clock; one time for all its operations."""
    stats = (result.stat if isinstance(result, Created) else result for result in results)
    return max((stat.mtime_ms for stat in stats if isinstance(stat, Stat)), default=0)


def version_of_creation(value: StreamMetadata, incarnation: str) -> StreamVersion:
    """The version of a stream just created: every znode has version 0."""
    made = value.with_stamps({s.number: replace(s, metadata_version=0) for s in value.listed})
    return StreamVersion(
        made, ledgers=0, max_txid=0, allocation=0, owner=0, settings=0, sinks=None, incarnation=incarnation
    )


def lock_client(value: StreamMetadata) -> str:
    """The owner's client id in its lock node, as DistributedLog's proxies write it: `<version>;<shard>;<address>`."""
    return f"1;0;{value.owner.address or value.owner.proxy}"


def _plan_segments(root: str, old: StreamMetadata, new: StreamMetadata) -> list[Op]:
    ops: list[Op] = []
    gone: list[Op] = []
    for was, now in new.changes_since(old):
        if was is not None and now is not None and was.completed == now.completed:
            ops.append(Set(_path(root, now), encode_segment(now), was.metadata_version))
            continue
        if now is not None:
            assert was is None or now.completed, "a completed segment is never reopened"
            ops.append(Create(_path(root, now), encode_segment(now)))
        if was is not None:
            (ops if now is not None else gone).append(Delete(_path(root, was), was.metadata_version))
    return ops + gone


def _encode_owner(value: StreamMetadata, incarnation: str) -> bytes:
    return encode_owner(value.owner, incarnation, value.first_number if value.truncated else 0)


def _set_or_create(path: str, data: bytes, version: int | None) -> Op:
    return Create(path, data) if version is None else Set(path, data, version)


def _path(root: str, segment: Segment) -> str:
    return f"{root}/ledgers/{segment_name(segment)}"
