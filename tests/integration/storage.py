"""Real cold storage: an HDFS of a NameNode and a DataNode, an S3 server, a directory. They end with the test."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlog.io.children import die_with_parent
from dlog.io.settings import load
from dlog.stores.cold.options import ColdOptions
from loadtest.systems import versitygw
from loadtest.systems.java import HDFS, jvm
from loadtest.systems.versitygw import SERVER
from tests.parts import need
from tests.ports import HOST, free_port, free_ports

READY_S = 120.0
BUCKET = "cold"
_OPENS = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "-Djava.net.preferIPv4Stack=true")


@dataclass(frozen=True)
class Storage:
    """A kind of cold storage that runs. root: its locations begin with it. environment: the variables that programs
    need to reach it.

    files: the directory of its objects on this machine, if they have files of their own names.
    """

    kind: str
    root: str
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Path | None = None

    def file_of(self, place: str) -> Path:
        """The file of an object, which tests damage."""
        assert self.files is not None
        return self.files / place.removeprefix(self.root).removeprefix("/")


def is_startable(kind: str) -> bool:
    return all(present for present, _, _ in _parts(kind))


def need_storage(kind: str) -> None:
    """Skip, or fail in CI, where it cannot be started."""
    for present, part, how in _parts(kind):
        need(present, part, how)


def _parts(kind: str) -> list[tuple[bool, str, str]]:
    """Its requirements: whether each is here, its name, how to get it."""
    install = "python -m loadtest peers install"
    if kind == "webhdfs":
        return [(HDFS.are_here(), "HDFS", f"{install} hdfs (needs Maven: apt-get install maven)")]
    if kind == "s3":
        has_client = importlib.util.find_spec("aiobotocore") is not None
        return [
            (SERVER.exists(), "versitygw, an S3 server", f"{install} versitygw (needs Go 1.25 or newer)"),
            (has_client, "aiobotocore", "pip install 'dlogd[s3]'"),
        ]
    return []


@contextmanager
def storage(kind: str, directory: Path) -> Iterator[Storage]:
    """Start file, s3 or webhdfs, below an empty directory."""
    need_storage(kind)
    directory.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        yield Storage("file", f"file://{directory}/cold", {}, directory / "cold")
    elif kind == "s3":
        with _versitygw(directory) as started:
            yield started
    else:
        with _hdfs(directory) as started:
            yield started


def options_of(kept: Storage, **changes: Any) -> ColdOptions:
    return load(ColdOptions, "cold", None, {"roots": (kept.root,), **changes}, environ=kept.environment)


# ---- S3 -------------------------------------------------------------------------------------------------------------


@contextmanager
def _versitygw(directory: Path) -> Iterator[Storage]:
    (directory / "data" / BUCKET).mkdir(parents=True)
    port = free_port()
    line, keys = versitygw.command(port, directory / "data")
    with _process(line, directory / "log", keys) as server:
        _until(lambda: _answers(port), server, directory / "log")
        told = versitygw.settings(port, "cold")
        yield Storage("s3", f"s3://{BUCKET}/logs", told, directory / "data" / BUCKET / "logs")


# ---- HDFS -----------------------------------------------------------------------------------------------------------


@contextmanager
def _hdfs(directory: Path) -> Iterator[Storage]:
    rpc, web, *data = free_ports(5)
    conf = directory / "conf"
    for name in ("hdfs", "datanode"):  # Jetty requires them
        (conf / "webapps" / name).mkdir(parents=True)
    (conf / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,err\nlog4j.appender.err=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.err.target=System.err\nlog4j.appender.err.layout=org.apache.log4j.SimpleLayout\n"
    )
    core = {"fs.defaultFS": f"hdfs://{HOST}:{rpc}", "hadoop.tmp.dir": str(directory / "tmp")}
    (conf / "core-site.xml").write_text(_site(core))
    told = {
        "dfs.replication": "1",
        "dfs.namenode.name.dir": str(directory / "name"),
        "dfs.datanode.data.dir": str(directory / "data"),
        "dfs.namenode.rpc-address": f"{HOST}:{rpc}",
        "dfs.namenode.http-address": f"{HOST}:{web}",
        "dfs.datanode.address": f"{HOST}:{data[0]}",
        "dfs.datanode.http.address": f"{HOST}:{data[1]}",
        "dfs.datanode.ipc.address": f"{HOST}:{data[2]}",
        "dfs.datanode.hostname": HOST,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.handler.count": "4",
    }
    (conf / "hdfs-site.xml").write_text(_site(told))
    node = "org.apache.hadoop.hdfs.server.namenode.NameNode"
    log = directory / "log"
    with log.open("ab") as out:
        command = jvm(HDFS, node, "-format", "-nonInteractive", heap_mib=256, flags=_OPENS, first=[conf])
        subprocess.run(command, stdout=out, stderr=out, timeout=READY_S, check=True, stdin=subprocess.DEVNULL)
    names = _process(jvm(HDFS, node, heap_mib=256, flags=_OPENS, first=[conf]), log)
    holds = "org.apache.hadoop.hdfs.server.datanode.DataNode"
    blocks = _process(jvm(HDFS, holds, heap_mib=256, flags=_OPENS, first=[conf]), log)
    with names as name_node, blocks:
        _until(lambda: _has_room(web), name_node, log)
        yield Storage("webhdfs", f"webhdfs://{HOST}:{web}/cold", {"DLOG_COLD_WEBHDFS_USER": "dlog"})


def _site(told: Mapping[str, str]) -> str:
    each = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in told.items())
    return f"<configuration>{each}</configuration>\n"


def _has_room(port: int) -> bool:
    """Whether a NameNode is out of its safe mode and its DataNode has reported its blocks."""
    told = _get(port, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    beans = json.loads(told)["beans"] if told else []
    return bool(beans) and beans[0]["FSState"] == "Operational" and beans[0]["CapacityRemaining"] > 0


# ---- processes ------------------------------------------------------------------------------------------------------


@contextmanager
def _process(command: list[str], log: Path, more: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **(more or {})},
            preexec_fn=die_with_parent(),
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _until(holds: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + READY_S
    while not holds():
        if process.poll() is not None or time.monotonic() > end_s:
            pytest.fail(f"cold storage did not start: {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def _answers(port: int) -> bool:
    return _get(port, "/") is not None


def _get(port: int, path: str) -> bytes | None:
    """The response, whatever its status; None if there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
