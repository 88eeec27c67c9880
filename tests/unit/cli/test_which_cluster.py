"""Which cluster a command talks to, for every command: flags before the environment before the working directory, all
of it from one source, and an error where one source names two clusters."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from dlog.cli.discovery import LOCK_FILE, NAMESPACE, RunningCluster, RunningPart, find_cluster
from dlog.cli.main import dlog, main
from dlog.cli.output import CommandError

PROXIES, ZOOKEEPER, BOTH = "--connect", "--zookeeper", "both"
ELSEWHERE = "127.0.0.1:1"

#: command -> its arguments, and the server that it talks to
COMMANDS: dict[str, tuple[str, str]] = {
    "append": ("s /dev/null", PROXIES),
    "bookie decommission": ("nobody:1", ZOOKEEPER),
    "bookie gc": ("", ZOOKEEPER),
    "bookie ls": ("", ZOOKEEPER),
    "bookie pause": ("nobody:1", ZOOKEEPER),
    "bookie replace": ("nobody:1 nobody:2", ZOOKEEPER),
    "bookie status": ("", ZOOKEEPER),
    "cluster init": ("", ZOOKEEPER),
    "cluster rebalance": ("", ZOOKEEPER),
    "cluster status": ("", ZOOKEEPER),
    "create": ("s", PROXIES),
    "alter": ("s --retention 1h", PROXIES),
    "delete": ("s --yes", PROXIES),
    "explain": ("s 1:0:0", BOTH),
    "ledger adopt": ("1", ZOOKEEPER),
    "ledger create": ("/dev/null", ZOOKEEPER),
    "ledger ls": ("", ZOOKEEPER),
    "ledger read": ("1", ZOOKEEPER),
    "ledger recover": ("1 --yes", ZOOKEEPER),
    "ledger show": ("1", ZOOKEEPER),
    "ledger strays": ("", ZOOKEEPER),
    "ledger verify": ("1", ZOOKEEPER),
    "ls": ("", PROXIES),
    "object fsck": ("", ZOOKEEPER),
    "object ls": ("", ZOOKEEPER),
    "object search": ("s", ZOOKEEPER),
    "object show": ("s", ZOOKEEPER),
    "owners": ("", PROXIES),
    "pipeline audit": ("", ZOOKEEPER),
    "pipeline backfill": ("--stream a --to s", ZOOKEEPER),
    "pipeline offload": ("--to file:///nowhere", ZOOKEEPER),
    "pipeline replay": ("--to nowhere", ZOOKEEPER),
    "pipeline report": ("", ZOOKEEPER),
    "pipeline table": ("--to nowhere --checkpoint nowhere-else", ZOOKEEPER),
    "read": ("s", PROXIES),
    "seal": ("s", PROXIES),
    "show": ("s", PROXIES),
    "sink ls": ("", ZOOKEEPER),
    "sink retire": ("k", ZOOKEEPER),
    "truncate": ("s 1:0:0", PROXIES),
}


def test_every_command_is_in_the_table() -> None:
    def leaves(group: click.Group, before: str) -> Iterator[str]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from leaves(command, f"{before}{name} ")
            else:
                yield f"{before}{name}"

    assert isinstance(dlog, click.Group)
    others = {"up", "bookie run", "write-proxy run", "read-proxy run", "recovery run"}
    others |= {"bookie convert", "bookie fsck"}  # the files of one bookie
    others |= {name for name in leaves(dlog, "") if name.startswith("region ")}  # in topics, not in a cluster
    assert set(leaves(dlog, "")) - others == set(COMMANDS)


@pytest.fixture(autouse=True)
def nothing_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("DLOG_CONNECT", "DLOG_DIR", "DLOG_ZOOKEEPER", "DLOG_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningCluster]:
    """The files of a running `dlog up` in the working directory's `.dlog`."""
    directory = tmp_path / "here" / ".dlog"
    directory.mkdir()
    parts = [RunningPart("write", "w", "h:2", 11), RunningPart("read", "r", "h:3", 12)]
    told = RunningCluster(directory=str(directory), pid=1, zookeeper="h:9,i:9", namespace="/mine", parts=parts)
    told.write()
    with (directory / LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield told


def misused(arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must end with a usage error; returns its stderr."""
    code = main([*name.split(), *COMMANDS[name][0].split(), *arguments])
    said = capsys.readouterr().err
    assert code == (1 if name.startswith("pipeline") else 2), said
    return said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_directory_named_by_a_flag_beats_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DLOG_CONNECT", f"dlog://{ELSEWHERE}")
    monkeypatch.setenv("DLOG_ZOOKEEPER", ELSEWHERE)
    said = misused(["--dir", str(tmp_path)], name, capsys)
    assert f"no `dlog up` runs for {tmp_path} (--dir)" in said
    assert "next: " in said


@pytest.mark.parametrize("name", COMMANDS)
def test_flags_that_name_two_clusters_are_refused(
    name: str, running: RunningCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--connect", "--zookeeper") if COMMANDS[name][1] == BOTH else (COMMANDS[name][1],):
        said = misused(["--dir", running.directory, flag, ELSEWHERE], name, capsys)
        assert "name two clusters" in said
        assert flag in said


@pytest.mark.parametrize("name", COMMANDS)
def test_the_environment_is_not_completed_from_another_cluster(
    name: str, running: RunningCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for said, other, needed_by in (
        ("DLOG_CONNECT", "DLOG_ZOOKEEPER", (ZOOKEEPER, BOTH)),
        ("DLOG_ZOOKEEPER", "DLOG_CONNECT", (PROXIES, BOTH)),
    ):
        if COMMANDS[name][1] in needed_by:
            monkeypatch.setenv(said, ELSEWHERE)
            assert f"{said} is given and {other} is not" in misused([], name, capsys)
            monkeypatch.delenv(said)


def test_what_is_said_nearest_wins(running: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**given: str) -> tuple[str, str, str]:
        cluster = find_cluster(**given, need_proxies=True, need_zookeeper=True)
        return cluster.connect, cluster.zookeeper, cluster.namespace

    of_here = ("dlog://h:2,h:3", "h:9,i:9", "/mine")
    assert found() == of_here
    monkeypatch.setenv("DLOG_NAMESPACE", "/env")
    monkeypatch.setenv("DLOG_CONNECT", "dlog://e:1")
    monkeypatch.setenv("DLOG_ZOOKEEPER", "e:2")
    assert found() == ("dlog://e:1", "e:2", "/env")
    assert found(directory=running.directory) == of_here, "a directory says its namespace, nearer than the environment"
    assert found(directory=running.directory, namespace="/mine/") == of_here
    assert found(connect="f:1", hosts="f:2") == ("f:1", "f:2", "/env")
    with pytest.raises(CommandError, match="--connect is given and --zookeeper is not"):
        found(connect="f:1")
    with pytest.raises(CommandError, match="--zookeeper is given and --connect is not"):
        found(hosts="f:1")
    monkeypatch.delenv("DLOG_NAMESPACE")
    assert found(connect="f:1", hosts="f:2") == ("f:1", "f:2", NAMESPACE)


def test_the_same_cluster_said_twice_is_no_contradiction(
    running: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    both: dict[str, Any] = {"need_proxies": True, "need_zookeeper": True}
    assert find_cluster(connect="h:3", directory=running.directory, **both).zookeeper == "h:9,i:9"
    assert find_cluster(hosts="i:9;h:9/", directory=running.directory, **both).connect == running.connect
    monkeypatch.setenv("DLOG_CONNECT", running.connect)
    assert find_cluster(**both).zookeeper == "h:9,i:9", "as `dlog up` prints it, in its directory"
    monkeypatch.setenv("DLOG_DIR", running.directory)
    assert find_cluster(**both).zookeeper == "h:9,i:9"
    monkeypatch.setenv("DLOG_CONNECT", "e:1")
    with pytest.raises(CommandError, match="DLOG_CONNECT and DLOG_DIR name two clusters"):
        find_cluster(**both)


def test_a_namespace_that_the_directory_does_not_have_is_refused(
    running: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxies serve one namespace; with another one a command would mix two sets of streams."""

    def refused(by: str, **given: str) -> None:
        with pytest.raises(CommandError) as caught:
            find_cluster(**given, need_proxies=True, need_zookeeper=True)
        assert by in caught.value.message and running.directory in caught.value.message
        assert "/mine" in caught.value.message
        assert "h:9,i:9" in caught.value.next_step

    refused("--namespace=/flag", directory=running.directory, namespace="/flag")
    refused("--namespace=/flag", namespace="/flag")
    refused("--namespace=/flag", connect="h:2", namespace="/flag")  # completed from the working directory
    monkeypatch.setenv("DLOG_NAMESPACE", "/env")
    refused("DLOG_NAMESPACE=/env")
    refused("DLOG_NAMESPACE=/env", connect="h:2")
    monkeypatch.setenv("DLOG_DIR", running.directory)
    refused("DLOG_NAMESPACE=/env")
    refused("--namespace=/flag", namespace="/flag")
    assert find_cluster(namespace="/mine", need_zookeeper=True).namespace == "/mine", "the flag is nearer"


@pytest.mark.parametrize("name", [*COMMANDS, "up"])
def test_an_empty_value_is_not_taken_for_an_option_that_is_left_out(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--dir "$UNSET"` would go to the cluster of the environment."""
    monkeypatch.setenv("DLOG_CONNECT", f"dlog://{ELSEWHERE}")
    monkeypatch.setenv("DLOG_ZOOKEEPER", ELSEWHERE)
    arguments, of = ("", "up") if name == "up" else COMMANDS[name]
    flags = ["--dir"]
    flags += ["--connect"] if of in (PROXIES, BOTH) else []
    flags += ["--zookeeper", "--namespace"] if of != PROXIES else []
    flags += ["--host", "--kafka", "--objects"] if name == "up" else []
    for flag in flags:
        for empty in ("", " "):
            code = main([*name.split(), *arguments.split(), flag, empty])
            assert code == (1 if name.startswith("pipeline") else 2)
            said = capsys.readouterr().err
            assert f"'{flag}': the value is empty" in said


def test_a_running_cluster_says_where_its_segments_are(
    running: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(running, file_directory="/its/files", objects_root="file:///its/objects").write()
    monkeypatch.setenv("DLOG_FILE_DIRECTORY", "/other/files")
    monkeypatch.setenv("DLOG_OBJECTS_ROOT", "file:///other/objects")
    stores = find_cluster(directory=running.directory, need_zookeeper=True).stores()
    assert (stores.file.directory, stores.objects.root) == ("/its/files", "file:///its/objects")
    stores = find_cluster(hosts=ELSEWHERE, need_zookeeper=True).stores()
    assert (stores.file.directory, stores.objects.root) == ("/other/files", "file:///other/objects")
