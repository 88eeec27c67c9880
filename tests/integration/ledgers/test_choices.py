"""Which bookies a ledger client chooses, by their disks and failures; and ids that its caller chooses."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from dlog.errors import InvalidRequestError
from dlog.events import BookieQuarantined
from dlog.io.ledgers import GIVEN_IDS, LedgersOptions
from dlog.ledger.disk_weights import UNKNOWN
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, LedgerKey
from dlog.model.quorum import Quorum
from tests.integration.ledgers.test_ledgers import E332, cluster, read_all


class HandClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_ms(self) -> int:
        return 1


async def test_emptier_bookies_get_more_ledgers_and_one_that_cannot_tell_is_not_left_out() -> None:
    async with cluster(6) as made:
        for number, bookie in enumerate(made.bookies.values()):
            bookie.free_bytes = (None, 1, 50, 100, 100, 10_000)[number]
        ledgers = await made.client(LedgersOptions(disk_weight_max=3.0))
        for bookie in made.bookies.values():
            await bookie.space_asked.wait()
        assert ledgers.disk_weights is not None
        while ledgers.disk_weights.weight(BookieId("bookie-5")) == UNKNOWN:  # noqa: ASYNC110 - no event tells of a round
            await asyncio.sleep(0)
        one = Quorum(ensemble=1, write=1, ack=1)
        chosen = Counter([(await ledgers.create(one)).metadata.fragments[0].ensemble[0] for _ in range(200)])
        assert chosen[BookieId("bookie-5")] > chosen[BookieId("bookie-3")] > chosen[BookieId("bookie-2")]
        assert chosen[BookieId("bookie-0")] > chosen[BookieId("bookie-1")]
        new = await made.add("bookie-6")
        await new.space_asked.wait()


async def test_a_bookie_that_fails_again_and_again_is_avoided_by_new_ledgers_while_there_are_others() -> None:
    clock = HandClock()
    async with cluster(4) as made:
        ill = BookieId("bookie-1")
        ledgers = await made.client(LedgersOptions(vet_s=0.01), clock)
        made.bookies[ill].hold = True
        while not (quarantined := [event for event in made.told if isinstance(event, BookieQuarantined)]):
            clock.now_s += 6.0
            await ledgers.create(E332)
        assert [(event.peer, event.failures) for event in quarantined] == [(ill, 3)]
        made.bookies[ill].hold = False
        made.bookies[ill].release()
        made.bookies[ill].reset()
        for _ in range(20):
            assert ill not in (await ledgers.create(E332)).metadata.fragments[0].ensemble
        assert ill in (await ledgers.create(Quorum(ensemble=4))).metadata.fragments[0].ensemble, "it is not excluded"
        clock.now_s += 601.0
        while ill not in (await ledgers.create(E332)).metadata.fragments[0].ensemble:
            pass


async def test_a_ledger_id_may_be_given_once() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332, ledger=LedgerId(GIVEN_IDS + 5))
        late = writer.append((b"one",), EntryId(1))
        assert await writer.append((b"zero",), EntryId(0)) == 0 and await late == 1
        await writer.close()
        assert await read_all(ledgers, LedgerId(GIVEN_IDS + 5)) == [b"zero", b"one"]
        with pytest.raises(InvalidRequestError, match="choose another id"):
            await ledgers.create(E332, ledger=LedgerId(GIVEN_IDS + 5))
        await made.metadata.delete(LedgerKey(LedgerId(GIVEN_IDS + 5)))
        with pytest.raises(InvalidRequestError, match="bookies hold entries"):
            await ledgers.create(E332, ledger=LedgerId(GIVEN_IDS + 5))
        for wrong in (-1, 2**63):
            with pytest.raises(InvalidRequestError, match="between 0 and"):
                await ledgers.create(E332, ledger=LedgerId(wrong))
        assert (await ledgers.create(E332)).ledger_id < 100, "the sequence of ids is as it was"


async def test_a_ledger_id_that_was_given_is_passed_over_by_the_sequence() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        first = (await ledgers.create(E332)).ledger_id
        await ledgers.create(E332, ledger=LedgerId(first + 1))
        assert (await ledgers.create(E332)).ledger_id > first + 1


async def test_the_digest_is_that_of_the_metadata_whatever_the_reader_is_set_to() -> None:
    async with cluster() as made:
        writers = await made.client(LedgersOptions(digest=DigestType.HMAC, password=b"secret"))
        readers = await made.client(LedgersOptions(digest=DigestType.CRC32, password=b"another"))
        writer = await writers.create(E332)
        await writer.append((b"zero",))
        await writer.close()
        assert await read_all(readers, writer.ledger_id) == [b"zero"]
