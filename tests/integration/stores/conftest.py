"""The real cluster the ledger store's tests run on."""

from tests.integration.cluster import bookies

__all__ = ["bookies"]
