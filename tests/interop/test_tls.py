"""TLS by START_TLS on bookies of dlog: the clients of Java (v2 and v3) and ours write, read and fence each other."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dlog.cli.bookies import bookie
from dlog.errors import NotEnoughBookiesError
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.bookie_questions import read_space
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.ledgers import LedgersOptions
from dlog.io.tls import client_context
from dlog.model.ids import LedgerId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code
from tests.certificates import Authority, Certificate
from tests.integration.cluster import BookieCluster, start_bookies
from tests.interop.java_peer import JavaLedgers, JavaPeer
from tests.interop.payloads import numbered, read_all, refused, sized

pytestmark = pytest.mark.java


@pytest.fixture(scope="session")
def shown(authority: Authority) -> Certificate:
    return authority.issue("client")


@pytest.fixture
def under_tls(authority: Authority, shown: Certificate) -> BookieClientOptions:
    return BookieClientOptions(
        request_timeout_s=60.0,
        tls_ca=str(authority.ca),
        tls_certificate=str(shown.certificate),
        tls_key=str(shown.key),
        tls_check_hostname=True,
    )


@pytest.mark.parametrize("v3", [True, False])
async def test_java_and_we_under_tls(
    java: JavaPeer,
    bookies: BookieCluster,
    authority: Authority,
    shown: Certificate,
    under_tls: BookieClientOptions,
    v3: bool,
) -> None:
    theirs = JavaLedgers(java, bookies.hosts, v3=v3, tls=(shown.certificate, shown.key, authority.ca))
    written = [*numbered("java", 0, 100), sized(1_044_480)]
    writer = await theirs.create()
    assert await writer.add(written) == list(range(101))
    async with bookies.ledgers(transport=replace(under_tls, protocol="v3" if v3 else "v2")) as ours:
        assert (await ours.recover(LedgerId(writer.id))).last_entry == 100
        assert refused(await writer.add([b"too late"]))
        assert await read_all(ours, writer.id) == written
        mine = await ours.create(Quorum())
        for payload in written:
            await mine.append((payload,))
        assert await theirs.read_all(mine.ledger_id, recover=True) == written
    async with bookies.ledgers() as plain:  # on the same port
        assert await read_all(plain, writer.id) == written


async def test_a_client_without_an_accepted_certificate_reaches_no_bookie(
    bookies: BookieCluster, authority: Authority, tmp_path: Path
) -> None:
    options = LedgersOptions(vet_s=1.0, vet_all_s=1.0)
    stranger = Authority(tmp_path).issue("stranger")
    shows_none = BookieClientOptions(tls_ca=str(authority.ca))
    shows_other = BookieClientOptions(
        tls_ca=str(authority.ca), tls_certificate=str(stranger.certificate), tls_key=str(stranger.key)
    )
    for transport in (shows_none, shows_other):
        async with bookies.ledgers(options, transport) as ours:
            with pytest.raises(NotEnoughBookiesError):
                await ours.create(Quorum())


async def test_a_client_refuses_a_bookie_with_the_certificate_of_another_authority(
    bookies: BookieCluster, tmp_path: Path
) -> None:
    host, _, port = bookies.bookies[0].address.rpartition(":")
    other = Authority(tmp_path)
    mine = other.issue("client")
    context = client_context(str(other.ca), str(mine.certificate), str(mine.key))
    with pytest.raises(ssl.SSLError):
        await read_space(host, int(port), 60.0, context)


async def test_single_questions_are_asked_under_tls_too(
    bookies: BookieCluster, authority: Authority, shown: Certificate
) -> None:
    host, _, port = bookies.bookies[0].address.rpartition(":")
    context = client_context(str(authority.ca), str(shown.certificate), str(shown.key), check_hostname=True)
    assert (await read_space(host, int(port), 60.0, context)).code is Code.OK


def test_commands_ask_bookies_under_tls_if_the_section_has_it(
    bookies: BookieCluster,
    authority: Authority,
    shown: Certificate,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bookies serve plain connections, too: the wrong authority shows that none is used."""
    command = ["--zookeeper", bookies.hosts, "--namespace", bookies.namespace, "--json"]
    monkeypatch.setenv("DLOG_LEDGER_BOOKIE_TLS_CERTIFICATE", str(shown.certificate))
    monkeypatch.setenv("DLOG_LEDGER_BOOKIE_TLS_KEY", str(shown.key))
    for ca, code in ((authority.ca, 0), (Authority(tmp_path).ca, 1)):
        monkeypatch.setenv("DLOG_LEDGER_BOOKIE_TLS_CA", str(ca))
        done = CliRunner().invoke(bookie, ["status", *command], standalone_mode=False)
        rows = json.loads(done.stdout)
        assert done.return_value == code and [row["alive"] for row in rows] == [code == 0] * 3, rows
        assert all((row["free_bytes"] is not None) is (code == 0) for row in rows)
    assert CliRunner().invoke(bookie, ["gc", *command], standalone_mode=False).return_value == 1


@pytest.fixture
def tls_only(zookeeper: EmbeddedZooKeeper, authority: Authority, tmp_path: Path) -> Iterator[BookieCluster]:
    """Three bookies that require TLS."""
    issued = authority.issue("bookie")
    flags = ("--tls-certificate", str(issued.certificate), "--tls-key", str(issued.key), "--tls-required")
    cluster = start_bookies(zookeeper, tmp_path / "bookies", 3, *flags)
    yield cluster
    cluster.close()


@pytest.mark.parametrize("v3", [True, False])
async def test_java_and_we_where_tls_is_required(
    java: JavaPeer,
    tls_only: BookieCluster,
    authority: Authority,
    shown: Certificate,
    under_tls: BookieClientOptions,
    v3: bool,
) -> None:
    theirs = JavaLedgers(java, tls_only.hosts, v3=v3, tls=(shown.certificate, shown.key, authority.ca))
    writer = await theirs.create()
    assert await writer.add([b"a", b"b"]) == [0, 1]
    async with tls_only.ledgers(transport=replace(under_tls, protocol="v3" if v3 else "v2")) as ours:
        assert (await ours.recover(LedgerId(writer.id))).last_entry == 1
        assert await read_all(ours, writer.id) == [b"a", b"b"]
