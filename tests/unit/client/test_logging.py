"""The client logs under "dlog" with the standard library, and leaves the configuration to the program."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import dlog
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Peer, Script
from tests.unit.client.scripts import Holding, error_of


def once_cut(kind: type[proxy.Message]) -> tuple[list[proxy.Message], Script]:
    seen: list[proxy.Message] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, kind):
            seen.append(message)
            if len(seen) == 1:
                peer.cut()
                return True
        return False

    return seen, script


@pytest.mark.parametrize(
    ("kind", "says"),
    [(proxy.Seal, "request is retried: stream=s"), (proxy.Read, "read goes on at another proxy: stream=s")],
)
async def test_what_is_done_again_is_logged_once_each_time(
    kind: type[proxy.Message], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, script = once_cut(kind)
    with caplog.at_level(logging.INFO, "dlog"):
        async with Double(script=script) as double, dlog.connect(double.target) as client:
            if kind is proxy.Seal:
                await client.seal("s")
            else:
                assert [record async for record in client.read("s")] == []
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("dlog.client")]
    assert len([line for line in lines if line.startswith(says)]) == 1
    assert len([line for line in lines if line.startswith("connection lost")]) == 1


async def test_nothing_is_logged_of_each_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "dlog"):
        async with Double() as double, dlog.connect(double.target) as client:
            for n in range(50):
                await client.append("s", b"%d" % n)
            assert len([record async for record in client.read("s")]) == 50
    assert len([record for record in caplog.records if record.name.startswith("dlog")]) < 10


class Raising(logging.Handler):
    """A handler whose `emit` raises."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        raise dlog.InvalidRequestError("this handler fails")


@pytest.fixture
def raising(caplog: pytest.LogCaptureFixture) -> Iterator[Raising]:
    handler, logger = Raising(), logging.getLogger("dlog")
    logger.addHandler(handler)
    with caplog.at_level(logging.DEBUG, "dlog"):
        yield handler
    logger.removeHandler(handler)


def once_silent(kind: type[proxy.Message]) -> Script:
    """The first connection on which such a message comes answers nothing any more."""
    silent: list[Peer] = []

    def script(peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, kind) and not silent:
            silent.append(peer)
        return peer in silent

    return script


@pytest.mark.parametrize("kind", [proxy.Write, proxy.Read, proxy.Seal])
@pytest.mark.parametrize("fault", [lambda kind: once_cut(kind)[1], once_silent])
async def test_a_handler_that_raises_changes_nothing(
    kind: type[proxy.Message], fault: Callable[..., Script], raising: Raising, capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        Double(script=fault(kind)) as double,
        dlog.connect(double.target, ping_after_s=0.01, lost_after_s=0.01) as client,
    ):
        await client.append("s", b"x")
        assert [record.payload async for record in client.read("s")] == [b"x"]
        await client.seal("s")
    assert double.log.payloads == [b"x"]
    assert [line for record in raising.records if (line := record.getMessage()).startswith("connection ")]
    assert "this handler fails" in capsys.readouterr().err


async def test_an_internal_error_closes_the_client_though_a_handler_raises(raising: Raising) -> None:
    async def defect() -> None:
        raise AssertionError("planted")

    async with Double(script=Holding()) as double, dlog.connect(double.target) as client, asyncio.TaskGroup() as group:
        waiting = group.create_task(error_of(client.append("s", b"x")))
        await double.wait(lambda: bool(double.writes))
        assert client._incarnation is not None
        client._incarnation.spawn(defect(), "defect")
        error = await waiting
    assert isinstance(error, dlog.ClosedError)
    assert [record.funcName for record in raising.records if record.levelno == logging.ERROR] == ["_on_defect"]


PROGRAM = """
import asyncio, logging
import dlog

async def main():
    try:
        async with dlog.connect("dlog://127.0.0.1:1", request_deadline_s=0.2) as client:
            await client.seal("s")
    except dlog.RequestTimeoutError:
        pass

asyncio.run(main())
root = logging.getLogger()
assert root.handlers == [] and root.level == logging.WARNING, root.handlers
assert [type(h) for h in logging.getLogger("dlog").handlers] == [logging.NullHandler]
"""


def test_a_program_without_logging_sees_nothing_and_its_root_logger_is_untouched() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
