"""The events that are logged, counted as metrics and compared in tests, as types.

`name` is `subject.past`, as in the log; fields are ordered stream, segment, ledger, entry, peer, then specifics.
Levels: info = a state changed; warning = degraded, recovers without help; error = an operator must act.

Invariants:
- no event happens once per record.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from dlog.values import value

Buffer = bytes | bytearray | memoryview


@value
class Event:
    """Base class of events. `name` and `level` are those of its class; the fields of each are in dlog/events.py."""

    name: ClassVar[str] = "event"
    level: ClassVar[str] = "info"


@value
class LedgerOpened(Event):
    """This process created a ledger and writes it."""

    name: ClassVar[str] = "ledger.opened"
    ledger: int
    ensemble: tuple[str, ...]


@value
class LedgerIdInUse(Event):
    """Bookies hold entries under an id that ZooKeeper has just assigned: ZooKeeper was restored from a backup. Another
    id is used; docs/restore.md says how to find the ledgers missing from the backup.
    """

    name: ClassVar[str] = "ledger.id_in_use"
    level: ClassVar[str] = "warning"
    ledger: int
    bookies: tuple[str, ...]


@value
class LedgerFenced(Event):
    """A ledger that this process writes was fenced by another process; no further add is confirmed. peer: the bookie
    that refused an add, or the metadata store."""

    name: ClassVar[str] = "ledger.fenced"
    level: ClassVar[str] = "warning"
    ledger: int
    peer: str


@value
class LedgerClosed(Event):
    """The writer closed its ledger. entry: the last one, -1 if there is none. length: bytes of payload."""

    name: ClassVar[str] = "ledger.closed"
    ledger: int
    entry: int
    length: int


@value
class LedgerRecoveryStarted(Event):
    """The ledger's metadata is IN_RECOVERY; its last ensemble is being fenced."""

    name: ClassVar[str] = "ledger.recovery_started"
    ledger: int
    ensemble: tuple[str, ...]


@value
class LedgerRecoveryFenced(Event):
    """No writer can reach an ack quorum any more; the search for entries begins at `entry` + 1."""

    name: ClassVar[str] = "ledger.recovery_fenced"
    ledger: int
    entry: int
    bookies: tuple[str, ...]


@value
class LedgerRecovered(Event):
    """A ledger was recovered and is closed. entry: the last one. readded: entries that were written back."""

    name: ClassVar[str] = "ledger.recovered"
    ledger: int
    entry: int
    readded: int


@value
class LedgerRepaired(Event):
    """Copies of a ledger's entries were made again. entries: number of copies. replaced: (old, new) bookies in
    metadata. unreadable: ranges of entries that no bookie could serve. waits: what must happen first, "": nothing."""

    name: ClassVar[str] = "ledger.repaired"
    ledger: int
    entries: int
    replaced: tuple[tuple[str, str], ...]
    unreadable: int
    waits: str


@value
class EnsembleChanged(Event):
    """A ledger goes on with other bookies, from `entry` on."""

    name: ClassVar[str] = "ensemble.changed"
    level: ClassVar[str] = "warning"
    ledger: int
    entry: int
    replaced: tuple[tuple[str, str], ...]  # (old, new)


@value
class PlacementNotKept(Event):
    """An ensemble of a ledger, from `entry` on, does not keep the ledger's placement policy: the writable bookies allow
    no better one. With a strict policy only an ensemble that did not keep it before, or one of a recovery, which else
    could not end. Emitted before metadata names the new ensemble. shortage: the policy, and what is lacking."""

    name: ClassVar[str] = "placement.not_kept"
    level: ClassVar[str] = "warning"
    ledger: int
    entry: int
    ensemble: tuple[str, ...]
    shortage: str


@value
class BookieLost(Event):
    """This process lost a bookie: its connection failed, it answered too late, or a write to it failed."""

    name: ClassVar[str] = "bookie.lost"
    level: ClassVar[str] = "warning"
    peer: str
    reason: str


