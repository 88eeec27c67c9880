"""A bookie behind a port that is not its own registers the address that it was configured with."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import BookieId
from tests.integration.bookie.process import BookieProcess

pytestmark = pytest.mark.zookeeper
ADVERTISED = "bookie-7.example:3999"


async def test_an_advertised_address_is_the_id_and_where_others_connect_to(
    make_bookie: Callable[..., BookieProcess],
) -> None:
    bookie = make_bookie(advertise=ADVERTISED)
    bookie.start()
    assert bookie.id == ADVERTISED
    async with await ZooKeeperMetadata.connect(bookie.zookeeper, "/dlog") as metadata:
        info = (await metadata.members()).writable[BookieId(ADVERTISED)]
    assert (info.host, info.port) == ("bookie-7.example", 3999)


def test_an_address_that_is_none_is_refused_before_anything_is_touched(
    make_bookie: Callable[..., BookieProcess],
) -> None:
    words = make_bookie(advertise="nowhere").refusal()
    assert "host:port" in words, json.dumps(words)
