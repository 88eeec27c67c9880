"""Reads regions of dlog/region as a `Wal`: write-ahead logs in topics of Kafka, or of a directory.

A position is 0, offset, 0. The txid is the offset too, and there is no timestamp.

Invariants:
- the region is viewed, its owner goes on;
- a task reads its own offsets, straight from the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from dlog.client.regions import Regions, RegionView, check_name, state_of
from dlog.errors import (
    ConfigError,
    DamagedError,
    InvalidRequestError,
    TruncatedError,
    UnavailableError,
    UnsupportedVersionError,
)
from dlog.io.kafka_settings import KafkaTopicsOptions
from dlog.io.kafka_topics import KafkaTopics
from dlog.io.region_topics import READ_BYTES
from dlog.io.topics import open_topics
from dlog.options import KiB
from dlog.region.messages import Topic
from dlog.region.names import region_number, topic_names
from dlog.region.pieces import Cut, Piece, PiecePlan, PieceScan, WantedTable
from dlog.region.reading import RegionEntry
from dlog.region.topics import OffsetOutOfRangeError, Topics
from dlog.spark.jobs.wal import NUMBER_MAX, SCHEMA, KnownTable, OnSkipped, RegionPiece, WalPlan
from dlog.spark.options import read_one_of, read_value
from dlog.values import Columns

if TYPE_CHECKING:
    from dlog.spark.jobs.flushed_sequences import Marks

T = TypeVar("T")

PLAN_ATTEMPTS = 5  # while the owner deletes the front of the topic
_FETCH_BYTES = 64 * KiB  # of one record that a plan reads
_OPTIONS = {"onCorruption": ("fail", "skip-entry"), "failOnDataLoss": ("true", "false")}


class RegionAddress(NamedTuple):
    """topics: as `open_topics` takes it."""

    topics: str
    namespace: str
    region: str

    @classmethod
    def parse(cls, text: str) -> RegionAddress:
        """Parse kafka://host:port,host:port/NAMESPACE/REGION or file:///path/NAMESPACE/REGION. Raises ConfigError."""
        scheme, separator, path = text.partition("://")
        topics, *names = path.rsplit("/", 2)
        if not separator or not topics or len(names) != 2 or not all(names):
            raise ConfigError(
                f"not an address of a region, use kafka://host:port,host:port/NAMESPACE/REGION or "
                f"file:///path/NAMESPACE/REGION: region={text[:120]!r}"
            )
        return cls(f"{scheme}://{topics}", *names)


class RegionWal:
    """One region. address: as `RegionAddress` parses it. source: onCorruption, failOnDataLoss. kafka: of the client.

    onCorruption=skip-entry: leave out records that cannot be decoded. failOnDataLoss=false: if records are deleted
    after the plan was made, replay the tables that lost none. Raises ConfigError, InvalidRequestError for a name,
    MisconfiguredError without aiokafka.
    """

    def __init__(
        self, address: str, source: Mapping[str, str] | None = None, *, kafka: KafkaTopicsOptions | None = None
    ) -> None:
        self._address = RegionAddress.parse(address)
        options = _read_options(source or {})
        self._identity = {"region": address, **options}
        self._skips = options.get("oncorruption") == "skip-entry"
        self._fails_on_loss = options.get("failondataloss") != "false"
        self._kafka = kafka
        check_name("namespace", self._address.namespace)
        check_name("region", self._address.region)
        open_topics(self._address.topics, kafka=kafka)  # raises for an address that it does not take

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    # ---- on the driver -----------------------------------------------------------------------------------------------

    def plan(self, piece_bytes: int, marks: Marks, tables: Sequence[int]) -> WalPlan:
        """See Wal. Raises TopicNotFoundError, UnsafeTopicError, DamagedError, UnavailableError."""
        return _run(self._plan(piece_bytes, marks, tables))

    async def _plan(self, piece_bytes: int, marks: Marks, tables: Sequence[int]) -> WalPlan:
        kafka = replace(self._kafka or KafkaTopicsOptions(), fetch_bytes=_FETCH_BYTES)
        address = self._address
        async with Regions(address.topics, address.namespace, kafka=kafka, clean_every_s=None) as regions:
            for _ in range(PLAN_ATTEMPTS):
                view = await regions.view(address.region, skip_damaged=self._skips)
                known = _known(address.region, view, marks, tables)
                try:
                    return WalPlan(await self._pieces(regions.topics, view, known, piece_bytes), known)
                except OffsetOutOfRangeError:
                    continue  # its owner cleans the region
        raise UnavailableError(
            f"the region is cleaned again and again while it is planned: region={address.namespace}/{address.region}"
        )

    async def _pieces(
        self, topics: Topics, view: RegionView, known: Sequence[KnownTable], piece_bytes: int
    ) -> tuple[RegionPiece, ...]:
        wanted = {table.table: max(table.first, table.kept) for table in known}
        plan = PiecePlan(region_number(self._address.region), state_of(view), wanted, view.first)
        path = self._path
        cuts: list[tuple[Cut, int]] = []  # with the bytes behind it
        problems = list(view.problems)
        size = piece_bytes  # since the last cut: begin with one
        for point in plan.points:
            if size >= piece_bytes:
                try:
                    (stored, *_) = await topics.read(path, point.offset, 1)
                    cut = plan.cut(point, stored)
                except (DamagedError, UnsupportedVersionError) as error:
                    if not cuts and not self._skips:
                        raise
                    if not cuts:
                        problems.append(f"data topic: {error.message}")
                else:
                    if not cuts or cut.may_follow(cuts[-1][0]):
                        cuts.append((cut, 0))
                    size = 0
            size += point.bytes
            if cuts:
                cuts[-1] = (cuts[-1][0], cuts[-1][1] + point.bytes)
        ends = [*(cut.begin for cut, _ in cuts[1:]), plan.end][: len(cuts)]
        return tuple(
            RegionPiece(
                region=self._address.region,
                number=number,
                bytes=size,
                records=end - cut.begin,
                told=(_piece_as_map(plan.piece(cut, end)), {"problems": problems if number == 0 else []}),
            )
            for number, ((cut, size), end) in enumerate(zip(cuts, ends, strict=True))
        )

    # ---- in a task ---------------------------------------------------------------------------------------------------

    def read(self, piece: RegionPiece, tables: Sequence[KnownTable], on_skipped: OnSkipped) -> Iterator[pa.RecordBatch]:
        """See Wal. Raises DamagedError, UnsupportedVersionError, UnavailableError; TruncatedError if records of the
        piece were deleted."""
        part, problems = piece.told
        for problem in problems["problems"]:
            on_skipped(f"{problem}, left out")
        wanted = {
            table.table: WantedTable(max(table.first, table.kept), table.next, table.end)
            for table in tables
            if max(table.first, table.kept) < table.next
        }
        scan = PieceScan(region_number(self._address.region), _piece_of(part), wanted, skips=self._skips)
        with asyncio.Runner() as runner:
            topics = open_topics(self._address.topics, kafka=self._kafka)
            try:
                while not scan.is_done:
                    try:
                        records = runner.run(topics.read(self._path, scan.offset, READ_BYTES))
                    except OffsetOutOfRangeError as error:
                        self._check_loss(scan.offset, part["end"], error, on_skipped)
                        return
                    if not records:
                        raise DamagedError(
                            f"the data topic ends before what was planned, so records are lost: "
                            f"region={self._address.region} offset={scan.offset} planned={part['end']}"
                        )
                    entries = scan.feed(records)
                    for problem in scan.problems:
                        on_skipped(f"{problem}, left out")
                    scan.problems.clear()
                    if entries:
                        yield _batch(entries)
            finally:
                if isinstance(topics, KafkaTopics):
                    runner.run(topics.close())

    def _check_loss(self, offset: int, end: int, error: OffsetOutOfRangeError, on_skipped: OnSkipped) -> None:
        """Records of a piece are deleted: raise, or report it."""
        text = (
            f"records were deleted since the replay was planned: region={self._address.region} offset={offset} "
            f"first={error.first} piece_end={end}"
        )
        if self._fails_on_loss:
            raise TruncatedError(
                f"{text}; replay into another directory, or with option failOnDataLoss=false those tables that lost "
                f"nothing",
                first=str(error.first),
            )
        on_skipped(f"{text}, left out")

    @property
    def _path(self) -> str:
        return topic_names(self._address.namespace, self._address.region)[Topic.DATA]


