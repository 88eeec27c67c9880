"""Files and directories that the system refuses, for everything that `dlog up` and its parts store: a message that
names the path and the next step, no traceback, and no process left running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli.up import Up, dlog, up
from tests.unprivileged import PREFIX

SMALL = ("--bookies", "1", "--write-proxies", "1", "--read-proxies", "1")

#: what `dlog up` stores in its directory, each a file (f) or a directory (d); the obstacle is the other kind
KEPT = {
    "": "d",
    "cluster.json": "f",
    "cluster.new": "f",
    "dlog.lock": "f",
    "dlog.run.json": "f",
    "dlog.run.new": "f",
    "logs": "d",
    "logs/bookie-1.log": "f",
    "logs/cluster-init.log": "f",
    "logs/read-1.log": "f",
    "logs/recovery-1.log": "f",
    "logs/write-1.log": "f",
    "bookie-1": "d",
    "bookie-1/journal": "d",
    "bookie-1/journal/LOCK": "f",
    "bookie-1/ledgers": "d",
    "bookie-1/ledgers/VERSION": "f",
    "segments": "d",
    "zookeeper": "d",
    "zookeeper/cluster-made": "f",
    "zookeeper/data": "d",
    "zookeeper/lock": "f",
    "zookeeper/server.log": "f",
    "zookeeper/zoo.cfg": "f",
}


def put_obstacle(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "d":
        path.write_text("in the way")
    else:
        path.mkdir()


def judge(code: int, said: str, path: Path) -> None:
    assert code in (1, 2), said
    assert "Traceback" not in said
    assert str(path) in said
    assert "next: " in said


@pytest.mark.parametrize("name", KEPT)
def test_what_is_in_the_way_is_named(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    path = directory / name if name else directory
    put_obstacle(path, KEPT[name])
    code, _, said = dlog("up", *SMALL, directory=directory)
    judge(code, said, path)


@pytest.mark.parametrize("name", ["", "logs", "bookie-1", "zookeeper"])
def test_a_directory_of_another_user_is_named(name: str, tmp_path: Path) -> None:
    with up(tmp_path / "c", *SMALL) as first:
        first.end()
    path = tmp_path / "c" / name
    path.chmod(0)
    try:
        code, _, said = dlog("up", directory=tmp_path / "c", prefix=PREFIX)
    finally:
        path.chmod(0o700)
    judge(code, said, path)
    assert "run it as the user that owns the path" in said


@pytest.mark.parametrize(
    "arguments",
    [
        "append s {path}",
        "up --config {path}",
        "pipeline report --out {path}/x.html",
        "pipeline report --out {out} --report {path}/x.json",
        "pipeline replay --stream a --to {out} --marks {path}",
    ],
)
@pytest.mark.parametrize("kind", ["missing", "directory"])
def test_a_file_that_is_named_and_cannot_be_used_is_told(
    cluster: Up, arguments: str, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "named"
    if kind == "directory":
        path.mkdir()
        if "x." in arguments:
            (path / "x.html").mkdir()
            (path / "x.json").mkdir()
    code, _, said = dlog(*arguments.format(path=path, out=tmp_path / "out.html").split(), directory=cluster.directory)
    assert code in (1, 2, 3), said
    if arguments.startswith("pipeline"):
        said = said[said.rfind("\ndlog: ") + 1 :]  # Spark's own processes may write while they are ended
        assert said.startswith("dlog: ")
    assert "Traceback" not in said
    assert str(path) in said