@value
class BookieQuarantined(Event):
    """A bookie failed so often lately that this process avoids it for new ensembles. failures: those within SPELL_S of
    each other (dlog/ledger/quarantine.py) count as one."""

    name: ClassVar[str] = "bookie.quarantined"
    level: ClassVar[str] = "warning"
    peer: str
    failures: int
    for_s: float


@value
class StreamOwned(Event):
    """This proxy claimed the stream, and recovers it next. previous: the proxy that held the claim before."""

    name: ClassVar[str] = "stream.owned"
    stream: str
    epoch: int
    previous: str


@value
class StreamReady(Event):
    """The owner has finished recovery and serves the stream."""

    name: ClassVar[str] = "stream.ready"
    stream: str
    epoch: int
    segment: int
    recovered: int  # segments


@value
class StreamStalled(Event):
    """The owner cannot open a segment: too few writable bookies, or the store is out of reach or refuses it. It
    retries; writes are refused meanwhile."""

    name: ClassVar[str] = "stream.stalled"
    level: ClassVar[str] = "error"
    stream: str
    reason: str
    needs_bookies: bool = True


@value
class ClaimLost(Event):
    """The claim on the stream ended, for `reason`; mostly another proxy claimed it. Appends go to the next owner."""

    name: ClassVar[str] = "claim.lost"
    level: ClassVar[str] = "warning"
    stream: str
    epoch: int
    reason: str


@value
class MetadataLost(Event):
    """This process lost contact with ZooKeeper; it goes on serving the streams or ledgers it has."""

    name: ClassVar[str] = "metadata.lost"
    level: ClassVar[str] = "warning"


@value
class MetadataRegained(Event):
    """This process is in contact with ZooKeeper again. session_ended: in a new session, so it registered again."""

    name: ClassVar[str] = "metadata.regained"
    away_s: float
    session_ended: bool


@value
class MetadataWentBack(Event):
    """A stream's metadata is older than this process saw before; logged once. The process refuses the stream."""

    name: ClassVar[str] = "metadata.went_back"
    level: ClassVar[str] = "error"
    stream: str
    epoch: int
    epoch_seen: int
    version: int
    version_seen: int


@value
class ZnodeNotReadable(Event):
    """This process lacks the right to read a znode that it lists or reads with others, and does without it: a bookie or
    proxy is no member, a stream gets no upkeep, a ledger is not repaired. Logged once until it can be read."""

    name: ClassVar[str] = "znode.not_readable"
    level: ClassVar[str] = "error"
    path: str


@value
class StreamReleased(Event):
    """The owner completed its segment and gave up its claim: the next append finds another owner."""

    name: ClassVar[str] = "stream.released"
    stream: str
    epoch: int


@value
class StreamSealed(Event):
    """The stream is sealed: it accepts no appends any more. segment: its last one."""

    name: ClassVar[str] = "stream.sealed"
    stream: str
    segment: int


@value
class SegmentStarted(Event):
    """The owner appends to this segment from now on. location: its location in the store."""

    name: ClassVar[str] = "segment.started"
    stream: str
    segment: int
    location: str


@value
class SegmentCompleted(Event):
    """A segment has ended and is listed as completed. entry: its last one."""

    name: ClassVar[str] = "segment.completed"
    stream: str
    segment: int
    entry: int
    records: int


@value
class SegmentRemoved(Event):
    """A take-over found that a segment's store has removed it by its own retention, though the stream lists it. Readers
    learn that it is truncated; producers that wrote in it may be answered with an unknown outcome."""

    name: ClassVar[str] = "segment.removed"
    level: ClassVar[str] = "warning"
    stream: str
    segment: int
    location: str


@value
class SegmentDeleted(Event):
    """A truncated or expired segment was deleted from its store and from metadata."""

    name: ClassVar[str] = "segment.deleted"
    stream: str
    segment: int
    location: str


@value
class ChangeRefused(Event):
    """ZooKeeper permanently rejects a metadata change that the owner makes by itself. Records are safe; the purpose of
    the change (deleting truncated segments, retention) waits until the stream has another owner.
    """

    name: ClassVar[str] = "change.refused"
    level: ClassVar[str] = "warning"
    stream: str
    change: str
    reason: str


