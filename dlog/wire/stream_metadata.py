"""Encoding of a stream's znodes: DistributedLog's segments and binding, and our own owner, settings and sinks.

A segment is one znode, `inprogress_<number>` or `logrecs_<number>` (18 digits): decimal fields joined by semicolons.
The first packs: bits 0-7 format version, 8-15 truncation, 28-31 region, 32-63 record count (completed).

    in progress  f0;ledger;first txid;number                                          2: up to here
                 ;min entry;min slot                                                  3, 4
                 ;start sequence id                                                   5
    completed    f0;ledger;first txid;last txid;completed ms;number;last entry;last slot     and the same tails

A segment that is not in a ledger has two more fields, `;store;location`, percent-encoded. Where the ledger would stand
is the one that it was moved from, or -1; if it was moved from another store, that location follows in two more fields.
Java refuses such a string, as it must. The znodes `owner` and `settings` are JSON objects; unknown
keys are ignored. `sinks`, which exists once a sink has written, is a JSON object too: a sink's name and
`[epoch, query, batch, [segment, entry] or null]` (dlog/model/sink.py).
Every fault is a DamagedError, a newer format an UnsupportedVersionError. A number that could not be decoded again, as
the one after the largest, is not encoded: DamagedError too, since only a damaged znode leads to it.
Source: DistributedLog, LogSegmentMetadata, BKDLConfig, DLMetadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from dlog.errors import DamagedError, InvalidRequestError, UnsupportedVersionError
from dlog.model.ids import NO_ENTRY, NO_TXID, SEGMENT_MAX, EntryId, Epoch, ProxyId, SegmentNumber, Txid
from dlog.model.segment import Location, Owner, Segment, StoreSettings, StreamSettings, Truncation
from dlog.model.sink import SinkBatch, SinkRecord

Buffer = bytes | bytearray | memoryview

VERSION = 5
#: data of R/version
LOG_VERSION = b"\xff\xff\xff\xff"

_VERSIONS = range(2, VERSION + 1)
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)
_NAME = re.compile(r"(inprogress|logrecs)_([0-9]{18})\Z", re.ASCII)
INCARNATION_NAME = re.compile(r"[0-9A-Za-z]{1,64}\Z", re.ASCII)
_NUMBERS_END = 2**63
_RECORDS_END = 2**32
_TAIL = {2: 0, 3: 2, 4: 2, 5: 3}
_LEDGER = "ledger"


# ---- segments -------------------------------------------------------------------------------------------------------


def segment_name(segment: Segment) -> str:
    """Name of the segment's znode under R/ledgers."""
    completed, in_progress = segment_names(segment.number)
    return completed if segment.completed else in_progress


def segment_names(number: SegmentNumber) -> tuple[str, str]:
    """Names of a segment's znode: completed, in progress."""
    return f"logrecs_{number:018d}", f"inprogress_{number:018d}"


def parse_segment_name(name: str) -> tuple[bool, SegmentNumber] | None:
    """(completed, number), or None for a name that is not a segment's."""
    match = _NAME.match(name)
    return (match[1] == "logrecs", SegmentNumber(int(match[2]))) if match else None


def encode_segment(segment: Segment) -> bytes:
    """Data of the segment's znode, in the segment's own format version (5 for new segments). Raises DamagedError."""
    version = segment.version
    assert version in _VERSIONS, "segments have versions 2 to 5"
    _check_bound("segment number", segment.number, SEGMENT_MAX + 1)
    _check_bound("start sequence id", segment.start_sequence_id, _NUMBERS_END)
    _check_bound("record count", segment.record_count, _RECORDS_END)
    f0 = version | segment.truncation << 8 | segment.region << 28
    ledgers = [at.name for at in segment.locations if at.store == _LEDGER]
    ledger = ledgers[0] if ledgers else "-1"
    if segment.completed:
        f0 |= segment.record_count << 32
        f0 -= (f0 >> 63) << 64  # a signed number of 64 bits
        fields: list[object] = [f0, ledger, segment.first_txid, segment.last_txid, segment.completed_unix_ms]
        fields += [segment.number, segment.last_entry, segment.last_slot]
    else:
        fields = [f0, ledger, segment.first_txid, segment.number]
    fields += [segment.min_entry, segment.min_slot, segment.start_sequence_id][: _TAIL[version]]
    for at in segment.locations if segment.store != _LEDGER else ():
        if at.store != _LEDGER:
            fields += [quote(at.store, safe=""), quote(at.name, safe="")]
    return ";".join(map(str, fields)).encode()


