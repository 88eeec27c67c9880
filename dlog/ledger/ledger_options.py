"""Section [ledger] of a configuration: what operators set for all processes that create, write or read ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.ledger.placement_policy import PlacementOptions
from dlog.options import check_positive, option


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions(PlacementOptions):
    """Section [ledger]: where the copies of the entries of new ledgers lie, how a writer gets over bookies that fail,
    and which copy is read first; for every process that creates or reads ledgers."""

    disk_weight_max: float = option(
        3.0,
        "bookies with more free disk space are chosen more often, at most so many times as often as one with the "
        "median of it; 0: all equally often",
    )
    disk_ask_s: float = option(300.0, "how often each bookie is asked for its free disk space")
    quarantine_failures: int = option(
        3, "a bookie that failed so often within quarantine_s is avoided for new ensembles; 0: none is"
    )
    quarantine_s: float = option(600.0, "for how long it is avoided")
    ensemble_changes_max: int = option(
        100, "ensemble changes of one ledger; with one more the writer gives it up, and its stream goes on in a new one"
    )
    ensemble_change_delayed: bool = option(
        False,
        "replace a failed bookie only once too few are left for an ack quorum, or after 10 to 15 s; until then entries "
        "have a copy less, which is made again when the ledger is closed",
    )
    ack_quorum_timeout_s: float = option(
        60.0,
        "a writer gives its ledger up if no entry was confirmed for so long, up to half as long again, while some "
        "wait; 0: only if no ack quorum is reachable",
    )
    explicit_lac_s: float = option(
        0.0,
        "with bookie_protocol v3: a writer sends bookies its last confirmed entry by itself, if no entry has carried "
        "it for so long; readers that do not ask the writer learn of the last entry before a pause. 0: never",
    )
    speculate_s: float = option(
        0.5,
        "a second bookie is asked for entries if the first is slow: at first after this time. Then the time follows "
        "the replies, up to 4 s, so that about one read in twenty asks two",
    )
    speculate_min_s: float = option(0.02, "the shortest time after which a second bookie is asked")
    bookie_protocol: str = option(
        "v2",
        "BookKeeper's protocol to bookies: v2, or v3, which takes more CPU, has no batched reads and no summaries of "
        "copies, but deferred sync",
    )
    bookie_tls_ca: str = option(
        "",
        "PEM file of the authorities that sign the certificates of bookies; all connections to bookies are under TLS "
        "then. Empty: plain ones",
    )
    bookie_tls_certificate: str = option("", "PEM file of the certificate to show to bookies that ask for one")
    bookie_tls_key: str = option("", "PEM file of its private key, without a password")
    bookie_tls_check_hostname: bool = option(
        False, "whether the certificate of a bookie must name the host that it is registered with"
    )

    def __post_init__(self) -> None:
        PlacementOptions.__post_init__(self)
        check_positive(self, "disk_ask_s", "quarantine_s", "ensemble_changes_max", "speculate_s", "speculate_min_s")
        if self.disk_weight_max and self.disk_weight_max < 1.0:
            raise ValueError(f"disk_weight_max is at least 1, or 0: value={self.disk_weight_max}")
        if self.bookie_protocol not in ("v2", "v3"):
            raise ValueError(f"bookie_protocol is v2 or v3: value={self.bookie_protocol!r}")
        if self.explicit_lac_s < 0 or (self.explicit_lac_s and self.bookie_protocol != "v3"):
            raise ValueError(f"explicit_lac_s is at least 0, and needs bookie_protocol v3: value={self.explicit_lac_s}")
        if bool(self.bookie_tls_certificate) != bool(self.bookie_tls_key):
            raise ValueError("bookie_tls_certificate and bookie_tls_key must be given together")
        if self.bookie_tls_certificate and not self.bookie_tls_ca:
            raise ValueError("bookie_tls_certificate needs bookie_tls_ca: connections are plain without it")
        if self.quarantine_failures < 0 or self.ack_quorum_timeout_s < 0:
            raise ValueError(
                f"quarantine_failures and ack_quorum_timeout_s are at least 0: "
                f"values={self.quarantine_failures}, {self.ack_quorum_timeout_s}"
            )