@value
class RetentionHeld(Event):
    """Retention of the stream is suspended, since the clocks that date its segments disagree. Emitted when one of them
    would have had a segment deleted.
    """

    name: ClassVar[str] = "retention.held"
    level: ClassVar[str] = "warning"
    stream: str
    proxy_unix_ms: int
    metadata_unix_ms: int


@value
class LacMoved(Event):
    """Published to tail readers, never logged. entries: the last of the entries confirmed by it, up to `lac`, each as
    its appended parts; empty if a recovery found the LAC.
    """

    name: ClassVar[str] = "lac.moved"
    level: ClassVar[str] = "debug"
    stream: str
    segment: int
    lac: int
    ended: bool = False
    entries: tuple[tuple[Buffer, ...], ...] = field(default=(), compare=False, repr=False)


@value
class ProcessConfigured(Event):
    """The whole configuration of a process, logged at start; secrets are masked."""

    name: ClassVar[str] = "process.configured"
    role: str
    sources: tuple[str, ...]  # lowest precedence first
    options: tuple[tuple[str, object], ...]


@value
class VariablesIgnored(Event):
    """Environment variables `DLOG_*` that match no option: misspelt, or set by Kubernetes for a service, or by Docker
    for a linked container, called `dlog-...`.
    """

    name: ClassVar[str] = "process.variables_ignored"
    level: ClassVar[str] = "warning"
    variables: tuple[str, ...]


@value
class ProcessStopping(Event):
    """A signal asked the process to stop; it is draining."""

    name: ClassVar[str] = "process.stopping"
    signal: str


@value
class LoopStalled(Event):
    """The event loop was blocked for `stall_ms`."""

    name: ClassVar[str] = "loop.stalled"
    level: ClassVar[str] = "warning"
    stall_ms: float


@value
class ActorFailed(Event):
    """An actor ended with an exception; it is restarted after `restart_s`."""

    name: ClassVar[str] = "actor.failed"
    level: ClassVar[str] = "error"
    actor: str
    error: str
    restart_s: float


@value
class WorkFailed(Event):
    """Work for one stream, reader or connection ended with an unexpected exception; nothing else was affected."""

    name: ClassVar[str] = "work.failed"
    level: ClassVar[str] = "error"
    work: str
    error: str


@value
class ProxySuspected(Event):
    """A write proxy seems to have failed: others may claim its streams."""

    name: ClassVar[str] = "proxy.suspected"
    level: ClassVar[str] = "warning"
    peer: str
    reason: str


@value
class ProxyTrusted(Event):
    """A suspected write proxy answers again."""

    name: ClassVar[str] = "proxy.trusted"
    peer: str


@value
class ConnectionOpened(Event):
    """A client opened a session with a proxy. via: the connecting balancer, if it forwards for `peer`."""

    name: ClassVar[str] = "connection.opened"
    level: ClassVar[str] = "debug"
    peer: str
    via: str
    role: str
    who: str
    hops: int


@value
class ConnectionRefused(Event):
    """A connection was refused: its first bytes were invalid, or there are too many connections."""

    name: ClassVar[str] = "connection.refused"
    peer: str
    via: str
    reason: str


@value
class ProxyDraining(Event):
    """The proxy accepts no new work and hands over its streams."""

    name: ClassVar[str] = "proxy.draining"
    streams: int


@value
class ProxyDrained(Event):
    """The proxy handed over all its streams, or time ran out: other proxies claim the `left` streams."""

    name: ClassVar[str] = "proxy.drained"
    handed_over: int
    left: int


@value
class SegmentLeftBehind(Event):
    """A segment of a deleted stream could not be deleted. It is retried within minutes, unless the segment is damaged
    or the deletion was forced: then its data stay, and no stream refers to them.
    """

    name: ClassVar[str] = "segment.left_behind"
    level: ClassVar[str] = "warning"
    stream: str
    segment: int
    location: str
    reason: str


@value
class StoreFull(Event):
    """The segment store refuses new segments and entries for want of space; segments are ended, read and deleted."""

    name: ClassVar[str] = "store.full"
    level: ClassVar[str] = "warning"
    store: str
    directory: str
    free_bytes: int


