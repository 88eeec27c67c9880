"""Section [ledger], and what a ledger client makes of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledgers import LedgersOptions
from dlog.ledger.ledger_options import LedgerOptions


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"disk_weight_max": 0.5}, "at least 1, or 0"),
        ({"disk_ask_s": 0.0}, "disk_ask_s is above 0"),
        ({"quarantine_failures": -1}, "at least 0"),
        ({"quarantine_s": 0.0}, "quarantine_s is above 0"),
        ({"ensemble_changes_max": 0}, "ensemble_changes_max is at least 1"),
        ({"ack_quorum_timeout_s": -1.0}, "at least 0"),
        ({"speculate_s": 0.0}, "speculate_s is above 0"),
        ({"bookie_tls_ca": "ca.pem", "bookie_tls_certificate": "c.pem"}, "must be given together"),
        ({"bookie_tls_certificate": "c.pem", "bookie_tls_key": "c.key"}, "needs bookie_tls_ca"),
        ({"bookie_protocol": "v1"}, "v2 or v3"),
        ({"explicit_lac_s": 1.0}, "needs bookie_protocol v3"),
        ({"explicit_lac_s": -1.0, "bookie_protocol": "v3"}, "at least 0"),
        ({"placement": "zone"}, "one of auto, random, rack, region"),
    ],
)
def test_options_out_of_bounds_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        LedgerOptions(**wrong)


def test_every_option_of_the_section_reaches_the_part_that_it_is_for() -> None:
    section = LedgerOptions(
        placement="rack",
        disk_weight_max=2.0,
        disk_ask_s=7.0,
        quarantine_failures=5,
        quarantine_s=8.0,
        ensemble_changes_max=9,
        ensemble_change_delayed=True,
        bookie_protocol="v3",
        bookie_tls_ca="ca.pem",
        bookie_tls_certificate="client.pem",
        bookie_tls_key="client.key",
        bookie_tls_check_hostname=True,
        ack_quorum_timeout_s=10.0,
        explicit_lac_s=12.0,
        speculate_s=11.0,
        speculate_min_s=0.5,
    )
    made = LedgersOptions(vet_s=0.125).configured(section)
    assert made.placement.placement == "rack" and made.vet_s == 0.125
    found: list[object] = [made.disk_weight_max, made.disk_ask_s, made.quarantine_failures, made.quarantine_s]
    found += [made.adding.ensemble_changes_max, made.adding.delayed_change, made.adding.ack_quorum_timeout_s]
    found.append(made.adding.explicit_lac_s)
    found += [made.reading.speculate_s, made.reading.speculate_min_s]
    bookies = BookieClientOptions().configured(section)
    found += [bookies.protocol, bookies.tls_ca, bookies.tls_certificate, bookies.tls_key, bookies.tls_check_hostname]
    own = [field.name for field in fields(LedgerOptions) if field.name not in PLACEMENT]
    assert found == [getattr(section, name) for name in own]


PLACEMENT = {"placement", "placement_regions", "placement_strict", "region", "rack"}
