"""Racks and regions of a whole cluster: a strict policy refuses one rack; with two, every ensemble spans them, whatever
dies. A stream whose records must lie in two of three regions goes on without any one of them, and without two waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

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
        code, _, err = dlog("create", "s", "--min-regions", "2", directory=cluster.directory)
        assert code == 2 and "start bookies with another --region" in err and "regions=1 needed=2" in err

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


def test_a_stream_in_two_of_three_regions_goes_on_without_one_and_waits_without_two(tmp_path: Path) -> None:
    with up(tmp_path / "c", *SMALL, "--bookies", "4", "--regions", "3") as cluster:

        def run(*command: str, given: bytes = b"") -> tuple[int, bytes, str]:
            return dlog(*command, directory=cluster.directory, given=given)

        code, _, err = run("create", "s", "--min-regions", "4")
        assert code == 2 and "choose a larger write quorum or fewer regions" in err
        assert run("create", "s", "--min-regions", "2")[0] == 0
        assert told(cluster, "show", "s")["settings"]["min_regions"] == 2
        assert run("append", "s", given=b"1\n")[0] == 0
        regions = {row["bookie"]: row["region"] for row in told(cluster, "bookie", "ls")}
        members = told(cluster, "cluster", "status")["members"]
        assert [m["region"] for m in members if "proxy" in m["role"]] == ["region-1", "region-1"]
        assert "DLOG_REGION set to one of region-1, region-2, region-3" in cluster.printed.read_text()
        alone = [bookie for bookie, region in regions.items() if list(regions.values()).count(region) == 1]
        assert len(alone) == 2, f"four bookies in three regions: {regions}"
        stopped = [cluster.part("bookie", bookie).pid for bookie in alone]
        try:
            os.kill(stopped[0], signal.SIGSTOP)
            assert run("append", "s", given=b"2\n")[0] == 0
            cluster.wait_restarted(cluster.kill_part("write"))  # the next owner writes the last entries again
            assert run("append", "s", given=b"3\n")[0] == 0
            os.kill(stopped[1], signal.SIGSTOP)
            with pytest.raises(subprocess.TimeoutExpired):  # one region holds it
                dlog("append", "s", directory=cluster.directory, given=b"4\n", timeout_s=3.0)
            assert run("read", "s", "--from-start", "--limit", "3")[1] == b"1\n2\n3\n"
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert run("append", "s", given=b"5\n")[0] == 0
        lines = run("read", "s", "--from-start")[1].splitlines()
        assert lines[:3] == [b"1", b"2", b"3"] and lines[-1] == b"5" and lines[3:-1] in ([], [b"4"])
        policies = {ledger["placement"]["policy"] for ledger in shown(cluster)}
        assert policies == {"region 2 min_regions 2 strict"}


def shown(cluster: Up) -> list[Any]:
    """What `dlog ledger show` tells of each ledger."""
    return [told(cluster, "ledger", "show", str(ledger["ledger"])) for ledger in told(cluster, "ledger", "ls")]
