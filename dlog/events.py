"""Things worth telling an operator, a test or a metric, as types.

`name` is `subject.past`, as it stands in the log; fields come in the order stream, segment, ledger, entry, peer, then
specifics. Levels: info = a state changed; warning = degraded and mending itself; error = a person is needed. Nothing
here happens once per record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Event:
    """Root; subclasses set `name` and `level`."""

    name: ClassVar[str] = "event"
    level: ClassVar[str] = "info"


@dataclass(frozen=True, slots=True)
class LedgerOpened(Event):
    name: ClassVar[str] = "ledger.opened"
    ledger: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerIdInUse(Event):
    """Bookies hold entries under an id that ZooKeeper gave out just now: it was restored from a backup. Another id is
    drawn; docs/restore.md says how to find the ledgers that the backup does not know."""

    name: ClassVar[str] = "ledger.id_in_use"
    level: ClassVar[str] = "warning"
    ledger: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerFenced(Event):
    name: ClassVar[str] = "ledger.fenced"
    level: ClassVar[str] = "warning"
    ledger: int
    peer: str


@dataclass(frozen=True, slots=True)
class LedgerClosed(Event):
    name: ClassVar[str] = "ledger.closed"
    ledger: int
    entry: int
    length: int


@dataclass(frozen=True, slots=True)
class LedgerRecoveryStarted(Event):
    """The ledger is marked in recovery; its last ensemble is being fenced."""

    name: ClassVar[str] = "ledger.recovery_started"
    ledger: int
    ensemble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerRecoveryFenced(Event):
    """No writer can reach an ack quorum any more; entries are sought from `entry` + 1 on."""

    name: ClassVar[str] = "ledger.recovery_fenced"
    ledger: int
    entry: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerRecovered(Event):
    name: ClassVar[str] = "ledger.recovered"
    ledger: int
    entry: int
    readded: int


@dataclass(frozen=True, slots=True)
class EnsembleChanged(Event):
    name: ClassVar[str] = "ensemble.changed"
    level: ClassVar[str] = "warning"
    ledger: int
    entry: int
    replaced: tuple[tuple[str, str], ...]  # (old, new)


@dataclass(frozen=True, slots=True)
class BookieLost(Event):
    name: ClassVar[str] = "bookie.lost"
    level: ClassVar[str] = "warning"
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class StreamOwned(Event):
    name: ClassVar[str] = "stream.owned"
    stream: str
    epoch: int
    previous: str


@dataclass(frozen=True, slots=True)
class StreamReady(Event):
    """The owner has recovered and serves."""

    name: ClassVar[str] = "stream.ready"
    stream: str
    epoch: int
    segment: int
    recovered: int  # segments


@dataclass(frozen=True, slots=True)
class StreamStalled(Event):
    """The owner cannot open a segment: its store has too few members. It tries on; writes are refused meanwhile."""

    name: ClassVar[str] = "stream.stalled"
    level: ClassVar[str] = "error"
    stream: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    name: ClassVar[str] = "lease.lost"
    level: ClassVar[str] = "warning"
    stream: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataLost(Event):
    """This process is out of contact with ZooKeeper; what it owns or stores it goes on serving."""

    name: ClassVar[str] = "metadata.lost"
    level: ClassVar[str] = "warning"


@dataclass(frozen=True, slots=True)
class MetadataRegained(Event):
    """This process is in contact with ZooKeeper again. session_ended: under a new session, so it registered anew."""

    name: ClassVar[str] = "metadata.regained"
    away_s: float
    session_ended: bool


@dataclass(frozen=True, slots=True)
class MetadataWentBack(Event):
    """A stream's metadata is older than what this process has seen of it; told once, and nothing is served from it."""

    name: ClassVar[str] = "metadata.went_back"
    level: ClassVar[str] = "error"
    stream: str
    epoch: int
    epoch_seen: int
    version: int
    version_seen: int


@dataclass(frozen=True, slots=True)
class StreamReleased(Event):
    name: ClassVar[str] = "stream.released"
    stream: str
    epoch: int


@dataclass(frozen=True, slots=True)
class StreamSealed(Event):
    name: ClassVar[str] = "stream.sealed"
    stream: str
    segment: int


@dataclass(frozen=True, slots=True)
class SegmentStarted(Event):
    name: ClassVar[str] = "segment.started"
    stream: str
    segment: int
    place: str


@dataclass(frozen=True, slots=True)
class SegmentCompleted(Event):
    name: ClassVar[str] = "segment.completed"
    stream: str
    segment: int
    entry: int
    records: int


@dataclass(frozen=True, slots=True)
class SegmentDeleted(Event):
    name: ClassVar[str] = "segment.deleted"
    stream: str
    segment: int
    place: str


