"""Arguments of wrong types: refused at once, and nobody else who uses the client's connection notices."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

import pytest

import dlog
from dlog.errors import InvalidRequestError
from dlog.wire.proxy import Hello, SinkWrite, Truncate
from tests.unit.client.proxy_double import Double


class Integer:
    """An integer of another type, as numpy has them."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        return self.value == other

    def __hash__(self) -> int:
        return hash(self.value)


Call = Callable[[Any], Awaitable[object]]  # given a client, whose annotations the arguments disregard


async def read(client: Any, start: object) -> None:
    async for _ in client.read("s", start):
        raise AssertionError("nothing was appended")


def once(epoch: object, batch: object, **more: object) -> Call:
    return lambda client: client.append_once("s", [b"x"], dlog.SinkBatch("k", epoch, "q", batch), **more)  # type: ignore[arg-type]


def move(number: object, location: object) -> Call:
    return lambda client: client.move_segment(
        "s", number, store="ledger", location=location, to_store="cold", to_location="x"
    )


async def put(client: Any, txid: object) -> None:
    async with client.pipeline("s") as pipeline:
        await pipeline.put([b"x"], txid=txid)


def with_txid(txid: object) -> dict[str, Call]:
    return {
        f"append txid={txid!r}": lambda client: client.append("s", b"x", txid=txid),
        f"append_batch txid={txid!r}": lambda client: client.append_batch("s", [b"x"], txid=txid),
        f"append_once txid={txid!r}": once(0, 0, txid=txid),
        f"put txid={txid!r}": lambda client: put(client, txid),
        f"read txid={txid!r}": lambda client: read(client, dlog.at_txid(txid)),  # type: ignore[arg-type]  # the test
    }


def with_dlsn(dlsn: object) -> dict[str, Call]:
    return {
        f"truncate dlsn={dlsn}": lambda client: client.truncate("s", dlsn),
        f"read dlsn={dlsn}": lambda client: read(client, dlog.Position(dlog.Start.DLSN, dlsn)),
    }


WRONG: dict[str, Call] = {
    **{name: call for txid in (1.5, 1.0, True, "1", Decimal(1), int) for name, call in with_txid(txid).items()},
    **{
        name: call
        for dlsn in ((1, 2), (1.0, 0, 0), (True, 0, 0), (2**70, 0, 0), ("1", 0, 0))
        for name, call in with_dlsn(dlsn).items()
    },
    "position of text": lambda client: read(client, dlog.Position(dlog.Start.TXID, "x")),
    "position without value": lambda client: read(client, dlog.Position(dlog.Start.TXID)),
    "epoch": once(1.5, 0),
    "batch number": once(0, -1),
    "since": once(0, 0, since=(1.0, 2)),
    "number of a segment": move("1", "7"),
    "location": move(1, 7),
    "location of a part": lambda client: client.import_segments("s", [("\ud800", 1)]),
    "last entry of a part": lambda client: client.import_segments("s", [("7", 1.9)]),
    "setting": lambda client: client.alter("s", retention_s=Decimal(5)),
    "records": lambda client: client.append_batch("s", iter(())),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_argument_is_refused_and_nothing_else_happens(name: str) -> None:
    wrongs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrongs.append(context))
    async with Double() as double, dlog.connect(double.target) as client:
        async with asyncio.timeout(90):
            with pytest.raises(InvalidRequestError) as caught:
                await WRONG[name](client)
        assert (type(caught.value), caught.value.outcome_unknown) == (InvalidRequestError, False)
        await client.append("s", b"good")
        await client.truncate("s", "1:0:0")
        assert len(double.of(Hello)) == 1, "the connection was cut"
        assert client._router is not None
        [connection] = client._router.pool._connections.values()
        assert not (connection._asked or connection._readers or connection._written)
        del caught
        gc.collect()
    assert double.log.payloads == [b"good"]
    assert wrongs == []


async def test_integers_of_other_types_are_taken() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        any_client: Any = client
        await any_client.append("s", b"0", txid=Integer(5))
        await any_client.append_batch("s", [b"1"], txid=Integer(6))
        await put(client, Integer(7))
        await any_client.truncate("s", dlog.DLSN(Integer(1), Integer(0), 0))  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="must be between 0 and"):
            await any_client.append("s", b"x", txid=Integer(-1))
        assert [write.txid for write in double.writes] == [5, 6, 7]
        assert [message.dlsn for message in double.of(Truncate) if isinstance(message, Truncate)] == [(1, 0, 0)]


async def test_a_batch_may_come_from_an_iterator() -> None:
    async with Double() as double, dlog.connect(double.target) as client:
        any_client: Any = client
        result = await any_client.append_batch("s", (b"%d" % n for n in range(3)))
        assert (result.count, double.log.payloads) == (3, [b"0", b"1", b"2"])
        with pytest.raises(InvalidRequestError, match="a record must be bytes"):
            await any_client.append_batch("s", iter([b"x", "x"]))
        await client.append("s", b"3")
        assert double.of(SinkWrite) == []
    assert double.log.payloads == [b"0", b"1", b"2", b"3"]
