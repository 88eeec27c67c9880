"""Tests the launcher: one server per directory, which ends with its parent, and errors that say what to install."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.cli.parts import State, SupervisedProcess, ZooKeeperPart
from dlog.cli.screen import LineScreen
from dlog.errors import ConfigError
from dlog.io import embedded_zookeeper
from dlog.io.embedded_zookeeper import (
    INSTALL_HINT,
    JARS_ENV,
    DirectoryInUseError,
    EmbeddedZooKeeper,
    JavaNotFoundError,
    ZooKeeperJarsNotFoundError,
    ZooKeeperStartError,
    find_jars,
    find_java,
)
from dlog.io.zookeeper import ZooKeeper
from dlog.io.zookeeper_protocol import ConnectionLossError, NotConnectedError
from tests.ports import free_port

pytestmark = pytest.mark.zookeeper


async def test_a_directory_belongs_to_one_server_and_keeps_its_data(own_zookeeper: EmbeddedZooKeeper) -> None:
    async with own_zookeeper:
        port = own_zookeeper.port
        async with await ZooKeeper.connect(own_zookeeper.hosts) as zk:
            await zk.create("/kept", b"x")
        with pytest.raises(DirectoryInUseError):
            await EmbeddedZooKeeper(own_zookeeper.directory).start()
    async with own_zookeeper:
        assert own_zookeeper.port == port
        async with await ZooKeeper.connect(own_zookeeper.hosts) as zk:
            assert (await zk.get("/kept"))[0] == b"x"
    await own_zookeeper.stop()
    assert own_zookeeper.pid is None


@pytest.mark.parametrize(
    ("name", "locale"),
    [("Größe 日本", "C"), ("Größe 日本", "C.UTF-8"), (" #a=b:c!d\\u0041,${HOME}%41 ", "C"), ("line\nend\t\\", "C")],
)
async def test_data_lie_in_the_directory_whatever_it_is_called(
    name: str, locale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    directory = tmp_path / name
    async with EmbeddedZooKeeper(directory) as server, await ZooKeeper.connect(server.hosts) as zk:
        await zk.create("/kept", b"x")
    assert os.listdir(tmp_path) == [name]
    moved = tmp_path / "moved"
    directory.rename(moved)
    async with EmbeddedZooKeeper(moved) as server, await ZooKeeper.connect(server.hosts) as zk:
        assert (await zk.get("/kept"))[0] == b"x"
    assert os.listdir(tmp_path) == ["moved"]


async def test_data_that_an_earlier_release_put_beside_the_directory_are_told_of(tmp_path: Path) -> None:
    beside = tmp_path / "Größe".encode().decode("latin-1") / "data"
    (beside / "version-2").mkdir(parents=True)
    with pytest.raises(ConfigError, match="move it") as caught:
        await EmbeddedZooKeeper(tmp_path / "Größe").start()
    assert str(beside) in str(caught.value)


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost"])
async def test_a_server_on_any_kind_of_host(host: str, tmp_path: Path) -> None:
    async with EmbeddedZooKeeper(tmp_path / "zk", host=host) as server, await ZooKeeper.connect(server.hosts) as zk:
        assert await zk.exists("/zookeeper")


@pytest.mark.parametrize("host", ["a..b", "203.0.113.9"])
@pytest.mark.parametrize("port", [0, 21810])
async def test_a_host_that_is_not_this_machines_is_an_error(host: str, port: int, tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperStartError, match="of this machine"):
        await EmbeddedZooKeeper(tmp_path, host=host, port=port).start()


async def test_a_port_in_use_is_an_error_and_leaves_nothing_running(
    zookeeper: EmbeddedZooKeeper, own_zookeeper: EmbeddedZooKeeper
) -> None:
    taken = EmbeddedZooKeeper(own_zookeeper.directory, port=zookeeper.port)
    with pytest.raises(ZooKeeperStartError):
        await taken.start()
    assert taken.pid is None
    await own_zookeeper.start()  # the directory is free again


async def test_a_question_that_came_too_early_is_given_up_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A server that has just begun to listen may accept a connection and never answer on it."""
    monkeypatch.setattr(embedded_zookeeper, "START_TIMEOUT_S", 1.9)  # less than one long wait
    heard = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard += 1
        number = heard
        await reader.readexactly(4)
        if number > 2:
            writer.write(b"Mode: standalone\n")
        else:
            await reader.read()  # until the client has gone
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as early:
        port = early.sockets[0].getsockname()[1]
        server = EmbeddedZooKeeper(tmp_path, port=port)  # one try
        monkeypatch.setattr(embedded_zookeeper, "_is_free", lambda host, port: True)
        monkeypatch.setattr(server, "_spawn", lambda port: sleeping(tmp_path))
        await server.start()
        await server.stop()
    assert heard == 3


