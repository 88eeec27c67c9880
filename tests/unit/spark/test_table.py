"""Tests the binding of a table, and what is reported of a query that ended; without Spark."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from dlog.errors import ConfigError, DamagedError
from dlog.spark.jobs import table
from dlog.spark.jobs.frame import Selection
from dlog.spark.jobs.table_home import OF_CHECKPOINT, OF_TABLE, Files, claim, done_up_to
from dlog.spark.offsets import StreamPosition

WHAT = {"namespace": "/dlog", "streams": "s", "start": {}, "format": "parquet", "partition_by": ""}


class Killed(BaseException):
    pass


class Memory:
    """A directory in memory. left: writes until it is killed."""

    def __init__(self, path: str, **files: bytes) -> None:
        self.path = path
        self.files = dict(files)
        self.left = 99

    def names(self, under: str = "") -> list[str]:
        begin = f"{under}/" if under else ""
        return sorted(name.removeprefix(begin) for name in self.files if name.startswith(begin))

    def read(self, name: str) -> bytes | None:
        return self.files.get(name)

    def write(self, name: str, data: bytes) -> None:
        if not self.left:
            self.files[f".{name}-0"] = data
            raise Killed
        self.left -= 1
        self.files[name] = data


def bind(to: Memory, checkpoint: Memory, **what: Any) -> None:
    claim(cast(Files, to), cast(Files, checkpoint), {**WHAT, **what})


def test_a_table_and_its_checkpoint_are_bound_for_ever() -> None:
    to, checkpoint = Memory("to"), Memory("checkpoint")
    bind(to, checkpoint)
    told = json.loads(to.files[OF_TABLE])
    assert told == json.loads(checkpoint.files[OF_CHECKPOINT]) and told["streams"] == "s"
    bind(to, checkpoint)
    assert json.loads(to.files[OF_TABLE]) == told, "again does nothing"
    with pytest.raises(ConfigError, match="path=to streams=s wanted=r"):
        bind(to, checkpoint, streams="r")
    with pytest.raises(ConfigError, match="path=checkpoint format=parquet wanted=delta"):
        bind(Memory("new"), checkpoint, format="delta")


def test_killed_between_the_two_it_goes_on() -> None:
    for name in ("to", "checkpoint"):
        pair = {"to": Memory("to"), "checkpoint": Memory("checkpoint")}
        pair[name].left = 0
        with pytest.raises(Killed):
            bind(pair["to"], pair["checkpoint"])
        pair[name].left = 99
        bind(pair["to"], pair["checkpoint"])
        assert pair["to"].files[OF_TABLE] == pair["checkpoint"].files[OF_CHECKPOINT]


def test_what_is_not_a_table_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match="it has other contents: to=to"):
        bind(Memory("to", **{"part-0.parquet": b""}), Memory("checkpoint"))
    with pytest.raises(ConfigError, match=r"this checkpoint belongs to another query.*checkpoint=checkpoint"):
        bind(Memory("to"), Memory("checkpoint", offsets=b""))
    with pytest.raises(DamagedError, match=r"identity of a table cannot be read.*file=to/_dlog_table.json"):
        bind(Memory("to", **{OF_TABLE: b"{"}), Memory("checkpoint"))


def test_where_a_table_goes_on() -> None:
    assert done_up_to(cast(Files, Memory("c"))) == (-1, {})
    offsets = b'v1\n{"batchWatermarkMs":0}\n{"s":[3,17]}'
    files = {"commits/0": b"", "commits/10": b"", "commits/9": b"", "offsets/10": offsets, "offsets/11": b"v1"}
    assert done_up_to(cast(Files, Memory("c", **files))) == (10, {"s": StreamPosition(3, 17)})
    with pytest.raises(DamagedError, match="offsets of a checkpoint cannot be read: checkpoint=c batch=4"):
        done_up_to(cast(Files, Memory("c", **{"commits/4": b""})))


def test_the_error_of_a_query_is_said_in_a_line() -> None:
    text = "Query x terminated\nTraceback (most recent call):\n  File\ndlog.errors.TruncatedError: it is gone\n\tat org"
    assert table._error_text(text) == "dlog.errors.TruncatedError: it is gone"
    assert table._error_text("Something else\n\tat org") == "Something else"
    assert table._error_text("") == "the query ended with an error"
    assert table._reason("An error\n: java.lang.NoSuchMethodError: 'x'\n\tat") == "java.lang.NoSuchMethodError: 'x'"
    assert table._reason("[DATA_SOURCE_NOT_FOUND] Failed to find") == "its jars are missing"


def test_a_table_wants_streams_that_are_named() -> None:
    options = table.TableOptions(to="/a", checkpoint="/b")
    with pytest.raises(ConfigError, match="name the streams of the table"):
        table.table(cast(Any, None), Selection(zookeeper="h:1"), options)
