"""`dlog sink`: a query that was given up is shut out, and its stages are deleted; nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.client.sync import SyncClient
from dlog.errors import InvalidRequestError
from dlog.spark.cluster_connection import Cluster
from dlog.spark.proxies import proxies_of
from dlog.spark.stages import sink_path
from tests.integration.cli.up import Up
from tests.integration.spark.abandoned import Abandoned


@pytest.fixture
def abandoned(cluster: Up, client: SyncClient) -> Abandoned:
    return Abandoned(cluster, client)


def test_what_a_sink_that_was_given_up_staged_is_listed_and_let_go(abandoned: Abandoned) -> None:
    code, rows, told = abandoned.command("ls")
    assert code == 0, told
    (row,) = [row for row in rows if row["sink"] == abandoned.sink]
    # an imported stage is registered until the next driver sweeps
    assert (row["stages"], row["strange"], row["streams"]) == (3, 0, sorted([abandoned.one, abandoned.two]))
    code, row, told = abandoned.command("retire", abandoned.sink, "--dry-run")
    assert code == 0 and row["stages"] == 3, told
    assert all(map(abandoned.is_there, abandoned.left))
    code, done, told = abandoned.command("retire", abandoned.sink)
    assert code == 0, told
    assert (done["epoch"], done["swept"], done["failures"]) == (4, 2, {})
    assert not any(map(abandoned.is_there, abandoned.left)) and abandoned.is_there(abandoned.kept)
    assert abandoned.values(abandoned.one) == [b"row 0"] and abandoned.values(abandoned.two) == []
    code, rows, _ = abandoned.command("ls")
    assert code == 0 and all(row["sink"] != abandoned.sink for row in rows)


def test_a_program_of_it_that_lives_is_shut_out_before_anything_is_deleted(abandoned: Abandoned) -> None:
    assert abandoned.command("retire", abandoned.sink)[0] == 0
    for stream in (abandoned.one, abandoned.two):
        late = abandoned.stage(2, stream)
        with pytest.raises(InvalidRequestError, match="taken over by another program"):
            abandoned.import_segments(2, stream, late)
    code, done, told = abandoned.command("retire", abandoned.sink)
    assert (code, done["epoch"], done["swept"]) == (0, 5, 2), told
    assert abandoned.values(abandoned.one) == [b"row 0"]


@pytest.mark.parametrize("end", ["delete", "seal"])
def test_a_stream_that_is_gone_or_sealed_keeps_nobody(abandoned: Abandoned, end: str) -> None:
    getattr(abandoned.client, end)(abandoned.two)
    code, done, told = abandoned.command("retire", abandoned.sink)
    assert (code, done["swept"], done["failures"]) == (0, 2, {}), told
    assert not any(map(abandoned.is_there, abandoned.left))


def test_what_cannot_be_understood_stays_and_is_counted(abandoned: Abandoned) -> None:
    path = f"{sink_path(abandoned.cluster.running.namespace, abandoned.sink)}/stage-77"

    async def spoil(cluster: Cluster) -> None:
        await cluster.metadata.zookeeper.create(path, b"\xff not json", parents=True)

    async def is_there(cluster: Cluster) -> bool:
        return await cluster.metadata.zookeeper.get(path, fresh=True) is not None

    abandoned.ask(spoil)
    assert abandoned.command("retire", abandoned.sink)[1]["swept"] == 2
    assert abandoned.ask(is_there)
    (row,) = [row for row in abandoned.command("ls")[1] if row["sink"] == abandoned.sink]
    assert (row["stages"], row["strange"]) == (0, 1)


@pytest.mark.parametrize(("name", "said"), [("nobody", "the sink has nothing staged"), (".writes", "sink's name")])
def test_a_name_that_is_nobodys_is_refused(abandoned: Abandoned, name: str, said: str) -> None:
    code, out, told = abandoned.command("retire", name)
    assert code != 0 and out is None and said in told


def test_a_batch_of_nothing_is_remembered_by_its_stream(abandoned: Abandoned) -> None:
    async def work(cluster: Cluster) -> list[Any]:
        async with await proxies_of(cluster, 30.0) as client:
            told = [await client.import_segments(abandoned.two, (), abandoned.batch(number)) for number in (5, 5)]
            with pytest.raises(InvalidRequestError, match="no stage is named, and no batch"):
                await client.import_segments(abandoned.two, ())
            return told

    first, again = abandoned.ask(work)
    assert (first.segments, first.duplicate) == (0, False) and again.duplicate
    late = abandoned.stage(4, abandoned.two)
    assert abandoned.import_segments(4, abandoned.two, late).duplicate, (
        "its batch lies below the one that is remembered"
    )
    assert abandoned.values(abandoned.two) == []
