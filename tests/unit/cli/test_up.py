"""Tests that each part of `dlog up` has its own name, log and id, and the rack and region of its plan."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dlog.cli.parts import ProcessPart
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
            told = part._environment
            assert (told.get("DLOG_LEDGER_RACK", ""), told.get("DLOG_LEDGER_REGION", "")) == (rack, region)


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
