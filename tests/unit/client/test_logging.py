"""The client logs under "dlog" with the standard library, and leaves the configuration to the program."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import dlog
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Peer


def once_cut(kind: type[proxy.Message]) -> tuple[list[proxy.Message], object]:
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
        async with Double(script=script) as double, dlog.connect(double.target) as client:  # type: ignore[arg-type]
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
