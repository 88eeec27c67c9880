"""From one value of a stream to the next: the znodes that must change, as the operations of one multi.

The law of this room: pure. Every change sets `R/owner` under the version that was read, changed or not, so that of two
changes from one read only one takes place; and it checks or sets `R/ledgers`, which every Java writer sets when it
starts or completes a segment. Versions begin anew when a stream is deleted and made again under its name, so every
change checks `R/life-<life>` too, a name that no other stream ever had. Source: DistributedLog
`ZKLogSegmentMetadataStore`, `ZKLogStreamMetadataStore`.
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
    """The version of a stream that was read; callers only hand it back. It holds the value, and the versions of its
    znodes; those of segments are in the value (`Segment.metadata_version`).

    None: there is no such znode (a stream made by Java has neither owner nor settings).
    """

    value: StreamMetadata = field(repr=False)
    ledgers: int
    max_txid: int
    allocation: int | None
    owner: int | None
    settings: int | None
    sinks: int | None
    life: str  # "": it was never given one


def life_path(root: str, life: str) -> str:
    """The znode that stands for one life of the stream."""
    return f"{root}/life-{life}"


def plan_removal(root: str, life: str, owner_version: int, below: list[str], at_once: int) -> list[list[Op]]:
    """Remove all that is `below` (paths, the stream's own among them) of a stream that was deleted in this life.

    The znodes that make it this stream, `owner` and `life` among them, go together and last: until then whoever comes
    finds that it was deleted, and as which life. Every multi checks both, so none touches the next stream of the name.
    """
    same: list[Op] = [Check(life_path(root, life), 0), Check(f"{root}/owner", owner_version)]
    segments = f"{root}/ledgers/"
    first = sorted(path for path in below if path.startswith(segments))
    last = sorted((path for path in below if not path.startswith(segments)), key=lambda path: -path.count("/"))
    chunks = [first[start : start + at_once] for start in range(0, len(first), at_once)] + [last]
    return [[*same, *(Delete(path) for path in chunk)] for chunk in chunks]


def plan_creation(root: str, value: StreamMetadata, life: str) -> list[Op]:
    """All znodes below and including R. The first six are DistributedLog's, in its order."""
    ops: list[Op] = [
        Create(root),
        Create(f"{root}/maxtxid", encode_number(value.max_txid)),
        Create(f"{root}/version", LOG_VERSION),
        Create(f"{root}/lock"),
        Create(f"{root}/readLock"),
        Create(f"{root}/ledgers", encode_number(value.max_segment)),
        Create(f"{root}/allocation", value.allocated.encode()),
        Create(f"{root}/owner", _encode_owner(value, life)),
        Create(life_path(root, life)),
        Create(f"{root}/settings", encode_settings(value.settings)),
    ]
    return ops + [Create(_path(root, segment), encode_segment(segment)) for segment in value.listed]


def plan_life(root: str, old: StreamVersion, life: str) -> list[Op]:
    """Give a stream that has none (Java made it) an identity, and change nothing else."""
    owner = _set_or_create(f"{root}/owner", _encode_owner(old.value, life), old.owner)
    return [owner, Create(life_path(root, life)), Check(f"{root}/ledgers", old.ledgers)]


def plan_change(root: str, old: StreamVersion, new: StreamMetadata) -> list[Op]:
    """What turns the value read into `new`, refused if anything it relies on has changed since.

    The stream has been given a life. Asserts what no caller may ask for: another stream, an epoch that goes back, a
    completed segment reopened.
    """
    was = old.value
    assert new.name == was.name, "one stream's change"
    assert new.owner.epoch >= was.owner.epoch, "epochs only grow"
    assert old.life, "what is changed can be told from what had its name before"
    assert old.owner is not None, "a life is written with an owner"
    ops: list[Op] = [
        Check(life_path(root, old.life), 0),
        Set(f"{root}/owner", _encode_owner(new, old.life), old.owner),
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
    """The version of `new`, and what metadata gives to its segments, from the results of the multi that wrote it."""
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
        life=old.life,
    )


def time_of(results: list[Any]) -> int:
    """When a multi took place by the clock of the server that led: one moment for all of it."""
    stats = (result.stat if isinstance(result, Created) else result for result in results)
    return max((stat.mtime_ms for stat in stats if isinstance(stat, Stat)), default=0)


def version_of_creation(value: StreamMetadata, life: str) -> StreamVersion:
    """The version of a stream just made: every znode is in its first."""
    made = value.with_stamps({s.number: replace(s, metadata_version=0) for s in value.listed})
    return StreamVersion(made, ledgers=0, max_txid=0, allocation=0, owner=0, settings=0, sinks=None, life=life)


def lock_client(value: StreamMetadata) -> str:
    """How the owner calls itself in its lock node, as DistributedLog's proxies do: `<version>;<shard>;<address>`."""
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


def _encode_owner(value: StreamMetadata, life: str) -> bytes:
    return encode_owner(value.owner, life, value.first_number if value.truncated else 0)


def _set_or_create(path: str, data: bytes, version: int | None) -> Op:
    return Create(path, data) if version is None else Set(path, data, version)


def _path(root: str, segment: Segment) -> str:
    return f"{root}/ledgers/{segment_name(segment)}"