def decode_segment(name: str, data: Buffer) -> Segment:
    """Decode the segment in the znode `name`. Raises DamagedError, UnsupportedVersionError."""
    named = parse_segment_name(name)
    if named is None:
        raise DamagedError(f"not the name of a segment: name={name[:60]!r}")
    completed, number = named
    parts = _text(data).split(";")
    f0 = _integer(parts[0], name)
    version = f0 & 0xFF
    if version not in _VERSIONS:
        raise UnsupportedVersionError(f"unsupported format version of a segment: name={name} version={version}")
    head = 8 if completed else 4
    located = [unquote(part) for part in parts[head + _TAIL[version] :]]
    del parts[head + _TAIL[version] :]
    if len(parts) != head + _TAIL[version] or len(located) not in (0, 2, 4) or f0 >> 8 & 0x3 > Truncation.TRUNCATED:
        raise DamagedError(
            f"segment cannot be decoded: name={name} version={version} fields={len(parts) + len(located)}"
        )
    fields = [_integer(part, name) for part in parts]
    tail = [*fields[head:], *(0, 0, -1)[len(fields) - head :]]
    if fields[5 if completed else 3] != number:
        raise DamagedError(f"segment's number differs from its name: name={name} found={fields[5 if completed else 3]}")
    ledger = Location(_LEDGER, str(fields[1]))
    locations = [Location(*located[at : at + 2]) for at in range(0, len(located), 2)]
    if not locations or fields[1] >= 0:
        locations.append(ledger)
    if len(locations) > 2 or _LEDGER in located[::2]:
        raise DamagedError(f"segment has too many locations: name={name} found={len(locations)}")
    return Segment(
        number=number,
        name=locations[0].name,
        store=locations[0].store,
        former=locations[1] if len(locations) > 1 else None,
        first_txid=Txid(fields[2]),
        completed=completed,
        last_txid=Txid(fields[3]) if completed else NO_TXID,
        last_entry=EntryId(fields[6]) if completed else NO_ENTRY,
        last_slot=fields[7] if completed else -1,
        record_count=f0 >> 32 & 0xFFFF_FFFF if completed else 0,
        completed_unix_ms=fields[4] if completed else 0,
        truncation=Truncation(f0 >> 8 & 0x3),
        min_entry=EntryId(tail[0]),
        min_slot=tail[1],
        start_sequence_id=tail[2],
        region=f0 >> 28 & 0xF,
        version=version,
    )


def encode_number(value: int) -> bytes:
    """Data of R/maxtxid, R/ledgers and R/allocation. Raises DamagedError."""
    _check_bound("number", value, _NUMBERS_END)
    return str(value).encode()


def decode_number(data: Buffer, where: str) -> int:
    """A decimal number; `where` names the znode in the error. Raises DamagedError."""
    return _integer(_text(data), where)


# ---- the namespace's binding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Binding of a namespace to a BookKeeper cluster. None: the field is not set."""

    bookkeeper_zookeeper: str
    ledgers_path: str
    sanity_check_txid: bool | None = None
    encode_region: bool | None = None
    bookkeeper_zookeeper_readers: str | None = None
    zookeeper: str
    zookeeper_readers: str | None = None
    acl_root: str | None = None
    first_segment: int | None = None
    federated: bool | None = None


_BINDING_HEAD = "1\nBKDL\n"
#: Thrift field id -> (name, type tag of TJSON)
_BINDING = {
    1: ("bookkeeper_zookeeper", "str"),
    2: ("ledgers_path", "str"),
    3: ("sanity_check_txid", "tf"),
    4: ("encode_region", "tf"),
    5: ("bookkeeper_zookeeper_readers", "str"),
    6: ("zookeeper", "str"),
    7: ("zookeeper_readers", "str"),
    8: ("acl_root", "str"),
    9: ("first_segment", "i64"),
    10: ("federated", "tf"),
}


def encode_binding(binding: Binding) -> bytes:
    """Data of the namespace's znode."""
    fields = {}
    for number, (name, tag) in _BINDING.items():
        value = getattr(binding, name)
        if value is not None:
            fields[str(number)] = {tag: int(value) if tag == "tf" else value}
    return (_BINDING_HEAD + json.dumps(fields, separators=(",", ":"), ensure_ascii=False)).encode()


