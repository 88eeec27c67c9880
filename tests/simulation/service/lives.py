"""Creates and deletes streams under one name and checks each answer that the only administrator of the name receives.

Invariants:
- The client is used through its public interface, one call after the other, so the expected state is known after each
  answer.
- A breach of D1 is noted here and reported at the end (checks.py).
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from dlog.client.client import Client
from dlog.errors import DLogError, StreamExistsError, StreamNotFoundError
from dlog.model.dlsn import DLSN
from tests.simulation.service.workload import Work

STEPS_MAX = 4  # between a creation and a deletion


class Administrator:
    """The only administrator of one stream name. breaches: descriptions of each breach of D1."""

    def __init__(self, work: Work, client: Client, name: str, settings: dict[str, Any], rng: random.Random) -> None:
        self.breaches: list[str] = []
        self._work = work
        self._client = client
        self._name = name
        self._settings = settings
        self._rng = rng
        self._is_gone = False  # its deletion was answered, and no stream was created since
        self._incarnation = ""  # id of the incarnation that exists; "": not known
        self._is_sealed = False  # a seal was requested
        self._place: DLSN | None = None  # position of its last record

    async def run(self) -> None:
        """Create, use and delete the stream, again and again until the trial is over."""
        while not self._work.is_over():
            await self._pause()
            if not await self._create():
                continue
            for _ in range(self._rng.randint(1, STEPS_MAX)):
                if self._work.is_over():
                    return
                await self._pause()
                await self._use()
                await self._look()
            await self._read()
            await self._delete()

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.expovariate(1.0) * self._work.pace_s)

    async def _create(self) -> bool:
        try:
            await self._client.create(self._name, **self._settings)
        except StreamExistsError:
            if self._is_gone:
                self._breach("it is there after its deletion was answered")
        except DLogError:
            self._is_gone = False  # the creation may still happen
            return False
        self._is_gone, self._incarnation, self._is_sealed, self._place = False, "", False, None
        await self._look()
        self._work.reached["lives.made"] += 1
        return True

    async def _use(self) -> None:
        try:
            match self._rng.randrange(6):
                case 0:
                    self._is_sealed = True
                    await self._client.seal(self._name)
                case 1 if self._place is not None:
                    await self._client.truncate(self._name, self._place)
                case 2:
                    await self._client.hand_over(self._name)
                case _:
                    self._place = await self._client.append(self._name, self._incarnation.encode())
        except DLogError:
            self._work.reached["lives.failed"] += 1

    async def _look(self) -> None:
        """Check that the stream exists, is the same incarnation, and is not sealed unless that was requested."""
        try:
            told = await self._client.stat(self._name)
        except StreamNotFoundError:
            self._breach("it is gone, and nobody deleted it")
            return
        except DLogError:
            return
        if self._incarnation and told.incarnation != self._incarnation:
            self._breach(f"another stream has its name: {self._incarnation} became {told.incarnation}")
        if told.is_sealed and not self._is_sealed:
            self._breach("it is sealed, and nobody asked for it")
        self._incarnation = told.incarnation

    async def _read(self) -> None:
        """Check that its records were written to this incarnation, as far as that is known."""
        try:
            async for record in self._client.read(self._name):
                if record.payload not in (b"", self._incarnation.encode()):
                    self._breach(
                        f"a record of an earlier stream is in it: {record.payload!r} is not {self._incarnation}"
                    )
        except DLogError:
            self._work.reached["lives.failed"] += 1

    async def _delete(self) -> None:
        is_certain = True
        while not self._work.is_over():
            try:
                await self._client.delete(self._name)
            except StreamNotFoundError:
                if is_certain:
                    self._breach("it is gone before it was deleted")
            except DLogError:
                is_certain = False
                continue
            self._is_gone = True
            self._work.reached["lives.deleted"] += 1
            await self._miss()
            return

    async def _miss(self) -> None:
        """Check that the stream is gone and stays so."""
        for _ in range(4):
            await asyncio.sleep(self._rng.expovariate(1.0) * 0.5)  # as long as a frozen request may take
            try:
                incarnation = await self._client.incarnation(self._name)
            except DLogError:
                continue
            self._breach(
                f"it is there after its deletion was answered: {self._incarnation} was deleted, {incarnation} is there"
            )
            return

    def _breach(self, text: str) -> None:
        self.breaches.append(f"{self._name} at {self._work.loop.now_s:.3f}: {text}")