def _read_options(source: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in lower case. Raises ConfigError."""
    options: dict[str, str] = {}
    known = {name.lower(): name for name in _OPTIONS}
    for name, value in source.items():
        if name.lower() not in known:
            raise ConfigError(
                f"this option does not fit a region in topics, remove it; those that do: {', '.join(_OPTIONS)}: "
                f"option={name[:60]}"
            )
        key = known[name.lower()]
        options[name.lower()] = read_value(key, value, read_one_of(*_OPTIONS[key]))
    return options


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, also for a caller in an event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _known(region: str, view: RegionView, marks: Marks, tables: Sequence[int]) -> tuple[KnownTable, ...]:
    """The selected tables of a region. Raises InvalidRequestError for one that a row cannot hold."""
    found = []
    for number, meta in sorted(view.tables.items()):
        if tables and number not in tables:
            continue
        if number > NUMBER_MAX:
            raise InvalidRequestError(
                f"a replay has tables up to 2**63 - 1, select others with tables: region={region} table={number}"
            )
        mark = marks.of_table(number)
        kept = max(1, meta.latest_marked_deleted)
        first = kept if mark is None else max(1, mark + 1)
        found.append(
            KnownTable(
                region=region,
                table=number,
                first=first,
                kept=kept,
                next=meta.next_seq_num,
                end=meta.current_high_watermark,
            )
        )
    return tuple(found)


def _piece_as_map(piece: Piece) -> dict[str, Any]:
    return {**asdict(piece), "nonce": piece.nonce.hex()}


def _piece_of(fields: Mapping[str, Any]) -> Piece:
    return Piece(
        **{
            **fields,
            "nonce": bytes.fromhex(fields["nonce"]),
            "starts": tuple((table, sequence) for table, sequence in fields["starts"]),
            "seeks": tuple((table, sequence, offset) for table, sequence, offset in fields["seeks"]),
            "floors": tuple((table, offset, sequence) for table, offset, sequence in fields["floors"]),
        }
    )


def _batch(entries: Columns[RegionEntry]) -> pa.RecordBatch:
    rows = len(entries)
    tables, sequences, payloads, at = entries.columns
    offsets = pa.array(at, pa.int64())
    columns = {
        "segment": pa.array(np.zeros(rows, np.int64)),
        "entry": offsets,
        "slot": pa.array(np.zeros(rows, np.int32)),
        "txid": offsets,
        "timestamp": pa.nulls(rows, SCHEMA.field("timestamp").type),
        "table": pa.array(tables, pa.int64()),
        "sequence": pa.array(sequences, pa.int64()),
        "payload": pa.array(payloads, pa.binary()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
