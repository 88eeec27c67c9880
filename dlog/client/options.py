"""What a client may be told: bounds and patience, nothing about batching delays (there are none)."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.options import KiB, MiB, option

#: DistributedLog's limit for one record is 1 MiB - 8 KiB with its 20-byte head; a record of ours travels in a set
#: (16-byte head, 4-byte length), and the set is the record.
RECORD_BYTES_MAX = MiB - 8 * KiB - 20 - 16 - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Bounds of one client. Times in seconds unless named otherwise."""

    #: a batch is closed when the next record would take it past this, and batches that the application made go together
    #: up to this where they wait behind others; a server may ask for less
    batch_bytes_max: int = option(512 * KiB, sim=(64, 4 * KiB))
    #: batches on their way at once, per stream; the log remembers the places of so many batches of a producer
    #: (OwnerOptions.places_max), and tells them again when a batch is repeated
    inflight_batches_max: int = option(5, sim=(1, 5))
    #: batches on their way beyond which a batch that is not full waits for company
    inflight_partial_max: int = option(2, sim=(1, 3))
    #: bytes of records held per stream, sent or not, beyond which an append waits before it is taken
    buffer_bytes_max: int = option(16 * MiB, sim=(4 * KiB, MiB))
    #: from the moment an append is taken into the buffer (waiting for room comes before, and has no deadline) until it
    #: fails with RequestTimeoutError: `outcome_unknown` says if it was ever sent, the text names the last obstacle.
    #: What was sent behind it fails with it, and batches that travel as one fail with the first of them, a thirtieth of
    #: this before their time at most. Retries within it are the client's own business and are told to nobody
    append_deadline_s: float = 30.0
    #: the same for create, stat, truncate and the like
    request_deadline_s: float = 15.0
    #: how long a read goes on without anybody who serves it
    read_deadline_s: float = 60.0
    #: silence of a proxy that owes a read its records, after which it is pinged; if its answer comes before any of
    #: them, another is asked
    stall_s: float = option(10.0, sim=(0.05, 10.0))
    #: how long an orderly close waits for batches under way
    close_deadline_s: float = 10.0
    #: entry bytes a read may be ahead of its consumer
    read_credit_bytes: int = option(4 * MiB, sim=(KiB, MiB))
    connect_timeout_s: float = 2.0
    #: how long a proxy that we were sent to is waited for before its work is handed on by another one
    direct_patience_s: float = option(0.25, sim=(0.0, 0.5))
    #: how often it is looked whether such work can be taken to its proxy after all
    direct_retry_s: float = option(5.0, sim=(0.1, 5.0))
    #: longest rest of an address that cannot be reached
    direct_rest_s: float = option(60.0, sim=(0.5, 60.0))
    #: silence, with a question open, after which the server is asked whether it lives
    ping_after_s: float = 0.5
    #: silence after that question, when the connection is given up
    lost_after_s: float = 1.5
    backoff_first_s: float = 0.02
    backoff_max_s: float = 1.0
    #: retries that may be made at once, and how many more each second brings
    retry_burst: int = 50
    retries_per_s: float = 10.0
    #: frames from a server may not be longer
    frame_bytes_max: int = 64 * MiB

    def __post_init__(self) -> None:
        for name in (
            "batch_bytes_max",
            "inflight_batches_max",
            "inflight_partial_max",
            "buffer_bytes_max",
            "read_credit_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.batch_bytes_max > RECORD_BYTES_MAX:
            raise ValueError(
                f"batch_bytes_max must be at most {RECORD_BYTES_MAX} (DistributedLog's limit for a record)"
            )
