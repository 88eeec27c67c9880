"""Results of requests about whole streams: typed values, and errors that name what differs or is not known."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.client.stream_info import decode_appended, decode_stream
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer

SEGMENTS: list[dict[str, Any]] = [
    {
        "number": 1,
        "store": "ledger",
        "location": "17",
        "completed": True,
        "first_txid": 5,
        "last_txid": 9,
        "first_dlsn": [1, 3, 2],
        "last_dlsn": [1, 8, 0],
        "records": 40,
        "completed_unix_ms": 1000,
        "truncation": "partial",
    },
    {
        "number": 2,
        "store": "cold",
        "location": "s3://b/k",
        "completed": False,
        "first_txid": 9,
        "last_txid": -999,
        "first_dlsn": [2, 0, 0],
        "last_dlsn": None,
        "records": 0,
        "completed_unix_ms": 0,
        "truncation": "active",
        "lac": 4,
    },
]


def told(**changes: Any) -> dict[str, Any]:
    return Log().stat() | {"segments": SEGMENTS, "first_dlsn": [1, 3, 2], "last_dlsn": [2, 4, 0]} | changes


def test_a_stream_is_described_in_values() -> None:
    found = decode_stream(told(state="serving", producers=3))
    assert (found.name, found.incarnation, found.is_sealed, found.producers) == ("s", "a1", False, 3)
    assert found.owner == dlog.Owner(stream="s", location="host:1", epoch=1, state="serving", proxy="p")
    assert (found.first_dlsn, found.last_dlsn) == (of(1, 3, 2), of(2, 4, 0))
    first, last = found.segments
    assert (first.location, first.is_completed, first.is_cut, first.last_dlsn) == ("17", True, True, of(1, 8, 0))
    assert (last.store, last.last_txid, last.last_dlsn, last.lac, last.is_cut) == ("cold", None, None, 4, False)
    assert found.settings == dlog.StreamSettings(
        store="ledger",
        store_settings={"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "min_regions": 1},
        segment_bytes=256 << 20,
        segment_age_s=7200.0,
        retention_s=0.0,
    )
    with pytest.raises(AttributeError):
        found.name = "other"  # type: ignore[misc]


def test_a_stream_that_was_never_claimed_has_no_owner_and_one_that_was_released_had_one() -> None:
    claim = {"epoch": 0, "proxy": "", "location": "", "released": False}
    assert decode_stream(told(owner=claim)).owner is None
    released = decode_stream(told(owner={"epoch": 3, "proxy": "p", "location": "h:1", "released": True})).owner
    assert released is not None and released.is_released and released.state is None


def test_what_a_later_proxy_adds_is_ignored() -> None:
    settings = Log().settings | {"colour": "red"}
    assert decode_stream(told(later=1, settings=settings)) == decode_stream(told())


@pytest.mark.parametrize("lacks", ["stream", "settings", "owner", "segments"])
def test_a_reply_that_cannot_be_read_is_a_protocol_error(lacks: str) -> None:
    short = told()
    del short[lacks]
    with pytest.raises(dlog.ProtocolError):
        decode_stream(short)
    with pytest.raises(dlog.ProtocolError):
        decode_stream(told(first_dlsn=[1]))


def test_a_sinks_batch_that_the_log_has_forgotten_has_no_place() -> None:
    found = decode_appended({"dlsn": None, "count": 2, "txid": 0, "duplicate": True})
    assert (found.first, found.last, found.duplicate) == (DLSN_INVALID, DLSN_INVALID, True)
    assert decode_appended({"dlsn": [1, 2, 0], "count": 2, "txid": 7, "duplicate": False}).last == of(1, 2, 1)


async def test_a_client_tells_of_streams_and_owners_in_values() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        assert (await client.stat("s")).records == 0
        owner = await client.owner("s")
        assert (owner.stream, owner.location, owner.epoch) == ("s", double.address, 1)
        (one,) = await client.owners()
        assert one == dlog.Owner(stream="s", location=double.address, epoch=1, state="serving")
        assert await client.truncate("s", "1:2:3") == of(1, 2, 3)


async def test_a_created_stream_is_returned_with_its_settings() -> None:
    async with Double(Log(incarnation=None)) as double, dlog.connect(double.target) as client:
        made = await client.create("s", retention_s=60.0)
        (asked,) = double.of(proxy.Create)
        assert isinstance(asked, proxy.Create)
        assert (made.name, made.incarnation, made.owner, made.segments) == ("s", asked.incarnation, None, ())
        assert (made.settings.retention_s, made.settings.store_settings["ensemble"]) == (60.0, 3)


async def test_an_existing_stream_is_returned_if_it_has_the_settings_that_are_given() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        double.log.settings["retention_s"] = 60.0
        for settings in ({}, {"retention_s": 60}, {"retention_s": 60.0, "ensemble": 3}):
            found = await client.create("s", exist_ok=True, **settings)
            assert (found.incarnation, found.settings.retention_s) == ("a1", 60.0)
        with pytest.raises(dlog.StreamExistsError) as error:
            await client.create("s", exist_ok=True, retention_s=0, ensemble=3, ack_quorum=3)
        assert "retention_s=60.0 wanted=0" in str(error.value) and "ack_quorum=2 wanted=3" in str(error.value)
        assert "ensemble" not in str(error.value), "it does not differ"
        with pytest.raises(dlog.InvalidRequestError, match="colour"):
            await client.create("s", exist_ok=True, colour="red")  # type: ignore[call-arg]
        with pytest.raises(dlog.StreamExistsError):
            await client.create("s", retention_s=60.0)
    assert not double.of(proxy.Create)


async def test_a_creation_whose_reply_is_lost_is_found_and_not_called_another_stream() -> None:
    lost: list[proxy.Create] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Create):
            return False
        lost.append(message)
        if len(lost) == 1:
            peer.double.log.incarnation = message.incarnation
            peer.cut()
        else:  # as a proxy answers for the incarnation that it has
            peer.double.answer(peer, message)
        return True

    async with Double(Log(incarnation=None), script=script) as double, dlog.connect(double.target) as client:
        made = await client.create("s")
    assert made.incarnation == lost[0].incarnation and len({message.incarnation for message in lost}) == 1


async def test_a_creation_that_another_one_overtakes_is_an_error_or_finds_that_stream() -> None:
    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Create):
            return False
        peer.double.log.incarnation = "b2"
        peer.send(proxy.Failed(message.request, 522, "a stream of that name exists"))
        return True

    for exist_ok in (False, True):
        async with Double(Log(incarnation=None), script=script) as double, dlog.connect(double.target) as client:
            if exist_ok:
                assert (await client.create("s", exist_ok=True)).incarnation == "b2"
            else:
                with pytest.raises(dlog.StreamExistsError):
                    await client.create("s")


async def test_settings_are_altered_from_those_that_were_read_and_returned_as_they_are_now() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        assert (await client.alter("s", retention_s=60.0)).retention_s == 60.0
        found = await client.alter("s", segment_bytes=1 << 20)
        assert (found.retention_s, found.segment_bytes) == (60.0, 1 << 20)
        asked = [m for m in double.of(proxy.Alter) if isinstance(m, proxy.Alter)]
        assert [(m.version, m.settings) for m in asked] == [(0, {"retention_s": 60.0}), (1, {"segment_bytes": 1 << 20})]
        with pytest.raises(dlog.InvalidRequestError, match="at least one"):
            await client.alter("s")


async def test_settings_that_were_altered_since_are_read_again_unless_an_attempt_may_have_altered_them() -> None:
    tries: list[proxy.Alter] = []
    is_cut = False

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Alter):
            return False
        tries.append(message)
        if len(tries) == 1:
            peer.double.log.settings_version = 7  # by another client
            if is_cut:
                peer.cut()
                return True
        return False

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        assert (await client.alter("s", retention_s=60.0)).retention_s == 60.0
        assert [message.version for message in tries] == [0, 7]
    tries.clear()
    is_cut = True
    async with Double(script=script) as double, dlog.connect(double.target) as client:
        with pytest.raises(dlog.RequestTimeoutError, match="unknown") as error:
            await client.alter("s", retention_s=60.0)
        assert error.value.outcome_unknown
        assert double.log.settings["retention_s"] == 0.0
        assert [message.version for message in tries] == [0, 0]


async def test_an_alteration_never_touches_the_next_stream_of_the_name() -> None:
    tries: list[proxy.Alter] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Alter):
            return False
        tries.append(message)
        peer.double.log.incarnation = "b2"
        peer.send(proxy.Failed(message.request, 555, "altered since"))
        return True

    async with Double(script=script) as double, dlog.connect(double.target) as client:
        with pytest.raises(dlog.StreamNotFoundError):
            await client.alter("s", retention_s=60.0)
    assert [message.incarnation for message in tries] == ["a1"]
