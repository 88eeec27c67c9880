"""What the store on regions needs of a process: machines that run, topics, and the namespace of its topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from dlog.errors import ConfigError
from dlog.machine import Machine


class NoSegmentsYetError(ConfigError):
    """No process of this cluster has created a segment in topics yet."""


class RegionActor(Protocol):
    """A machine of dlog/region that runs on the topics of its region (dlog/io/region_topics.py)."""

    @property
    def ended(self) -> bool:
        """Whether it has ended: requests raise ClosedError."""
        ...

    def submit(self, request: Any, sink: Callable[[Any], None]) -> None:
        """Ask the machine; `sink` gets the result or a DLogError, in a later turn. Raises ClosedError."""
        ...

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """`submit` with a future. Cancelling it stops the wait only. Raises ClosedError."""
        ...

    def stop(self) -> None:
        """Refuse further requests, and end."""
        ...

    async def wait_ended(self) -> None: ...


StartActor = Callable[[str, str, Machine], RegionActor]  # namespace, region, machine


class WrongTopicsError(ConfigError):
    """The topics at this address are not those with this cluster's segments."""


class FindNamespace(Protocol):
    """Finds the namespace of the topics with this cluster's segments."""

    async def __call__(self, *, creates: bool) -> str:
        """creates: record one if there is none. Raises WrongTopicsError, NoSegmentsYetError, UnavailableError,
        MetadataUnavailableError."""
        ...