@dataclass(frozen=True, slots=True)
class ChangeRefused(Event):
    """Metadata refuses a change that a stream's owner makes on its own account, and always will. Records are safe; what
    the change is for (deleting what is truncated, retention) does not happen until the stream has another owner."""

    name: ClassVar[str] = "change.refused"
    level: ClassVar[str] = "warning"
    stream: str
    change: str
    reason: str


@dataclass(frozen=True, slots=True)
class RetentionHeld(Event):
    """Nothing expires from the stream now: the clocks that say how old its segments are cannot all be right. Told
    when one of them would have had a segment deleted."""

    name: ClassVar[str] = "retention.held"
    level: ClassVar[str] = "warning"
    stream: str
    proxy_unix_ms: int
    metadata_unix_ms: int


@dataclass(frozen=True, slots=True)
class LacMoved(Event):
    """Published to tails, never logged. entries: the last of those that it confirms, up to `lac`, each as the parts
    that were appended; none where a recovery found the LAC."""

    name: ClassVar[str] = "lac.moved"
    level: ClassVar[str] = "debug"
    stream: str
    segment: int
    lac: int
    ended: bool = False
    entries: tuple[tuple[Buffer, ...], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ProcessConfigured(Event):
    """Everything a process was told, printed whole at its start; secrets are masked."""

    name: ClassVar[str] = "process.configured"
    role: str
    sources: tuple[str, ...]  # in rising precedence
    options: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class VariablesIgnored(Event):
    """Variables `DLOG_*` of the environment that no process reads: Kubernetes sets them for a service that is called
    `dlog-...`, or their name is misspelt."""

    name: ClassVar[str] = "process.variables_ignored"
    level: ClassVar[str] = "warning"
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessStopping(Event):
    """A signal asked for the end; the process drains."""

    name: ClassVar[str] = "process.stopping"
    signal: str


@dataclass(frozen=True, slots=True)
class LoopStalled(Event):
    """Something kept the event loop from running."""

    name: ClassVar[str] = "loop.stalled"
    level: ClassVar[str] = "warning"
    stall_ms: float


@dataclass(frozen=True, slots=True)
class ActorFailed(Event):
    """An actor died of an error; it is started again after `restart_s`."""

    name: ClassVar[str] = "actor.failed"
    level: ClassVar[str] = "error"
    actor: str
    error: str
    restart_s: float


@dataclass(frozen=True, slots=True)
class WorkFailed(Event):
    """What was done for one stream, reader or connection ended with an unexpected error; nothing else did."""

    name: ClassVar[str] = "work.failed"
    level: ClassVar[str] = "error"
    work: str
    error: str


@dataclass(frozen=True, slots=True)
class ProxySuspected(Event):
    """A write proxy does not answer: its streams may be claimed."""

    name: ClassVar[str] = "proxy.suspected"
    level: ClassVar[str] = "warning"
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProxyTrusted(Event):
    """A suspected write proxy answers again."""

    name: ClassVar[str] = "proxy.trusted"
    peer: str


@dataclass(frozen=True, slots=True)
class ConnectionOpened(Event):
    """Somebody said hello to a proxy. via: who connected, if a balancer said that it does so for `peer`."""

    name: ClassVar[str] = "connection.opened"
    level: ClassVar[str] = "debug"
    peer: str
    via: str
    role: str
    who: str
    hops: int


@dataclass(frozen=True, slots=True)
class ConnectionRefused(Event):
    """A connection was not let in: because of how it began, or because there are too many."""

    name: ClassVar[str] = "connection.refused"
    peer: str
    via: str
    reason: str


@dataclass(frozen=True, slots=True)
class ProxyDraining(Event):
    name: ClassVar[str] = "proxy.draining"
    streams: int


@dataclass(frozen=True, slots=True)
class ProxyDrained(Event):
    """Everything owned was handed over, or the time for it was up (`left` streams are claimed by others then)."""

    name: ClassVar[str] = "proxy.drained"
    handed_over: int
    left: int


@dataclass(frozen=True, slots=True)
class SegmentLeftBehind(Event):
    """A stream is deleted, and one of its segments could not be. That is tried again within minutes, unless the segment
    is damaged or the deletion was forced: then its data stay, and no stream names them."""

    name: ClassVar[str] = "segment.left_behind"
    level: ClassVar[str] = "warning"
    stream: str
    segment: int
    place: str
    reason: str


@dataclass(frozen=True, slots=True)
class LedgerHandleFailed(Event):
    """A machine of the ledger client broke an invariant: its handle is dead, its story is in `error`."""

    name: ClassVar[str] = "ledger.handle_failed"
    level: ClassVar[str] = "error"
    ledger: int
    handle: str
    error: str