def decode_binding(data: Buffer) -> Binding:
    """Unknown fields are skipped. Raises DamagedError, or UnsupportedVersionError for another kind of binding."""
    text = _text(data)
    if not text.startswith(_BINDING_HEAD):
        raise UnsupportedVersionError(f"unknown kind of namespace binding: begins with {text[:20]!r}")
    fields = _object(text[len(_BINDING_HEAD) :], "binding")
    found: dict[str, Any] = {}
    for number, (name, tag) in _BINDING.items():
        holder = fields.get(str(number))
        if holder is None:
            continue
        value = holder.get(tag) if isinstance(holder, dict) else None
        if type(value) is not (str if tag == "str" else int):
            raise DamagedError(f"binding's field has a wrong type: field={number}")
        found[name] = bool(value) if tag == "tf" else value
    missing = [name for name in ("bookkeeper_zookeeper", "ledgers_path", "zookeeper") if name not in found]
    if missing:
        raise DamagedError(f"binding lacks fields: {missing}")
    return Binding(**found)


# ---- ours: owner and settings ---------------------------------------------------------------------------------------


def encode_owner(owner: Owner, incarnation: str = "", trim: int = 0) -> bytes:
    """Data of R/owner. incarnation: id, as in `R/life-<incarnation>`; "" is not written. trim: first readable segment,
    while znodes of earlier segments exist; 0 is not written. Raises DamagedError."""
    _check_bound("owner epoch", owner.epoch, _NUMBERS_END)
    _check_bound("trim point", trim, _NUMBERS_END)
    fields = {
        "epoch": owner.epoch,
        "proxy": owner.proxy,
        "address": owner.address,
        "claim": owner.claim,
        "released": owner.released,
    }
    deleted = {"deleted": True} if owner.deleted else {}
    return _json(fields | deleted | ({"life": incarnation} if incarnation else {}) | ({"trim": trim} if trim else {}))


def decode_owner(data: Buffer) -> Owner:
    """Decode the data of the znode R/owner (R: the stream's root znode). Empty: no owner yet. Raises DamagedError."""
    if not data:
        return Owner()
    found = _object(_text(data), "owner")
    epoch = _typed(found, "epoch", int, 0)
    if not 0 <= epoch < _NUMBERS_END:
        raise DamagedError(f"owner has an epoch out of range: epoch={str(epoch)[:40]}")
    return Owner(
        epoch=Epoch(epoch),
        proxy=ProxyId(_typed(found, "proxy", str, "")),
        address=_typed(found, "address", str, ""),
        claim=_typed(found, "claim", str, ""),
        released=_typed(found, "released", bool, False),
        deleted=_typed(found, "deleted", bool, False),
    )


def decode_incarnation(data: Buffer) -> str:
    """The stream's incarnation id in R/owner; "" if there is none. Raises DamagedError."""
    incarnation = _typed(_object(_text(data), "owner"), "life", str, "") if data else ""
    if incarnation and not INCARNATION_NAME.match(incarnation):
        raise DamagedError(f"owner has an invalid incarnation id: value={incarnation[:40]!r}")
    return incarnation


def decode_trim(data: Buffer) -> int:
    """The number of the first readable segment in R/owner; 0 if there is none. Raises DamagedError."""
    trim = _typed(_object(_text(data), "owner"), "trim", int, 0) if data else 0
    if not 0 <= trim < _NUMBERS_END:
        raise DamagedError(f"owner has a trim point out of range: trim={str(trim)[:40]}")
    return trim


def settings_to_map(settings: StreamSettings) -> dict[str, Any]:
    """Settings under their names in requests, znodes and commands."""
    return {
        "store": settings.store,
        **dict(settings.store_settings),
        "segment_bytes": settings.segment_bytes,
        "segment_age_s": settings.segment_age_s,
        "retention_s": settings.retention_s,
    }


#: Checks the settings of a store, given with the store's name, and returns all of them; raises InvalidRequestError.
OfStore = Callable[[str, Mapping[str, Any]], StoreSettings]


def settings_from_map(values: Mapping[str, Any], base: StreamSettings, of_store: OfStore) -> StreamSettings:
    """Settings from a request; missing ones, and the version, are taken from `base`, those of another store than its
    own have their default. Names that are not settings of every stream are left to `of_store`.

    Raises InvalidRequestError for a wrong type, a value that is not positive (retention_s may be 0: kept for ever), and
    what `of_store` raises.
    """
    known: dict[str, Any] = {
        "store": base.store,
        "segment_bytes": base.segment_bytes,
        "segment_age_s": base.segment_age_s,
        "retention_s": base.retention_s,
    }
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            given[name] = value
            continue
        wanted = type(known[name])
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise InvalidRequestError(
                f"stream setting must be a {wanted.__name__}: setting={name} value={str(value)[:60]}"
            )
        if wanted is not str and not 0 < value < 2**53 and not (name == "retention_s" and value == 0):
            raise InvalidRequestError(f"stream setting must be positive: setting={name} value={str(value)[:60]}")
        known[name] = value
    store = known["store"]
    if not store or not _is_utf8(store):
        raise InvalidRequestError(f"the name of a store must be text and not empty: setting=store value={store[:60]!r}")
    kept = dict(base.store_settings) if store == base.store else {}
    return StreamSettings(**known, store_settings=of_store(store, kept | given), version=base.version)