@value
class StoreHasSpace(Event):
    """The segment store, which was full, has accepted a new segment or entries."""

    name: ClassVar[str] = "store.has_space"
    store: str
    directory: str


@value
class LedgerHandleFailed(Event):
    """A state machine of the ledger client violated an invariant: its handle is dead, `error` has its last facts."""

    name: ClassVar[str] = "ledger.handle_failed"
    level: ClassVar[str] = "error"
    ledger: int
    handle: str
    error: str


@value
class RegionOpened(Event):
    """This process owns a region. epoch: of its fence. offset: that its first batch gets."""

    name: ClassVar[str] = "region.opened"
    region: int
    epoch: int
    offset: int


@value
class RegionFenced(Event):
    """This process no longer owns a region: another owner opened it, or its topic cannot be used; the error of the next
    write says which. epoch: of the fence in force."""

    name: ClassVar[str] = "region.fenced"
    level: ClassVar[str] = "warning"
    region: int
    epoch: int


@value
class RegionFailed(Event):
    """A defect ended a region in this process; `error` has the last facts of its owner. Opening it again may help."""

    name: ClassVar[str] = "region.failed"
    level: ClassVar[str] = "error"
    region: int
    error: str


@value
class RegionAppendInDoubt(Event):
    """An append to a region's topic has an unknown outcome. The region is fenced anew, which decides it."""

    name: ClassVar[str] = "region.append_in_doubt"
    level: ClassVar[str] = "warning"
    region: int
    reason: str


@value
class RegionRecordIgnored(Event):
    """A record in a topic of a region cannot be decoded and has no effect: another program wrote it."""

    name: ClassVar[str] = "region.record_ignored"
    level: ClassVar[str] = "error"
    region: int
    reason: str


@value
class RegionSnapshotFailed(Event):
    """A snapshot of a region could not be written. Opening it takes longer until the next one is."""

    name: ClassVar[str] = "region.snapshot_failed"
    level: ClassVar[str] = "warning"
    region: int
    reason: str


@value
class RegionCleaned(Event):
    """The records of a region below an offset are deleted."""

    name: ClassVar[str] = "region.cleaned"
    region: int
    offset: int


@value
class TopicsOutOfReach(Event):
    """The topics in which this proxy creates segments cannot be used: Kafka does not answer, or they are not those of
    this cluster. Streams on Kafka wait; nothing is lost."""

    name: ClassVar[str] = "topics.out_of_reach"
    level: ClassVar[str] = "warning"
    reason: str


@value
class ObjectsOutOfReach(Event):
    """The object storage in which this proxy creates segments cannot be used: it does not answer, or it does not have
    this cluster's objects. Streams there wait, those of the store `s3` only once too much is not uploaded; nothing is
    lost."""

    name: ClassVar[str] = "objects.out_of_reach"
    level: ClassVar[str] = "warning"
    reason: str


@value
class NodeNotServing(Event):
    """The default store of this proxy is `s3`, and its node does not serve: its write-ahead log or the controller
    cannot be reached. Appends to streams in objects are refused here."""

    name: ClassVar[str] = "object_node.not_serving"
    level: ClassVar[str] = "warning"
    reason: str


@value
class ObjectMetadataWentBack(Event):
    """The metadata stream of streams in objects lacks records that it had: the object storage has an object that they
    recorded. ZooKeeper was restored to an earlier state, or lost data. The controller refuses everything. records: that
    the stream has; next_object: the id that would be used next, though this one and others behind it were used."""

    name: ClassVar[str] = "object_metadata.went_back"
    level: ClassVar[str] = "error"
    key: str
    records: int
    next_object: int


@value
class ControllerOutOfReach(Event):
    """The default store of this proxy is `s3`, and no controller of streams in objects answers it. Appends are
    acknowledged; uploads, new segments and take-overs wait."""

    name: ClassVar[str] = "object_controller.out_of_reach"
    level: ClassVar[str] = "warning"
    reason: str


