"""Real bookies and ZooKeeper for the metadata stream in ledgers."""

from __future__ import annotations

from tests.integration.cluster import bookies

__all__ = ["bookies"]