def encode_settings(settings: StreamSettings) -> bytes:
    """Data of R/settings. The version is written once they were altered. Raises DamagedError."""
    _check_bound("settings version", settings.version, _NUMBERS_END)
    return _json(settings_to_map(settings) | ({"version": settings.version} if settings.version else {}))


def decode_settings(data: Buffer, of_store: OfStore) -> StreamSettings:
    """Decode R/settings; empty data: defaults. of_store: ignores the keys that it does not know, of a later version.
    Raises DamagedError."""
    return _settings(bytes(data), of_store)


@lru_cache(maxsize=1024)
def _settings(data: bytes, of_store: OfStore) -> StreamSettings:
    """Cached, since most streams of a cluster have equal settings."""
    found = _object(_text(data), "settings") if data else {}
    version = found.pop("version", 0)
    if type(version) is not int or not 0 <= version < _NUMBERS_END:
        raise DamagedError(f"settings have a version out of range: version={str(version)[:40]}")
    try:
        settings = settings_from_map(found, StreamSettings(), of_store)
    except InvalidRequestError as error:
        raise DamagedError(f"stored settings of a stream are invalid: {error.message}") from None
    return replace(settings, version=version)


def encode_sinks(sinks: Sequence[SinkRecord]) -> bytes:
    """Data of R/sinks."""
    return _json({r.last.sink: [r.last.epoch, r.last.query, r.last.batch, r.since and list(r.since)] for r in sinks})


def decode_sinks(data: Buffer) -> tuple[SinkRecord, ...]:
    """Decode R/sinks. Raises DamagedError: a sink's last batch must not be ignored, or it would be written again."""
    found = _object(_text(data), "sinks") if data else {}
    return tuple(_decode_sink(name, found[name]) for name in sorted(found))


def _decode_sink(name: str, fields: Any) -> SinkRecord:
    try:
        epoch, query, batch, since = fields
        position = since if since is None else (_count(since[0]), _count(since[1]))
        is_well = type(query) is str and _is_utf8(query) and (since is None or len(since) == 2)
        if is_well:
            return SinkRecord(SinkBatch(name, _count(epoch), query, _count(batch)), position)
    except (TypeError, ValueError, IndexError, KeyError):
        pass
    raise DamagedError(f"record of a sink cannot be decoded: sink={name[:40]!r} found={str(fields)[:80]!r}")


def _check_bound(what: str, value: int, end: int) -> None:
    """Raise DamagedError for a number that is `end` or higher: it was counted up from one in a damaged znode."""
    if value >= end:
        raise DamagedError(
            f"the {what} is too large to be stored, a znode of the stream is damaged: "
            f"restore it from a backup, or correct its number: value={value} limit={end - 1}"
        )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError("not a count")
    return value


def _text(data: Buffer) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise DamagedError(f"not text: begins with {bytes(data[:20])!r}") from None


def _integer(text: str, where: str) -> int:
    if not _INTEGER.match(text) or not -(2**63) <= int(text) < 2**63:
        raise DamagedError(f"not a number of 64 bits: where={where} text={text[:40]!r}")
    return int(text)


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedError(f"not JSON: where={where} text={text[:40]!r}") from None
    if not isinstance(found, dict):
        raise DamagedError(f"not a JSON object: where={where} text={text[:40]!r}")
    return found


def _typed(found: dict[str, Any], key: str, wanted: type[Any], default: Any) -> Any:
    value = found.get(key, default)
    if type(value) is not wanted:
        raise DamagedError(f"owner's field has a wrong type: field={key} value={str(value)[:40]!r}")
    if wanted is str and not _is_utf8(value):
        raise DamagedError(f"owner's field is not valid UTF-8: field={key} value={value[:40]!r}")
    return value


def _is_utf8(text: str) -> bool:
    """False for half a surrogate pair, which JSON can contain and our protocols cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
