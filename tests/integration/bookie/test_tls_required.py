"""Bookies that require TLS refuse every plain request, and serve clients and commands that use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dlog.cli.bookies import bookie
from dlog.errors import DLogError
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.bookie_questions import read_space
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.ledgers import LedgersOptions
from dlog.io.rebalance import EVEN, rebalance
from dlog.io.tls import client_context
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code
from tests.certificates import Authority
from tests.integration.cluster import BookieCluster, start_bookies

pytestmark = pytest.mark.zookeeper

E333 = Quorum(ensemble=3, write=3, ack=3)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(
    zookeeper: EmbeddedZooKeeper, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BookieCluster]:
    issued = authority.issue("bookie")
    flags = ("--tls-certificate", str(issued.certificate), "--tls-key", str(issued.key), "--tls-required")
    made = start_bookies(zookeeper, tmp_path_factory.mktemp("bookies"), 3, *flags)
    yield made
    made.close()


@pytest.fixture
def under_tls(authority: Authority) -> BookieClientOptions:
    return BookieClientOptions(request_timeout_s=60.0, tls_ca=str(authority.ca))


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_only_clients_under_tls_are_served(
    cluster: BookieCluster, under_tls: BookieClientOptions, protocol: str
) -> None:
    async with cluster.ledgers(transport=replace(under_tls, protocol=protocol)) as ledgers:
        writer = await ledgers.create(E333)
        await writer.append((b"a secret",))
        await writer.close()
        assert not (await ledgers.compare(writer.ledger_id)).doubt
        assert (await ledgers.verify(writer.ledger_id)).ranges == ()
    plain = BookieClientOptions(request_timeout_s=60.0, protocol=protocol)
    async with cluster.ledgers(LedgersOptions(vet_s=1.0, vet_all_s=1.0), plain) as ledgers:
        with pytest.raises(DLogError):
            await ledgers.create(E333)
        with pytest.raises(DLogError):
            async with asyncio.timeout(60.0):
                await (await ledgers.open(writer.ledger_id)).read(EntryId(0), EntryId(0), 1 << 20)
    assert any("bookie.plain_refused" in process.log() for process in cluster.bookies)


async def test_single_questions_without_tls_are_refused(cluster: BookieCluster, authority: Authority) -> None:
    host, _, port = cluster.bookies[0].address.rpartition(":")
    assert (await read_space(host, int(port), 60.0)).code is Code.UNAUTHORIZED
    assert (await read_space(host, int(port), 60.0, client_context(str(authority.ca), "", ""))).code is Code.OK


async def test_a_rebalance_asks_for_space_under_tls(cluster: BookieCluster, under_tls: BookieClientOptions) -> None:
    async with (
        cluster.ledgers(transport=under_tls) as ledgers,
        await ZooKeeperMetadata.connect(cluster.hosts, cluster.namespace) as metadata,
    ):
        done = await rebalance(metadata, ledgers, lambda _: None, lambda *_: None, until=1.0, is_dry=True)
        assert (done.reason, done.unknown) == (EVEN, ())


def test_commands_work_under_tls_only(
    cluster: BookieCluster, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["status", "--zookeeper", cluster.hosts, "--namespace", cluster.namespace, "--json"]
    plain = CliRunner().invoke(bookie, command, standalone_mode=False)
    assert [row["free_bytes"] for row in json.loads(plain.stdout)] == [None] * 3
    monkeypatch.setenv("DLOG_LEDGER_BOOKIE_TLS_CA", str(authority.ca))
    done = CliRunner().invoke(bookie, command, standalone_mode=False)
    assert all(row["free_bytes"] is not None for row in json.loads(done.stdout)), done.stdout