async def fill(hosts: str) -> None:
    """Create znodes of 256 KiB until the server is gone."""
    async with await ZooKeeper.connect(hosts, session_timeout_s=2) as zk:
        with contextlib.suppress(ConnectionLossError, NotConnectedError):
            for number in itertools.count():
                await zk.create(f"/large-{number}", bytes(256 * 1024))


async def test_a_server_whose_heap_is_full_ends_and_says_so(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path / "zookeeper", heap_mib=32)
    async with server:
        await fill(server.hosts)
        assert await server.wait_exit() == 3
        words = server.last_words()
    assert "OutOfMemoryError" in words
    assert "it has 32 MiB" in words
    assert "--zookeeper-heap-mib" in words
    output = (server.directory / embedded_zookeeper.OUTPUT).read_bytes()
    larger = EmbeddedZooKeeper(server.directory, heap_mib=128)
    async with larger, await ZooKeeper.connect(larger.hosts) as zk:
        assert await zk.exists("/large-0"), "what it confirmed is there, once the heap is large enough"
    assert (server.directory / embedded_zookeeper.EARLIER_OUTPUT).read_bytes() == output


async def test_a_server_that_cannot_read_its_data_says_why(own_zookeeper: EmbeddedZooKeeper) -> None:
    (own_zookeeper.directory / "data" / "version-2").mkdir(parents=True)
    (own_zookeeper.directory / "data" / "version-2" / "log.1").write_bytes(b"no log of transactions" * 10)
    with pytest.raises(ZooKeeperStartError, match="code=") as ended:
        await own_zookeeper.start()
    assert "ERROR" in ended.value.message
    assert "\tat " not in ended.value.message


async def test_the_console_of_a_cluster_tells_why_its_zookeeper_died(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = LineScreen()
    deaths: list[str] = []
    died = asyncio.Event()

    def changed(part: SupervisedProcess) -> None:
        screen.changed(part)
        if part.state is State.WAITING:
            deaths.append(part.death())
            died.set()

    part = ZooKeeperPart(tmp_path / "zookeeper", "127.0.0.1", free_port(), 32, changed)
    async with asyncio.TaskGroup() as group:
        group.create_task(part.run(), name="zookeeper")
        await part.wait_ready()
        await fill(part.address)
        await died.wait()
        part.stop()
    assert deaths[0].startswith("died (exit code 3) and is restarted; its last output: ")
    assert "its heap is full: it has 32 MiB" in deaths[0]
    assert deaths[0] in capsys.readouterr().out


def sleeping(directory: Path) -> embedded_zookeeper._Running:
    """A running process in the place of a server's."""
    process = subprocess.Popen(["sleep", "60"])
    return embedded_zookeeper._Running(process, (directory / "lock").open("wb"), directory / "server.log")


def without_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_zookeeper, "_package_directory", lambda name: None)


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_wheels(monkeypatch)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFoundError) as missing:
        find_java()
    assert INSTALL_HINT in missing.value.message


def test_java_is_taken_from_java_home_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


def test_without_jars_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_wheels(monkeypatch)
    monkeypatch.delenv(JARS_ENV, raising=False)
    monkeypatch.setattr(embedded_zookeeper, "_DEBIAN_JAR", tmp_path / "zookeeper.jar")
    with pytest.raises(ZooKeeperJarsNotFoundError) as missing:
        find_jars()
    assert INSTALL_HINT in missing.value.message
    (tmp_path / "zookeeper.jar").touch()
    assert find_jars() == [tmp_path / "zookeeper.jar"]


def test_a_directory_named_for_the_jars_must_hold_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(JARS_ENV, str(tmp_path))
    with pytest.raises(ZooKeeperJarsNotFoundError, match=str(tmp_path)):
        find_jars()
    names = ["zookeeper-3.9.5", "zookeeper-jute-3.9.5", "slf4j-api-2.0", "metrics-core-4.2", "snappy-java-1.1"]
    for name in names:
        (tmp_path / f"{name}.jar").touch()
    assert [jar.stem for jar in find_jars()] == names


async def launched(directory: Path) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "dlog.io.embedded_zookeeper", "--dir", str(directory), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    return process, (await process.stdout.readline()).decode()


async def test_the_command_says_when_it_is_ready_and_ends_on_sigterm(zookeeper: object, tmp_path: Path) -> None:
    process, line = await launched(tmp_path)
    word, role, _, address = line.split()
    assert (word, role) == ("ready", "zookeeper")
    async with await ZooKeeper.connect(address):
        pass
    process.terminate()
    assert await process.wait() == 0


async def test_the_server_dies_with_the_command(zookeeper: object, own_zookeeper: EmbeddedZooKeeper) -> None:
    process, _ = await launched(own_zookeeper.directory)
    with pytest.raises(DirectoryInUseError):
        await own_zookeeper.start()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with asyncio.timeout(90):
        while True:  # the JVM holds the directory's lock until it has ended
            try:
                await own_zookeeper.start()
            except DirectoryInUseError:
                await asyncio.sleep(0.01)
            else:
                break
    assert own_zookeeper.pid != os.getpid()
