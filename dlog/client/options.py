"""Options of a client: bounds and timeouts. There are no batching delays to configure."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.model.location import check_location_name
from dlog.model.window import WINDOW_MAX
from dlog.options import KiB, MiB, option

#: largest payload of a record. DistributedLog's limit for one record is 1 MiB - 8 KiB, its 20-byte header included;
#: here that record is a record set (16-byte header), in which each payload has a 4-byte length.
RECORD_BYTES_MAX = MiB - 8 * KiB - 20 - 16 - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of one client. Times are in seconds, sizes in bytes."""

    #: largest batch. A batch is closed when the next record would exceed this; batches made by the application that
    #: wait behind others are joined up to this size. A server may require less
    batch_bytes_max: int = option(512 * KiB, sim=(64, 4 * KiB))
    #: most unanswered batches per stream. The stream's owner allows 5 to 64 of them, more where an append takes longer;
    #: this may be less. While half of them are unanswered, a batch that is not full waits for more records
    inflight_batches_max: int = option(WINDOW_MAX, sim=(1, 5))
    #: bytes of unacknowledged records per stream; beyond it an append waits before it is accepted
    buffer_bytes_max: int = option(16 * MiB, sim=(4 * KiB, MiB))
    #: time from accepting an append into the buffer until it fails with RequestTimeoutError, whose `outcome_unknown`
    #: says if it may have been sent, and whose text names the last obstacle. Waiting for room in the buffer is not
    #: counted and has no deadline. Batches sent after the expired one fail with it. Batches sent together share the
    #: earliest deadline, which is at most 1/30 of this early. Retries within the deadline are not reported
    append_deadline_s: float = 30.0
    #: the same for all other requests: create, stat, truncate and so on
    request_deadline_s: float = 15.0
    #: a read fails with RequestTimeoutError when no proxy has served it for this long
    read_deadline_s: float = 60.0
    #: a proxy that sends a read no record for this long, though it is not at the tail, is pinged; if it answers the
    #: ping without sending a record, the read moves to another proxy
    stall_s: float = option(10.0, sim=(0.05, 10.0))
    #: how long an orderly close waits for pending batches
    close_deadline_s: float = 10.0
    #: read-ahead: entry bytes that a proxy may send before the application consumes them, per read
    read_credit_bytes: int = option(4 * MiB, sim=(KiB, MiB))
    #: time to connect to one address, handshake included
    connect_timeout_s: float = 2.0
    #: how long to wait for a direct connection to a proxy named by a redirect, before its requests are forwarded by
    #: another proxy
    direct_patience_s: float = option(0.25, sim=(0.0, 0.5))
    #: how often to check whether forwarded work can move to a direct connection
    direct_retry_s: float = option(5.0, sim=(0.1, 5.0))
    #: longest pause between attempts to connect to an unreachable address
    direct_rest_s: float = option(60.0, sim=(0.5, 60.0))
    #: a server that is silent for this long while a request is unanswered is pinged
    ping_after_s: float = 0.5
    #: the connection is closed when this time passes after the ping without a byte from the server
    lost_after_s: float = 1.5
    #: delay before the second retry in a row; it doubles with each further one. The first retry is immediate
    backoff_first_s: float = 0.02
    #: longest delay between retries
    backoff_max_s: float = 1.0
    #: retry budget of the client: retries that may be made at once
    retry_burst: int = 50
    #: retry budget of the client: retries added per second
    retries_per_s: float = 10.0
    #: region that the client stands in, as proxies name theirs: streams without an owner are written, and all are read,
    #: through proxies of this region, if there are any. Empty: the value of DLOG_REGION, if it is set
    region: str = ""
    #: largest frame accepted from a server
    frame_bytes_max: int = 64 * MiB

    def __post_init__(self) -> None:
        for name in (
            "batch_bytes_max",
            "inflight_batches_max",
            "buffer_bytes_max",
            "read_credit_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.region:
            check_location_name("region", self.region)
        if self.batch_bytes_max > RECORD_BYTES_MAX:
            raise ValueError(
                f"batch_bytes_max must be at most {RECORD_BYTES_MAX} (DistributedLog's limit for a record)"
            )
