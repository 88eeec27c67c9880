import fcntl
import os
import pwd
from contextlib import ExitStack
from pathlib import Path

import pytest

from dlog.cli.discovery import (
    LOCK_FILE,
    RUN_FILE,
    RunningCluster,
    RunningPart,
    find_cluster,
    find_running,
    read_run_file,
    target,
    zookeeper,
)
from dlog.cli.output import CommandError
from tests.unprivileged import modes_count


def running(directory: Path) -> RunningCluster:
    parts = [
        RunningPart("read", "r1", "h:3", 12),
        RunningPart("bookie", "b1", "h:1", 10),
        RunningPart("write", "w1", "h:2", 11),
    ]
    places = {"kafka_topics": "kafka://k:1", "objects_root": "s3://logs/x"}
    return RunningCluster(directory=str(directory), pid=1, zookeeper="h:9", namespace="/dlog", parts=parts, **places)


def test_a_run_file_counts_while_its_lock_is_held(tmp_path: Path) -> None:
    running(tmp_path).write()
    assert read_run_file(tmp_path) is None
    with (tmp_path / LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read_run_file(tmp_path) == running(tmp_path)
    assert read_run_file(tmp_path) is None


def test_clients_connect_to_write_proxies_first(tmp_path: Path) -> None:
    assert running(tmp_path).connect == "dlog://h:2,h:3"


@pytest.mark.parametrize("place", [".", ".dlog", "data"])
def test_what_runs_here_is_found(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / place
    directory.mkdir(exist_ok=True)
    running(directory).write()
    with (directory / LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = find_running(None)
        assert found is not None
        assert target(None, None) == "dlog://h:2,h:3"
        assert zookeeper(None, None, None) == ("h:9", "/dlog")
        assert target("dlog://x:1", None) == "dlog://x:1"
        monkeypatch.setenv("DLOG_KAFKA_TOPICS", "file:///regions/of/something/else")
        assert find_cluster(need_zookeeper=True).stores().kafka.topics == "kafka://k:1"
        assert find_cluster(need_zookeeper=True).stores().objects.root == "s3://logs/x"


@pytest.mark.parametrize("name", ["", RUN_FILE, LOCK_FILE])
@pytest.mark.parametrize("place", [".dlog", "data"])
@pytest.mark.parametrize("is_named", [True, False])
def test_files_that_the_user_may_not_read_are_named(
    name: str, place: str, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of another user runs there; the advice to start one was wrong."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / place
    directory.mkdir()
    running(directory).write()
    with (directory / LOCK_FILE).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / name).chmod(0)
        try:
            with modes_count(), pytest.raises(CommandError) as caught:
                target(None, str(directory) if is_named else None)
        finally:
            (directory / name).chmod(0o700)
    told = caught.value
    assert "cannot see whether a `dlog up` runs" in told.message
    assert "permission denied" in told.message and str(directory / name) in told.message
    assert f"as {pwd.getpwuid(os.geteuid()).pw_name}" in told.next_step and "right to read" in told.next_step


def test_a_subdirectory_that_cannot_be_read_hides_no_cluster_in_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "closed").mkdir(0)
    (tmp_path / "open").mkdir()
    running(tmp_path / "open").write()
    with (tmp_path / "open" / LOCK_FILE).open("wb") as lock, modes_count():
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_running(None) == running(tmp_path / "open")


def test_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / RUN_FILE).write_text("{not json")
    with pytest.raises(CommandError, match="no cluster") as caught:
        target(None, None)
    assert "dlog up" in caught.value.next_step
    with pytest.raises(CommandError, match="no --zookeeper"):
        zookeeper(None, None, None)


def test_several_clusters_in_subdirectories_are_told_apart_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            running(tmp_path / name).write()
            fcntl.flock(stack.enter_context((tmp_path / name / LOCK_FILE).open("wb")), fcntl.LOCK_EX)
        with pytest.raises(CommandError, match="one, two") as caught:
            find_running(None)
        assert "--dir" in caught.value.next_step
        assert find_running("two") == running(tmp_path / "two")
