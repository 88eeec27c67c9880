"""Configuration of the process that repairs ledgers, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.errors import InvalidRequestError
from dlog.model.ids import bookie_id
from dlog.options import check_positive, option, port_number


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """Section [recovery]. Times in seconds."""

    zookeeper: str = option(
        "127.0.0.1:2181", "addresses of ZooKeeper, host:port separated by commas, and a path if the cluster has one"
    )
    namespace: str = option("/dlog", "path in ZooKeeper below which the streams are")
    host: str = option("127.0.0.1", "address to listen on, if there is an http_port")
    http_port: int = option(0, "port of /metrics, /live and /ready; 0: none")
    id: str = option("", "name of the process in votes and locks; empty: host name and process id")

    lost_after_s: float = option(
        10.0,
        "time without a registration after which a bookie counts as lost; lostBookieRecoveryDelay in ZooKeeper counts "
        "if it is longer",
    )
    check_s: float = option(3600.0, "longest time between two audits of all ledgers")
    placement_check_s: float = option(
        3600.0, "longest time between two audits of where the copies of closed ledgers lie; 0: there are none"
    )
    retry_s: float = option(30.0, "time until an audit that missed a ledger is repeated")
    compare_s: float = option(
        3600.0, "time between two comparisons of the copies of all closed ledgers, by the auditor; 0: none"
    )
    compare_entries_s: int = option(
        20_000, "entries compared a second at most, on average over some ledgers; 0: no limit"
    )
    look_s: float = option(1.0, "time between two looks at registrations, votes and marks")

    workers: int = option(4, "ledgers repaired at the same time by this process")
    worker_bytes_s: int = option(0, "bytes of payload that a worker copies a second at most; 0: no limit")
    open_grace_s: float = option(
        30.0, "time in which the writer of an open ledger may replace a lost bookie, before the ledger is recovered"
    )
    backoff_s: float = option(5.0, "time until a ledger is tried again after a failure; doubled after each further one")
    backoff_max_s: float = option(300.0, "longest time until a ledger is tried again")

    def __post_init__(self) -> None:
        port_number(self, "http_port")
        check_positive(self, "lost_after_s", "check_s", "retry_s", "look_s", "workers", "backoff_s", "backoff_max_s")
        for name, value in (("compare_s", self.compare_s), ("compare_entries_s", self.compare_entries_s)):
            if value < 0:
                raise ValueError(f"{name} is 0 or more: value={value}")
        if self.placement_check_s < 0:
            raise ValueError(f"placement_check_s is at least 0, which is never: value={self.placement_check_s}")
        if self.workers > 256:
            raise ValueError(f"workers is at most 256: value={self.workers}")
        if self.id:
            try:
                bookie_id(self.id)
            except InvalidRequestError:
                raise ValueError(f"an id holds letters, digits, '.', '_', ':' and '-': value={self.id!r}") from None
