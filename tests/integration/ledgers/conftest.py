"""The real clusters the ledger client's tests run on, and the loops: the service's own and the library's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.integration.cluster import bookies, own_bookies

__all__ = ["bookies", "own_bookies"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Sockets behave differently on the two; tests with real bookies run on the service's loop only."""
    if item.path.name == "test_faults.py":
        return {"uvloop": uvloop.new_event_loop}
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
