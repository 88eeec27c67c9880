"""The real clusters the ledger client's tests run on."""

from tests.integration.cluster import bookies, own_bookies

__all__ = ["bookies", "own_bookies"]