@value
class MergeFailed(Event):
    """The objects of a segment that has ended could not be merged into one. Nothing is lost: the segment is read as
    before. It is tried again, unless an object is damaged."""

    name: ClassVar[str] = "objects.merge_failed"
    level: ClassVar[str] = "warning"
    segment: str
    reason: str


@value
class TablePinsRegion(Event):
    """A table keeps many records of its region from being deleted: flush it and mark it, or drop it. records: of all
    tables, from its first live one on."""

    name: ClassVar[str] = "region.pinned"
    level: ClassVar[str] = "warning"
    region: int
    table: int
    records: int


@value
class ObjectControllerStarted(Event):
    """This process decides about streams in objects. records: that the metadata stream had."""

    name: ClassVar[str] = "object_controller.started"
    controller: str
    records: int


@value
class ObjectControllerEnded(Event):
    """This process lost the metadata stream of streams in objects: another one decides from here on. Uploads and new
    streams wait until that one has started; acknowledgements do not."""

    name: ClassVar[str] = "object_controller.ended"
    level: ClassVar[str] = "warning"
    controller: str
    reason: str


@value
class NodeBegun(Event):
    """A node for streams in objects serves, or another process took over the work of one that does not answer. ranges:
    of streams, closed because the node's former process had them open."""

    name: ClassVar[str] = "object_node.begun"
    node: str
    node_epoch: int
    is_failover: bool
    ranges: int


@value
class NodeEnded(Event):
    """A node for streams in objects, or the process that took over its work, acknowledges nothing more: another one
    took over, or its write-ahead log failed. It begins anew by itself."""

    name: ClassVar[str] = "object_node.ended"
    level: ClassVar[str] = "warning"
    node: str
    node_epoch: int
    reason: str


@value
class ObjectNodeOpened(Event):
    """A node for streams in objects was started (is_failover False), or another one takes over its work (True)."""

    name: ClassVar[str] = "object_node.opened"
    node: str
    node_epoch: int
    is_failover: bool


@value
class UploadsExpired(Event):
    """Objects were prepared and not committed in time; they are deleted. What a live node wrote to them is uploaded
    again. Many of them: uploads take longer than their expiry, or nodes die."""

    name: ClassVar[str] = "uploads.expired"
    level: ClassVar[str] = "warning"
    count: int


@value
class ObjectsNotDeleted(Event):
    """Objects that nothing refers to could not be deleted; it is tried again."""

    name: ClassVar[str] = "objects.not_deleted"
    level: ClassVar[str] = "warning"
    count: int
    reason: str


@value
class MetadataSnapshotWritten(Event):
    """A snapshot of the metadata of streams in objects is recorded. records: in it."""

    name: ClassVar[str] = "metadata_snapshot.written"
    records: int
    bytes: int


@value
class ObjectsUploaded(Event):
    """An upload of a node is committed."""

    name: ClassVar[str] = "object_node.uploaded"
    node: str
    objects: int
    bytes: int


@value
class MetadataSnapshotFailed(Event):
    """A snapshot of the metadata of streams in objects could not be written. A new controller or follower takes longer
    to start until the next one is. records: that the metadata has."""

    name: ClassVar[str] = "metadata_snapshot.failed"
    level: ClassVar[str] = "warning"
    records: int
    reason: str


@value
class UploadStalled(Event):
    """An object could not be written; it is tried again. unuploaded_bytes: what the node keeps in memory and in its
    write-ahead log; appends are refused when that reaches its bound."""

    name: ClassVar[str] = "object_node.upload_stalled"
    level: ClassVar[str] = "warning"
    node: str
    reason: str
    unuploaded_bytes: int


@value
class ObjectsCompacted(Event):
    """Objects of a node were replaced by others with the same entries. kind: of the plan."""

    name: ClassVar[str] = "objects.compacted"
    node: str
    kind: str
    sources: int
    objects: int
    bytes_read: int
    bytes_written: int


@value
class CompactionFailed(Event):
    """Objects of a node could not be compacted; it is tried again. Nothing is lost: reads need more requests."""

    name: ClassVar[str] = "objects.compaction_failed"
    level: ClassVar[str] = "warning"
    node: str
    reason: str
