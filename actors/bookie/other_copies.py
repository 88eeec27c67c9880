"""How a bookie looks at the copies on other bookies: a ledger client of its own, and the locks of repairs.

Its summaries come by v2, which alone has them; connections and patience are those of the auditor's comparison.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, resolver
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication
from dlog.ledger.comparing import Compared
from dlog.ledger.ledger_options import LedgerOptions
from dlog.model.ids import BookieId, LedgerId

_COMPARE_TIMEOUT_S = 30.0  # for a summary: a bookie may have to seek for each of 512 entries


@dataclass(frozen=True, slots=True)
class ClusterCopies:
    """The copies of a cluster. See OtherCopies (actors/bookie/moved_copies.py)."""

    marks: ZooKeeperUnderreplication
    ledgers: Ledgers

    async def lock(self, ledger: LedgerId) -> bool:
        """See OtherCopies."""
        return await self.marks.hold(ledger)

    async def unlock(self, ledger: LedgerId) -> None:
        """See OtherCopies."""
        await self.marks.release(ledger)

    async def compare(self, ledger: LedgerId) -> Compared:
        """See OtherCopies."""
        return await self.ledgers.compare(ledger)


@contextlib.asynccontextmanager
async def cluster_copies(
    metadata: ZooKeeperMetadata, bookie: BookieId, section: LedgerOptions, rng: random.Random
) -> AsyncIterator[ClusterCopies]:
    """section: [ledger], for the TLS of connections to bookies."""
    slow = replace(BookieClientOptions(request_timeout_s=_COMPARE_TIMEOUT_S).configured(section), protocol="v2")
    async with (
        BookieClient(resolver(metadata), rng=rng, options=slow) as bookies,
        Ledgers(metadata, bookies, rng=rng) as ledgers,
    ):
        yield ClusterCopies(metadata.underreplication(bookie), ledgers)
