"""A registry: at most one live resident per name; those nobody uses retire.

The law of this room: a name is free again only when its former resident has ended, so two never live at once; who
holds a resident keeps it; retirement is a stop by message like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from actors.runtime import Resident
from actors.supervisor import Ending, Supervisor
from dlog.errors import OverCapacityError
from dlog.io.clock import SYSTEM_CLOCK, Clock

R = TypeVar("R", bound=Resident)


class Registry(Generic[R]):
    """Residents by name, made on first use by `build(name)` and kept alive by the supervisor.

    idle_s: a resident that nobody holds for so long retires. count_max: how many may live at once.
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
        self._tenants: dict[str, _Tenant[R]] = {}

    def __len__(self) -> int:
        return len(self._tenants)

    def names(self) -> list[str]:
        """Of those who live, or did a moment ago."""
        return list(self._tenants)

    def living(self, name: str) -> R | None:
        """The resident of that name if one lives and is not retiring; does not count as use."""
        tenant = self._tenants.get(name)
        return tenant.resident if tenant is not None and tenant.is_open else None

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[R]:
        """The resident of that name, started if none lives, kept from retiring while held.

        Waits for a retiring predecessor to end. Raises OverCapacityError at `count_max`.
        """
        tenant = await self._settle(name)
        tenant.holders += 1
        try:
            yield tenant.resident
        finally:
            tenant.holders -= 1
            tenant.used_s = self._clock.monotonic_s()

    def retire(self, name: str) -> None:
        """Stop the resident of that name, held or not."""
        tenant = self._tenants.get(name)
        if tenant is not None and tenant.is_open:
            tenant.retiring = True
            self._supervisor.stop(tenant.resident.name)

    def retire_idle(self) -> list[str]:
        """Retire those nobody holds or used for `idle_s`; return their names."""
        now_s = self._clock.monotonic_s()
        idle = [n for n, t in self._tenants.items() if t.is_open and not t.holders and now_s - t.used_s >= self._idle_s]
        for name in idle:
            self.retire(name)
        self._forget_ended()
        return idle

    async def run(self) -> None:
        """Retire the idle ones now and then; live until cancelled."""
        while True:
            await asyncio.sleep(max(self._idle_s / 4, 0.1))
            self.retire_idle()

    async def _settle(self, name: str) -> _Tenant[R]:
        while (tenant := self._tenants.get(name)) is not None:
            if tenant.is_open:
                return tenant
            await tenant.ended.wait()
            if self._tenants.get(name) is tenant:
                del self._tenants[name]
        if len(self._tenants) >= self._count_max:
            self._forget_ended()
        if len(self._tenants) >= self._count_max:
            raise OverCapacityError(f"too many live actors: count_max={self._count_max}")
        resident = self._build(name)
        tenant = _Tenant(resident, self._supervisor.start(resident), self._clock.monotonic_s())
        self._tenants[name] = tenant
        return tenant

    def _forget_ended(self) -> None:
        for name in [name for name, tenant in self._tenants.items() if tenant.ended.is_set()]:
            del self._tenants[name]


class _Tenant(Generic[R]):
    def __init__(self, resident: R, ended: Ending, used_s: float) -> None:
        self.resident = resident
        self.ended = ended
        self.used_s = used_s
        self.holders = 0
        self.retiring = False

    @property
    def is_open(self) -> bool:
        return not self.retiring and not self.ended.is_set()
