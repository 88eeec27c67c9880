"""Remembers which proxy addresses the client failed to connect to, and when to try them again.

A client behind a load balancer learns addresses of proxies that it may not be able to reach. Pure: times are arguments.

Invariants:
- an address without a failure may be tried at once;
- after a failure it is not tried for a pause that doubles with every failure in a row (requests are forwarded by a
  reachable proxy meanwhile).
"""

from __future__ import annotations

FIRST_S = 1.0
ADDRESSES_MAX = 10_000  # remembered at most; beyond it those that failed longest ago are forgotten


class AddressBackoff:
    """Failures by address. rest_max_s: longest pause between two attempts."""

    def __init__(self, rest_max_s: float) -> None:
        self._rest_max_s = rest_max_s
        self._failures: dict[str, tuple[int, float]] = {}  # address -> failures in a row, time of next attempt

    def failed(self, address: str, now_s: float) -> None:
        """An attempt to connect failed or timed out."""
        failures = self._failures.pop(address, (0, 0.0))[0] + 1
        rest_s = min(self._rest_max_s, FIRST_S * 2.0 ** min(failures - 1, 30))
        self._failures[address] = (failures, now_s + rest_s)
        if len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

    def reached(self, address: str) -> None:
        """A connection was made."""
        self._failures.pop(address, None)

    def may_try(self, address: str, now_s: float) -> bool:
        """Whether no pause is running for the address."""
        found = self._failures.get(address)
        return found is None or now_s >= found[1]
