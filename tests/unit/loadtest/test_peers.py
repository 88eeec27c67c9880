"""Tests the peers without starting them: configuration, options, ports, processes that fail, missing parts."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.systems import java, nats, peers
from loadtest.systems.base import FEATURES, CannotRunError, NotApplicable
from loadtest.systems.bookkeeper import bookie_config, zookeeper_config
from loadtest.systems.java import Jars, PartMissingError
from loadtest.systems.kafka import CREATE_TOPICS, KafkaSystem, _dense, broker_config, refused_of
from loadtest.systems.nats import server_config
from loadtest.systems.nats_clients import _Pending, pack, sequence_of, unpack
from loadtest.systems.nodes import PORTS, Ports, Server, ServerFailedError, ServerSystem, start_together, stop_together


def settings(text: str) -> Mapping[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


# ---- configuration ---------------------------------------------------------------------------------------------------


def test_a_bookie_waits_for_company_and_syncs_unless_it_is_told_otherwise() -> None:
    said = settings(bookie_config(Path("/d"), 3181, "127.0.0.1:2181", group_wait_ms=2, sync=True))
    assert said["journalMaxGroupWaitMSec"] == "2" and said["journalSyncData"] == "true"
    assert said["metadataServiceUri"] == "zk+hierarchical://127.0.0.1:2181/ledgers"
    assert said["bookiePort"] == "3181" and said["journalDirectories"] == "/d/journal"
    other = settings(bookie_config(Path("/d"), 3181, "127.0.0.1:2181", group_wait_ms=0, sync=False))
    assert other["journalMaxGroupWaitMSec"] == "0" and other["journalSyncData"] == "false"
    assert settings(zookeeper_config(Path("/z"), 2181))["clientPortAddress"] == "127.0.0.1"


def test_a_broker_replicates_everything_and_listens_on_loopback() -> None:
    said = settings(broker_config(Path("/d"), 2, 9092, 9093, "1@h:1,2@h:2,3@h:3", replicas=3, in_sync=2))
    assert said["node.id"] == "2" and said["min.insync.replicas"] == "2" and said["default.replication.factor"] == "3"
    assert said["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert said["unclean.leader.election.enable"] == "false"


@pytest.mark.parametrize("sync", [True, False])
def test_nats_syncs_each_message_only_if_asked(sync: bool) -> None:
    said = server_config(Path("/d"), "server-1", [1, 2, 3], ["nats://h:2"], sync=sync)
    assert ("sync_interval: always" in said) is sync
    assert said.count("{") == said.count("}") and "listen: 127.0.0.1:1\n" in said


@pytest.mark.parametrize("name", sorted(peers.VARIANTS))
def test_a_variant_says_what_an_acknowledgement_means(name: str) -> None:
    variant = peers.VARIANTS[name]
    system = variant.make(name)
    assert isinstance(system, ServerSystem)
    system._choose(variant.preset)
    assert system.durability.letter == ("P" if name.endswith("-default") else "F")
    assert system.durability.sentence and variant.says and system.variant == name
    assert all(isinstance(system.lacks(feature), str | None) for feature in FEATURES)
    assert system.lacks("catch-up") is None


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("bookkeeper", {"colour": "red"}, "choose from ack_quorum"),
        ("bookkeeper", {"bookies": "many"}, "whole number"),
        ("bookkeeper", {"ack_quorum": "4"}, "must hold"),
        ("bookkeeper", {"sync": "perhaps"}, "true or false"),
        ("kafka", {"in_sync": "4"}, "must hold"),
        ("kafka", {"linger_ms": "-1"}, "at least 0"),
        ("nats", {"replicas": "5"}, "must hold"),
        ("nats", {"servers": "0"}, "at least 1"),
    ],
)
async def test_options_that_nothing_could_do_are_refused_before_anything_starts(
    name: str, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    system = peers.VARIANTS[name].make(name)
    with pytest.raises(ValueError, match=said):
        await system.start(tmp_path, options)
    assert system.processes() == {}
    await system.stop()
    assert not any(path.name for path in tmp_path.glob("*"))  # noqa: ASYNC240 - two instants of a test


async def test_what_bookkeeper_does_not_have_is_said_as_such() -> None:
    system = peers.VARIANTS["bookkeeper"].make("bookkeeper")
    with pytest.raises(NotApplicable, match="owned by its writer"):
        await system.owner("log")
    with pytest.raises(NotApplicable, match="Python"):
        system.generator({"kind": "produce"}, "user")
    with pytest.raises(NotApplicable, match="no such node"):
        await system.kill("bookie-9")


# ---- downloads -------------------------------------------------------------------------------------------------------


def test_missing_jars_are_named_with_the_way_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    jars = Jars("kafka", pom, tmp_path / "lib", "kafka_*.jar")
    monkeypatch.setattr(java, "find_java", lambda: "java")
    with pytest.raises(PartMissingError, match="loadtest peers install kafka"):
        jars.need()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PartMissingError, match="apt-get install maven"):
        jars.install()


def test_jars_are_fetched_once_for_each_pom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    jars = Jars("kafka", pom, tmp_path / "lib", "kafka_*.jar")
    calls: list[list[str]] = []

    def fetch(command: list[str], within_s: float) -> str:
        calls.append(command)
        out = Path(command[-1].partition("=")[2])
        out.mkdir()
        (out / f"kafka_2.13-{len(calls)}.jar").touch()
        return ""

    monkeypatch.setattr(java, "run", fetch)
    monkeypatch.setattr(java, "find_javac", lambda: "javac")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert jars.install() and not jars.install() and len(calls) == 1
    pom.write_text("<project>newer</project>")
    jars.need()  # what is there is enough to run
    assert jars.install() and len(calls) == 2
    assert [path.name for path in jars.directory.iterdir()] == ["kafka_2.13-2.jar"]  # none of the older pom


def test_two_versions_of_one_pom_are_fetched_each_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pom = tmp_path / "pom.xml"
    pom.write_text("<project/>")
    versions: list[str] = []

    def fetch(command: list[str], within_s: float) -> str:
        versions.extend(word for word in command if word.startswith("-Dpeer.version="))
        out = Path(command[-1].partition("=")[2])
        out.mkdir()
        (out / "peer-1.jar").touch()
        return ""

    monkeypatch.setattr(java, "run", fetch)
    monkeypatch.setattr(java, "find_javac", lambda: "javac")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert Jars("peer", pom, tmp_path / "a" / "lib", "peer-*.jar").install() and not versions
    assert Jars("peer", pom, tmp_path / "b" / "lib", "peer-*.jar", "2").install() and versions == ["-Dpeer.version=2"]
    assert not Jars("peer", pom, tmp_path / "b" / "lib", "peer-*.jar", "2").install()
    assert Jars("peer", pom, tmp_path / "b" / "lib", "peer-*.jar", "3").install(), "of another version"


def test_a_tool_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(java.FetchFailedError, match=r"code=3 output=no such module"):
        java.run([sys.executable, "-c", "print('no such module'); raise SystemExit(3)"], 60.0)
    with pytest.raises(java.FetchFailedError, match="did not finish"):
        java.run([sys.executable, "-c", "import time; time.sleep(600)"], 0.2)


def test_install_tells_what_is_missing_and_fails_unless_it_may_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nats, "SERVER", tmp_path / "nats-server")
    assert peers.main(["install", "nats"]) == 1
    assert "golang-go" in capsys.readouterr().err
    assert peers.main(["install", "--if-possible", "nats"]) == 0
    assert "is skipped" in capsys.readouterr().err
    assert peers.main(["install"]) == 2


def test_start_refuses_a_directory_with_something_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert peers.main(["start", "nats", "--dir", str(tmp_path)]) == 2
    assert "must be empty" in capsys.readouterr().err
    assert peers.main(["start", "nats", "--option", "servers"]) == 2


# ---- ports and processes ---------------------------------------------------------------------------------------------


def test_ports_are_free_and_nobody_elses_while_they_are_held() -> None:
    with Ports() as mine, Ports() as others:
        taken, other = mine.take(20), others.take(20)
        assert len({*taken, *other}) == 40 and all(port in PORTS for port in (*taken, *other))
        socket.create_server(("127.0.0.1", taken[0])).close()


def python(name: str, code: str, room: Path, says: str = "ready") -> Server:
    async def ready() -> bool:
        return server.has_logged(says, server.log_begin)

    server = Server(name, "server", "nowhere", [sys.executable, "-uc", code], room / name, ready)
    return server


SERVE = "import signal; print('ready', flush=True); signal.sigwait([signal.SIGUSR1])"


async def test_a_server_is_started_killed_started_again_and_stopped(tmp_path: Path) -> None:
    server = python("one", SERVE, tmp_path)
    await server.start(60.0)
    pids = [server.pid]
    server.kill()
    pids.append(server.pid)
    await server.start(60.0)  # the output of the first start does not count
    pids.append(server.pid)
    assert pids[0] and pids[1] is None and pids[2] and pids[0] != pids[2]
    server.pause()
    assert server.is_paused
    await server.stop(60.0)
    assert not server.is_running
    await server.stop()


async def test_a_server_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    server = python("one", "print('the disk is full'); raise SystemExit(1)", tmp_path)
    with pytest.raises(ServerFailedError, match="the disk is full"):
        await server.start(60.0)


async def test_a_server_that_says_nothing_is_killed_in_the_end(tmp_path: Path) -> None:
    server = python("one", "import time; time.sleep(600)", tmp_path)
    with pytest.raises(ServerFailedError, match="did not serve within"):
        await server.start(0.3)
    assert not server.is_running


async def test_if_one_fails_none_is_left(tmp_path: Path) -> None:
    servers = [python("good", SERVE, tmp_path), python("bad", "raise SystemExit('no')", tmp_path)]
    with pytest.raises(CannotRunError, match="bad ended before it served"):
        await start_together(servers, 60.0)
    assert [server.is_running for server in servers] == [False, False]


async def test_whoever_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVE
    servers = [python("one", stubborn, tmp_path), python("two", SERVE, tmp_path)]
    await start_together(servers, 60.0)
    await stop_together(servers, 0.2)
    assert [server.is_running for server in servers] == [False, False]


async def test_servers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from tests.unit.loadtest.test_peers import SERVE, python\n"
        "server = python('child', SERVE, Path(sys.argv[2]))\n"
        "asyncio.run(server.start(60.0))\n"
        "print(server.pid, flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, str(java.ROOT), str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    async with asyncio.timeout(60.0):
        child = int(await parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        while is_running(child):  # noqa: ASYNC110 - another process's end
            await asyncio.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---- decoding by clients ---------------------------------------------------------------------------------------------


def test_a_batch_is_one_message_and_comes_apart_again() -> None:
    records = [b"a", b"bb" * 40, b""]
    assert unpack(7, pack(records)) == ((7, 0), records)
    assert unpack(7, b"single") == ((7,), [b"single"])


def test_what_is_given_up_is_told_in_rows() -> None:
    told: list[Any] = []
    pending = _Pending(told.append, 60.0)
    for count in (1, 1, 3, 1):
        pending.add(count)
    assert pending.take(1) == 1, "an answer came for the second"
    pending.sweep()
    assert told == [] and not pending.idle.is_set(), "nothing has waited for too long"
    pending.sweep(all_of_them=True)
    assert [(one.first, one.count, one.unknown) for one in told] == [(0, 1, True), (2, 4, True)]
    assert pending.idle.is_set() and pending.take(2) == 0


def test_the_sequence_of_a_delivery_is_in_its_reply() -> None:
    assert sequence_of(b"$JS.ACK.log.consumer.1.42.7.1700000000.0") == 42
    assert sequence_of(b"$JS.ACK.domain.hash.log.consumer.1.42.7.1700000000.0.random") == 42


def test_topics_that_a_request_did_not_make_are_named_with_the_reason() -> None:
    none, there_already, too_few_brokers = 0, 36, 38
    told = [("a", none, None), ("b", there_already, "exists"), ("c", too_few_brokers, "two of three")]
    assert refused_of(told) == (["c"], "InvalidReplicationFactorError")
    assert refused_of([("a", none)]) == ([], "")


async def test_many_topics_are_asked_for_together_and_what_is_refused_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    class Admin:
        async def create_topics(self, topics: list[Any], timeout_ms: int) -> Any:
            names = [topic.name for topic in topics]
            asked.append(names)
            return SimpleNamespace(
                topic_errors=[(name, 38 * (len(asked) == 1 and i < 2)) for i, name in enumerate(names)]
            )

        async def describe_topics(self, topics: list[str]) -> list[Any]:
            partitions = [{"leader": 1, "isr": [1, 2, 3]}]
            return [{"topic": topic, "error_code": 0, "partitions": partitions} for topic in topics]

    async def ask() -> Admin:
        return Admin()

    system = peers.VARIANTS["kafka"].make("kafka")
    assert isinstance(system, KafkaSystem)
    monkeypatch.setattr(system, "_ask", ask)
    logs = [f"log-{i}" for i in range(CREATE_TOPICS + 1)]
    await system.create_all(logs)
    assert asked == [logs[:CREATE_TOPICS], logs[:2], logs[CREATE_TOPICS:]]
    assert system._topics == logs


def test_records_of_kafka_are_cut_where_offsets_leave_a_gap() -> None:
    class Record:
        def __init__(self, offset: int) -> None:
            self.offset, self.value = offset, b"%d" % offset

    assert _dense([Record(3), Record(4), Record(9)]) == [(3, [b"3", b"4"]), (9, [b"9"])]
