"""Registry of actors: at most one running actor per name; idle ones are retired.

Invariants:
- a name is free again only when its former actor has ended, so two of one name never run at once;
- an actor that is held is not retired for idleness;
- retiring stops the actor by message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from actors.runtime import Resident
from actors.supervisor import OneTimeEvent, Supervisor
from dlog.errors import OverCapacityError
from dlog.io.clock import SYSTEM_CLOCK, Clock

R = TypeVar("R", bound=Resident)


class Registry(Generic[R]):
    """Actors by name, made on first use by `build(name)` and kept running by the supervisor.

    idle_s: an actor not held for so long is retired. count_max: most actors at once.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        build: Callable[[str], R],
        *,
        idle_s: float,
        count_max: int = 100_000,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._supervisor = supervisor
        self._build = build
        self._idle_s = idle_s
        self._count_max = count_max
        self._clock = clock
        self._tenants: dict[str, _RegisteredActor[R]] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def names(self) -> list[str]:
        """Names of running actors and of some that just ended."""
        return list(self._tenants)

    def living(self, name: str) -> R | None:
        """The actor of that name if one runs and is not retiring; does not count as use."""
        tenant = self._tenants.get(name)
        return tenant.resident if tenant is not None and tenant.is_open else None

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[R]:
        """The actor of that name, started if none runs, not retired as idle while held.

        Waits until a retiring predecessor has ended. Raises OverCapacityError at `count_max`.
        """
        tenant = await self._settle(name)
        tenant.holders += 1
        try:
            yield tenant.resident
        finally:
            tenant.holders -= 1
            tenant.used_s = self._clock.monotonic_s()

    def retire(self, name: str) -> None:
        """Stop the actor of that name, held or not."""
        tenant = self._tenants.get(name)
        if tenant is not None and tenant.is_open:
            tenant.retiring = True
            self._supervisor.stop(tenant.resident.name)

    def retire_idle(self) -> list[str]:
        """Retire actors not held for `idle_s`; return their names."""
        now_s = self._clock.monotonic_s()
        idle = [n for n, t in self._tenants.items() if t.is_open and not t.holders and now_s - t.used_s >= self._idle_s]
        for name in idle:
            self.retire(name)
        self._forget_ended()
        return idle

    async def run(self) -> None:
        """Retire idle actors every idle_s / 4, until cancelled."""
        while True:
            await asyncio.sleep(max(self._idle_s / 4, 0.1))
            self.retire_idle()

    async def _settle(self, name: str) -> _RegisteredActor[R]:
        while (tenant := self._tenants.get(name)) is not None:
            if tenant.is_open:
                return tenant
            await tenant.ended.wait()
            if self._tenants.get(name) is tenant:
                del self._tenants[name]
        if len(self._tenants) >= self._count_max:
            self._forget_ended()
        if len(self._tenants) >= self._count_max:
            raise OverCapacityError(
                f"too many actors run in this process, try again later: count_max={self._count_max}"
            )
        resident = self._build(name)
        tenant = _RegisteredActor(resident, self._supervisor.start(resident), self._clock.monotonic_s())
        self._tenants[name] = tenant
        return tenant

    def _forget_ended(self) -> None:
        for name in [name for name, tenant in self._tenants.items() if tenant.ended.is_set()]:
            del self._tenants[name]


class _RegisteredActor(Generic[R]):
    def __init__(self, resident: R, ended: OneTimeEvent, used_s: float) -> None:
        self.resident = resident
        self.ended = ended
        self.used_s = used_s
        self.holders = 0
        self.retiring = False

    @property
    def is_open(self) -> bool:
        return not self.retiring and not self.ended.is_set()
