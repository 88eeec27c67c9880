"""Messages that only BookKeeper's v3 protocol carries; those of both protocols are in dlog/wire/bookie.py.

Source: BookKeeper, BookkeeperProtocol.proto.
"""

from __future__ import annotations

from dlog.model.ids import EntryId, LedgerId
from dlog.values import value
from dlog.wire.bookie import (
    AddEntry,
    Auth,
    AuthDone,
    Code,
    EntryAdded,
    EntryRead,
    ReadEntry,
)
from dlog.wire.framing import Buffer


@value
class ReadWithLac:
    """Read one entry and the LAC that the bookie knows; entry -1: the last one that the bookie has.

    previous_lac: if timeout_ms > 0 and the known LAC is not above it, wait that long for a higher one (long poll).
    piggyback: then read entry previous_lac + 1; needs entry -1 and previous_lac.
    """

    ledger: LedgerId
    entry: EntryId
    previous_lac: EntryId | None = None
    timeout_ms: int = 0
    piggyback: bool = False


@value
class WriteLac:
    """Store an explicit LAC. `packet`: ledger, LAC, digest, as the writer made it."""

    ledger: LedgerId
    lac: EntryId
    master_key: bytes
    packet: bytes


@value
class ReadLac:
    """Read the explicit LAC and the last entry."""

    ledger: LedgerId


@value
class ForceLedger:
    """Answer when everything that was acknowledged in this ledger is durable.

    number: of its sender, which the connection copies to the response; not sent.
    """

    ledger: LedgerId
    number: int = 0


@value
class ListEntries:
    """List the ids of a ledger's entries on this bookie."""

    ledger: LedgerId


@value
class GetSpace:
    """Disk space of the bookie. total, free: whether the answer names it."""

    total: bool = True
    free: bool = True


@value
class StartTls:
    """Make the connection a TLS one. The connection handles it; no state machine gets it."""


@value
class ReadWithLacDone:
    """Response to ReadWithLac. If OK, `packet` is None when the bookie does not have the entry; `entry` is then -1.

    lac: known LAC of the ledger. waited: whether it is the end of a long poll.
    """

    ledger: LedgerId
    entry: EntryId
    code: Code
    packet: Buffer | None = None
    lac: EntryId = EntryId(-1)
    waited: bool = False


@value
class LacWritten:
    """Response to WriteLac: OK once it is durable."""

    ledger: LedgerId
    code: Code


@value
class LacRead:
    """Response to ReadLac. lac_packet, last_packet: empty if there is none."""

    ledger: LedgerId
    code: Code
    lac_packet: Buffer = b""
    last_packet: Buffer = b""


@value
class LedgerForced:
    """Response to ForceLedger. number: of the request."""

    ledger: LedgerId
    code: Code
    number: int = 0


@value
class EntriesListed:
    """Response to ListEntries. listed: see dlog/wire/bookie_availability.py."""

    ledger: LedgerId
    code: Code
    listed: Buffer = b""


@value
class SpaceReply:
    """Response to GetSpace: bytes of all ledger directories; None: not requested."""

    code: Code
    total_bytes: int | None = None
    free_bytes: int | None = None


@value
class TlsStarted:
    """Response to StartTls, in plain text. If OK, the TLS handshake follows; the sender of StartTls is its client."""

    code: Code


V3Message = AddEntry | ReadEntry | ReadWithLac | WriteLac | ReadLac | ForceLedger | ListEntries | GetSpace | Auth
V3Response = (
    EntryAdded
    | EntryRead
    | ReadWithLacDone
    | LacWritten
    | LacRead
    | LedgerForced
    | EntriesListed
    | SpaceReply
    | AuthDone
    | TlsStarted
)
