"""Tests that each part of `dlog up` has its own name, log and id, and the rack and region of its plan."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path

import pytest

from dlog.cli.discovery import RUN_FILE, RunningCluster
from dlog.cli.output import OutputLostError
from dlog.cli.parts import OnChange, ProcessPart, SupervisedProcess
from dlog.cli.plan import UpOptions, make_plan
from dlog.cli.up import _Cluster, _default_objects_root, _Places
from dlog.stores.object_storage.locations import parse_root

ROLES = {"bookie": 4, "write": 2, "read": 2}
NAMES = {f"{role}-{number}" for role, count in ROLES.items() for number in range(1, count + 1)} | {"recovery-1"}


@pytest.mark.parametrize(
    ("zookeeper", "dirs_moved", "passed"), [("", False, True), ("zk:1", False, False), ("zk:1", True, True)]
)
def test_bookies_may_have_moved_with_their_zookeeper_or_as_the_user_says(
    tmp_path: Path, zookeeper: str, dirs_moved: bool, passed: bool
) -> None:
    """Beside a ZooKeeper that was not moved with them, a copy of the directory could run as the same bookies."""
    options = UpOptions(bookies=1, zookeeper=zookeeper)
    plan = make_plan(tmp_path, options, random.Random(1))
    places = _Places("segments", "", "")
    cluster = _Cluster(tmp_path, plan, plan, options, None, places, as_json=False, dirs_moved=dirs_moved)
    assert ("--dirs-moved" in cluster.bookies[0]._flags) == passed


@pytest.mark.parametrize(("racks", "regions"), [(0, 0), (2, 0), (0, 2), (2, 2)])
def test_each_part_has_its_own_name_log_and_place(tmp_path: Path, racks: int, regions: int) -> None:
    options = UpOptions(bookies=4, write_proxies=2, read_proxies=2, racks=racks, regions=regions)
    plan = make_plan(tmp_path, options, random.Random(1))
    cluster = _Cluster(tmp_path, plan, plan, options, None, _Places("segments", "", ""), as_json=False)
    parts = [part for part in cluster.parts if isinstance(part, ProcessPart)]
    assert {part.name for part in parts} == NAMES and len(parts) == len(NAMES)
    for part in parts:
        assert part._log == tmp_path / "logs" / f"{part.name}.log"
        role, _, number = part.name.partition("-")
        if role == "recovery":
            continue
        rack, region = plan.location_of(int(number))
        if role == "bookie":
            flags = dict(zip(part._flags, part._flags[1:], strict=False))
            assert (flags.get("--rack", ""), flags.get("--region", "")) == (rack, region)
        else:
            assert part._flags[part._flags.index("--id") + 1] == part.name
            environment = part._environment
            assert (environment.get("DLOG_LEDGER_RACK", ""), environment.get("DLOG_LEDGER_REGION", "")) == (
                rack,
                region,
            )


@pytest.mark.parametrize(
    ("directory", "root"),
    [
        ("c", "file:///{here}/c/objects"),
        ("../c", "file:///{above}/c/objects"),
        ("Grö ße", "file:///{here}/Gr%C3%B6%20%C3%9Fe/objects"),
        ("100%", "file:///{here}/100%25/objects"),
        ("//c", "file:///c/objects"),
    ],
)
def test_objects_lie_in_a_directory_of_any_name(
    directory: str, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = _default_objects_root(Path(directory))
    assert found == root.format(here=str(tmp_path)[1:], above=str(tmp_path.parent)[1:])
    assert str(parse_root(found)) == found


class Screen:
    """Takes messages, unless the disk of the output is full."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.lost: OSError | None = None

    def changed(self, part: SupervisedProcess) -> None:
        """Do nothing."""

    def message(self, text: str) -> None:
        if self.lost is not None:
            raise OutputLostError(self.lost)
        self.messages.append(text)

    def tick(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def running_cluster(directory: Path) -> tuple[_Cluster, Screen]:
    options = UpOptions(bookies=1)
    plan = make_plan(directory, options, random.Random(1))
    cluster = _Cluster(directory, plan, plan, options, None, _Places("segments", "", ""), as_json=False)
    cluster._screen = screen = Screen()
    cluster._is_up = cluster._is_announced = True
    return cluster, screen


def test_a_full_disk_stops_no_cluster_that_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, screen = running_cluster(tmp_path)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run.new")

    def refuse(_: RunningCluster) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(RunningCluster, "write", refuse)
        for part in cluster.parts[:3]:
            cluster._changed(part)
        (line,) = screen.messages
        assert line.startswith("cannot write the run file") and line.endswith("; free space on that file system")
        screen.lost = full
        cluster._say("its output is on that disk, too")
    screen.lost = None
    cluster._write_run_file()
    assert screen.messages[1:] == ["the run file is written again"]
    assert (tmp_path / RUN_FILE).exists()
    assert not cluster._stopping.is_set()


def test_a_closed_pipe_stops_a_cluster_and_a_full_disk_one_that_starts(tmp_path: Path) -> None:
    for number, is_up in ((errno.EPIPE, True), (errno.ENOSPC, False)):
        cluster, screen = running_cluster(tmp_path)
        cluster._is_announced = is_up
        screen.lost = OSError(number, os.strerror(number))
        cluster._say("the cluster is up")
        assert cluster._stopping.is_set()


class Dying(SupervisedProcess):
    """Dies at once; its second start finds no space for its log."""

    def __init__(self, on_change: OnChange) -> None:
        super().__init__("bookie-1", "127.0.0.1:1", on_change)
        self.starts = 0

    async def wait_killed(self) -> None:
        """There is no process."""

    async def _start(self) -> None:
        self.starts += 1
        if self.starts == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "bookie-1.log")
        if self.starts == 3:
            self.stop()

    async def _wait(self) -> int:
        return 1

    def _terminate(self) -> None:
        """There is no process."""

    def _kill(self) -> None:
        """There is no process."""


async def test_a_part_whose_log_cannot_be_opened_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlog.cli.parts.BACKOFF_FIRST_S", 0.0)
    words: list[str] = []
    part = Dying(lambda changed: words.append(changed.last_words))
    async with asyncio.timeout(30):
        await part.run()
    assert part.starts == 3
    assert "no space left on device: file=bookie-1.log" in words
