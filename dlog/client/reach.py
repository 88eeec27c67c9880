"""Which proxies this client can reach itself, as far as it knows.

A client behind a balancer is told addresses of proxies that it may not be able to connect to. The law of this file: an
address is tried when nothing is known against it; one that failed is left alone for a while that doubles with every
failure, and what it would have answered is asked through a proxy that can be reached. Pure: times are given.
"""

from __future__ import annotations

FIRST_S = 1.0
ADDRESSES_MAX = 10_000  # remembered; beyond it the ones that failed longest ago are forgotten


class Reach:
    """rest_max_s: the longest time between two tries of an address that fails."""

    def __init__(self, rest_max_s: float) -> None:
        self._rest_max_s = rest_max_s
        self._failures: dict[str, tuple[int, float]] = {}  # address -> failures in a row, when to try again

    def failed(self, address: str, now_s: float) -> None:
        """A try to connect there failed, or took longer than anybody waits."""
        failures = self._failures.pop(address, (0, 0.0))[0] + 1
        rest_s = min(self._rest_max_s, FIRST_S * 2.0 ** min(failures - 1, 30))
        self._failures[address] = (failures, now_s + rest_s)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

    def reached(self, address: str) -> None:
        """A connection was made."""
        self._failures.pop(address, None)

    def may_try(self, address: str, now_s: float) -> bool:
        """Whether there is hope that a try would succeed."""
        found = self._failures.get(address)
        return found is None or now_s >= found[1]
