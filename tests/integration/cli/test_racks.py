"""Racks of a whole cluster: a strict policy refuses one rack; with two, every ensemble spans them, whatever dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.cli.up import Up, dlog, up

SMALL = ("--write-proxies", "1", "--read-proxies", "1")
POLICY = '[ledger]\nplacement = "rack"\nplacement_strict = true\n'


def told(cluster: Up, *command: str) -> Any:
    code, out, err = dlog(*command, "--json", directory=cluster.directory)
    assert code == 0, err
    return json.loads(out)


def test_one_rack_is_refused_and_two_are_spanned_by_every_ensemble(tmp_path: Path) -> None:
    config = tmp_path / "dlog.toml"
    config.write_text(POLICY)
    with up(tmp_path / "c", *SMALL, "--bookies", "3", "--config", str(config)) as cluster:
        code, _, err = dlog("create", "s", directory=cluster.directory)
        assert code == 2 and "start bookies with another --rack" in err and "racks=1 needed=2" in err
        assert {row["rack"] for row in told(cluster, "bookie", "ls")} == {"default-rack"}

    with up(tmp_path / "c", *SMALL, "--bookies", "4", "--racks", "2", "--config", str(config)) as cluster:
        racks = {row["bookie"]: row["rack"] for row in told(cluster, "bookie", "ls")}
        assert sorted(racks.values()) == ["rack-1", "rack-1", "rack-2", "rack-2"]
        members = told(cluster, "cluster", "status")["members"]
        assert {m["id"]: m["rack"] for m in members if m["role"] == "bookie"} == racks
        for number, bookie in enumerate(("", *sorted(racks)[:2])):
            if bookie:
                cluster.wait_restarted(cluster.kill_part("bookie", bookie))
            code, _, err = dlog(
                "append", "s", *([] if number else ["--create"]), directory=cluster.directory, given=b"x\n"
            )
            assert code == 0, err
        ledgers = told(cluster, "ledger", "ls")
        assert ledgers
        for ledger in ledgers:
            for fragment in ledger["fragments"]:
                assert len({racks[bookie] for bookie in fragment["bookies"]}) == 2
            placement = told(cluster, "ledger", "show", str(ledger["ledger"]))["placement"]
            assert placement == {"policy": "rack strict", "kept": True, "wrong": {}}
        explained = told(cluster, "explain", "s", "1:0:0")
        assert explained["placement"] == "rack strict: kept by every ensemble"
