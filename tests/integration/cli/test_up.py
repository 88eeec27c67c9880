"""A cluster on one machine: restarts, orderly and other ends, and data that is found again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from dlog.cli.plan import read_plan
from dlog.io.children import python_module
from tests.integration.cli.up import Up, before_exec, dlog, ignores, is_alive, up, wait_until
from tests.ports import free_port

LINES = b"".join(b"line %d\n" % n for n in range(5000))
SMALL = ("--write-proxies", "1", "--read-proxies", "1")


def ok(cluster: Up, *arguments: str, given: bytes = b"") -> bytes:
    code, out, err = dlog(*arguments, directory=cluster.directory, given=given)
    assert code == 0, err
    return out


def test_ctrl_c_ends_everything_and_the_next_start_finds_the_data(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    with up(directory, *SMALL) as first:
        ok(first, "append", "s", "--create", given=LINES)
        pids = [part.pid for part in first.running.parts]
        assert first.end(signal.SIGINT) == 0
        assert not any(is_alive(pid) for pid in pids)
        printed = first.printed.read_text()
        ended = [line.split()[1] for line in printed.splitlines() if line.endswith("has ended")]
        assert set(ended[:2]) == {"write-1", "read-1"}, "proxies first, so that they can hand over"
        assert ended[-1] == "zookeeper"
        assert not (directory / "dlog.run.json").exists()
    with up(directory) as second:
        assert [p.role for p in second.running.parts].count("write") == 1, "as many as there were"
        assert ok(second, "read", "s") == LINES
        ok(second, "append", "s", given=LINES)
        assert ok(second, "read", "s") == LINES * 2


def test_kill_9_of_everything_at_once_loses_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    with up(directory, *SMALL) as first:
        ok(first, "append", "s", "--create", given=LINES)
        pids = [part.pid for part in first.running.parts]
        for pid in (first.process.pid, *pids):
            with contextlib.suppress(ProcessLookupError):  # they die with their parent, and may have ended already
                os.kill(pid, signal.SIGKILL)
        first.process.wait()
    with up(directory) as second:
        assert ok(second, "read", "s") == LINES
        ok(second, "append", "s", given=b"more\n")
        assert ok(second, "read", "s") == LINES + b"more\n"


def test_parts_end_with_a_killed_parent(tmp_path: Path) -> None:
    with up(tmp_path / "c", *SMALL) as running:
        pids = [part.pid for part in running.running.parts]
        running.process.kill()
        running.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in pids), "parts outlive their parent")


def test_a_part_that_dies_is_started_again_under_its_address(tmp_path: Path) -> None:
    with up(tmp_path / "c") as running:
        ok(running, "append", "s", "--create", given=LINES)
        for role in ("bookie", "read", "write", "zookeeper"):
            was = running.kill_part(role)
            now = running.wait_restarted(was)
            assert now.address == was.address
            assert f"{was.id}".split(":")[0] in running.printed.read_text()
        assert running.printed.read_text().count("died (exit code -9) and is restarted") == 4
        ok(running, "append", "s", given=LINES)
        assert ok(running, "read", "s") == LINES * 2


def test_a_directory_of_any_name_is_found_again_wherever_it_was_moved(tmp_path: Path) -> None:
    directory = tmp_path / "Größe #1=x\\y"
    with up(directory, *SMALL) as first:
        ok(first, "append", "s", "--create", given=LINES)
        ok(first, "create", "o", "--store", "s3-direct")
        ok(first, "append", "o", given=LINES)
        assert first.end() == 0
    beside = {path.name for path in tmp_path.iterdir()}
    assert beside == {directory.name, first.printed.name}, "nothing of it lies elsewhere"
    moved = tmp_path / "日本"
    directory.rename(moved)
    for _ in range(2):
        with up(moved) as again:
            assert ok(again, "read", "s") == ok(again, "read", "o") == LINES
            assert again.end() == 0


def test_a_directory_with_given_places_of_topics_and_objects_inside_it_may_be_moved(tmp_path: Path) -> None:
    directory, moved = tmp_path / "first", tmp_path / "second one"
    places = ("--kafka", f"file://{directory}/topics", "--objects", f"file://{directory}/deep/objects")
    with up(directory, *SMALL, *places) as first:
        for store in ("kafka", "s3-direct"):
            ok(first, "create", store, "--store", store)
            ok(first, "append", store, given=LINES)
        assert first.end() == 0
    directory.rename(moved)
    with up(moved) as again:
        for store in ("kafka", "s3-direct"):
            assert ok(again, "read", store) == LINES
        assert again.end() == 0
    assert not directory.exists()


@pytest.mark.parametrize("host", ["[::1]", "::"])
def test_a_cluster_on_any_kind_of_host(host: str, tmp_path: Path) -> None:
    http = free_port()
    config = tmp_path / "dlog.toml"
    config.write_text(f"[read]\nhttp_port = {http}\n")
    with up(tmp_path / "c", *SMALL, "--host", host, "--config", str(config)) as running:
        ok(running, "append", "s", "--create", given=LINES)
        assert ok(running, "read", "s") == LINES
        assert ok(running, "read", "s", "--connect", running.running.connect) == LINES
        for command in ("cluster status", "bookie status", "explain s 1:0:0", "ledger ls"):
            ok(running, *command.split())
        status = json.loads(ok(running, "cluster", "status", "--json"))
        named = [member["address"].rpartition(":")[0] for member in status["members"]]
        shown = host if host == "[::1]" else socket.gethostname()
        assert named == [shown] * 5
        for path in ("/ready", "/metrics"):
            with urllib.request.urlopen(f"http://[::1]:{http}{path}", timeout=60.0) as answer:
                assert answer.status == 200
        assert running.end() == 0


def test_signals_that_it_was_started_to_ignore_stay_ignored_in_every_process(tmp_path: Path) -> None:
    """Started as by `nohup dlog up &`, it still ends in order: its parts receive its SIGTERM."""
    ignored = (signal.SIGHUP, signal.SIGINT)
    with up(tmp_path / "c", *SMALL, ignored=ignored) as running:
        pids = [running.process.pid, *(part.pid for part in running.running.parts)]
        assert [[number for number in ignored if not ignores(pid, number)] for pid in pids] == [[]] * len(pids)
        for pid in pids:
            for number in ignored:
                os.kill(pid, number)
        ok(running, "append", "s", "--create", given=LINES)
        assert pids[1:] == [part.pid for part in running.running.parts], "nothing was started again"
        assert running.end(signal.SIGTERM) == 0


def test_it_ends_its_parts_in_order_though_it_was_started_to_ignore_sigterm(tmp_path: Path) -> None:
    with up(tmp_path / "c", *SMALL, ignored=(signal.SIGTERM,)) as running:
        assert ignores(running.process.pid, signal.SIGTERM)
        assert running.end(signal.SIGINT) == 0
        assert "has ended" in running.printed.read_text()


@pytest.mark.parametrize("ignored", [(), (signal.SIGINT,)])
def test_a_follower_that_was_started_to_ignore_ctrl_c_does(
    cluster: Up, tmp_path: Path, ignored: tuple[signal.Signals, ...]
) -> None:
    ok(cluster, "append", f"follow-{len(ignored)}", "--create", given=b"x\n")
    with Popen(
        python_module("dlog", "read", f"follow-{len(ignored)}", "--follow", "--dir", str(cluster.directory)),
        stdout=PIPE,
        preexec_fn=before_exec(ignored),
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"x\n"
        assert ignores(follower.pid, signal.SIGINT) is bool(ignored)
        follower.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
        assert follower.wait(180) == (-signal.SIGTERM if ignored else 0)


def test_directories_beside_it_that_are_called_as_packages_change_nothing(tmp_path: Path) -> None:
    for name in ("actors", "proxies", "dlog", "asyncio", "click", "uvloop"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('imported from the working directory')\n")
    with up(tmp_path / "c", *SMALL, cwd=tmp_path) as running:
        was = running.kill_part("write")
        running.wait_restarted(was)
        assert running.end() == 0


def test_an_outside_zookeeper_is_used_and_left_alone(cluster: Up, tmp_path: Path) -> None:
    hosts = cluster.running.zookeeper
    flags = ("--zookeeper", hosts, "--namespace", "/other", "--bookies", "1")
    with up(tmp_path / "c", *SMALL, *flags) as second:
        assert {p.role for p in second.running.parts} == {"bookie", "recovery", "write", "read"}
        ok(second, "append", "mine", "--create", given=b"x\n")
        assert b"mine" in ok(second, "ls")
        assert b"mine" not in ok(cluster, "ls"), "another namespace"
        assert second.end() == 0
    assert ok(cluster, "cluster", "status")


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    with up(directory, *SMALL) as first:
        first.end()
    plan = read_plan(directory)
    assert plan is not None
    with socket.create_server(("127.0.0.1", plan.bookies[0])):
        code, _, err = dlog("up", directory=directory)
    assert code == 2
    assert f"127.0.0.1:{plan.bookies[0]}" in err
    assert "next:" in err


def test_a_wrong_option_of_a_start_that_fails_is_not_kept(tmp_path: Path) -> None:
    directory, config = tmp_path / "c", tmp_path / "wrong.toml"
    config.write_text("[write]\nno_such_option = 1\n")
    code, _, err = dlog("up", "--zookeeper", "127.0.0.1:1", directory=directory)
    assert code == 1 and "cannot create the cluster" in err
    wrong = ("--objects", f"file://{tmp_path}/wrong", "--racks", "2", "--config", str(config))
    for _ in range(2):  # the first start, then a change
        code, _, err = dlog("up", *SMALL, *wrong, directory=directory)
        assert code == 2 and "no_such_option" in err
        with up(directory, *SMALL) as right:
            assert right.running.objects_root == f"file://{directory}/objects"
        plan = read_plan(directory)
        assert plan is not None
        assert (plan.zookeeper, plan.objects, plan.racks, len(plan.write)) == ("", "", 0, 1)


def test_an_unknown_option_of_a_part_is_told_and_nothing_is_left_running(tmp_path: Path) -> None:
    config = tmp_path / "dlog.toml"
    config.write_text("[write]\nno_such_option = 1\n")
    code, _, err = dlog("up", "--config", str(config), directory=tmp_path / "c")
    assert code == 2
    assert "no_such_option" in err
    assert not (tmp_path / "c" / "dlog.run.json").exists()
