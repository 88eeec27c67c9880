"""dlog's metadata of streams in objects by themselves: `dlog-metadata`. There are no servers and no logs.

Each subject is measured by a program of its own, in a process of its own: loadtest/object_search.py, object_image.py,
chain_recovery.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from loadtest.programs import figures_of
from loadtest.spec import Shape
from loadtest.systems.base import FEATURES, Durability, NotApplicable, System
from loadtest.systems.nodes import known_options

PROGRAMS = {"search": "loadtest.object_search", "image": "loadtest.object_image", "chain": "loadtest.chain_recovery"}


class DlogMetadata(System):
    """A process for each measurement."""

    name = "dlog-metadata"
    start_s = 0.0
    durability = Durability("P", "nothing is acknowledged: only memory is measured")

    def lacks(self, feature: str) -> str | None:
        return "it has no logs" if feature in FEATURES else None

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        known_options(self.variant, options, ())

    async def stop(self) -> None:
        """Does nothing."""

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {}

    def versions(self) -> Mapping[str, str]:
        return {"dlog": metadata.version("dlogd"), "python": sys.version.split()[0]}

    def configuration(self) -> Mapping[str, Any]:
        return {}

    async def create(self, log: str) -> None:
        raise NotApplicable("it has no logs")

    def address(self) -> dict[str, Any]:
        raise NotApplicable("it has no logs")

    async def examine(self, shape: Shape) -> Mapping[str, Any]:
        program = PROGRAMS.get(shape.subject)
        if program is None:
            return await super().examine(shape)
        return await figures_of(program, "--json", str(shape.objects))
