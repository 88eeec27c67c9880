import errno
import os
import pwd
import random
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.cli.output import CommandError
from dlog.cli.plan import Plan, UpOptions, check_ports, make_plan, plan_for_bookies, read_plan, write_plan
from dlog.errors import ConfigError
from tests.unprivileged import modes_count


def plan_of(directory: Path, **options: int | str) -> Plan:
    return make_plan(directory, UpOptions(**options), random.Random(1))  # type: ignore[arg-type]


def test_the_first_plan_has_the_defaults_and_distinct_ports(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert (len(plan.bookies), len(plan.write), len(plan.read)) == (3, 2, 2)
    ports = [port for _, port in plan.addresses()]
    assert len(set(ports)) == 8
    check_ports(plan)


def test_the_next_plan_is_the_one_that_was_kept(tmp_path: Path) -> None:
    first = plan_of(tmp_path, bookies=4, read_proxies=1)
    write_plan(tmp_path, first)
    assert read_plan(tmp_path) == first
    assert plan_of(tmp_path) == first


def test_a_plan_that_did_not_change_needs_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan_of(tmp_path)
    write_plan(tmp_path, first)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    write_plan(tmp_path, first)
    with pytest.raises(OSError, match="No space left"):
        write_plan(tmp_path, replace(first, bookies=first.bookies[:1]))
    assert read_plan(tmp_path) == first


def test_parts_may_be_added_and_proxies_removed(tmp_path: Path) -> None:
    first = plan_of(tmp_path)
    write_plan(tmp_path, first)
    more = plan_of(tmp_path, bookies=4, write_proxies=1)
    assert more.bookies[:3] == first.bookies
    assert more.write == first.write[:1]
    assert more.read == first.read


@pytest.mark.parametrize("heap_mib", [-1, 15])
def test_a_heap_too_small_for_zookeeper_is_refused(heap_mib: int) -> None:
    with pytest.raises(ValueError, match="at least 16"):
        UpOptions(zookeeper_heap_mib=heap_mib)
    assert UpOptions(zookeeper_heap_mib=16).zookeeper_heap_mib == 16


def test_bookies_may_not_be_left_out(tmp_path: Path) -> None:
    write_plan(tmp_path, plan_of(tmp_path))
    with pytest.raises(CommandError, match="3 bookies"):
        plan_of(tmp_path, bookies=2)


def test_a_cluster_without_bookies_stays_so_until_it_is_given_some(tmp_path: Path) -> None:
    first = plan_of(tmp_path, bookies=0)
    assert (first.bookies, len(first.write), len(first.read)) == ([], 2, 2)
    write_plan(tmp_path, first)
    assert plan_of(tmp_path) == first, "nothing said: as it was"
    grown = plan_of(tmp_path, bookies=3)
    assert len({*grown.bookies, *(port for _, port in first.addresses())}) == 8, "ports of their own"
    assert (grown.write, grown.read, grown.zookeeper_port) == (first.write, first.read, first.zookeeper_port)
    write_plan(tmp_path, grown)
    assert plan_of(tmp_path) == grown
    with pytest.raises(CommandError, match="3 bookies") as caught:
        plan_of(tmp_path, bookies=0)
    assert "--bookies 3" in caught.value.next_step


def test_the_address_of_the_topics_is_kept_and_may_change(tmp_path: Path) -> None:
    write_plan(tmp_path, plan_of(tmp_path, bookies=0))
    assert "kafka" not in (tmp_path / "cluster.json").read_text(), "a version without streams on Kafka reads it"
    for given, kept in (("k1:9092,k2:9092", "kafka://k1:9092,k2:9092"), ("", "kafka://k1:9092,k2:9092")):
        plan = plan_of(tmp_path, kafka=given)
        assert plan.kafka == kept
        write_plan(tmp_path, plan)
    assert plan_of(tmp_path, kafka="file:///topics/").kafka == "file:///topics"
    for wrong in ("k1", "k1:port", "file://topics", "s3://bucket/topics", "file:///a\nb"):
        with pytest.raises(ConfigError, match="not an address of"):
            plan_of(tmp_path, kafka=wrong)


def test_topics_and_objects_inside_the_directory_are_found_again_where_it_was_moved(tmp_path: Path) -> None:
    directory, moved, link = tmp_path / "a b", tmp_path / "moved #1", tmp_path / "link"
    directory.mkdir()
    link.symlink_to(directory)
    for base in (directory, link):
        for inside in ("", "/deep/er"):
            address = f"file://{base}/x{inside}"
            write_plan(base, plan_of(base, kafka=address, objects=address))
            directory.rename(moved)
            plan = read_plan(moved)
            assert plan is not None
            assert plan.kafka == f"file://{moved}/x{inside}"
            assert plan.objects == f"file://{tmp_path}/moved%20%231/x{inside}"
            moved.rename(directory)
    write_plan(link, plan_of(link, kafka=f"file://{directory}/x", objects=f"file://{directory}"))
    plan = read_plan(link)
    assert plan is not None and plan.kafka == f"file://{link}/x" and plan.objects == f"file://{link}"
    for outside in (f"file://{directory}s/x", f"file://{tmp_path}"):
        write_plan(directory, plan_of(directory, kafka=outside, objects=outside))
        plan = read_plan(directory)
        assert plan is not None
        assert (plan.kafka, plan.objects.replace("%20", " ")) == (outside, outside)


def test_the_root_of_the_objects_is_kept_and_may_change(tmp_path: Path) -> None:
    write_plan(tmp_path, plan_of(tmp_path, bookies=0))
    assert "objects" not in (tmp_path / "cluster.json").read_text(), "a version without this store reads it"
    for given, kept in (("s3://logs/x/", "s3://logs/x"), ("", "s3://logs/x"), ("file:///a b", "file:///a%20b")):
        plan = plan_of(tmp_path, objects=given)
        assert plan.objects == kept
        write_plan(tmp_path, plan)
    for wrong in ("logs", "s3://", "file://objects", "hdfs://host/x", "file:///a\nb", "file:///50%"):
        with pytest.raises(ConfigError, match="invalid object location"):
            plan_of(tmp_path, objects=wrong)


def test_bookies_are_spread_over_racks_and_regions_in_turns(tmp_path: Path) -> None:
    write_plan(tmp_path, plan_of(tmp_path))
    assert "racks" not in (tmp_path / "cluster.json").read_text(), "a version without racks reads it"
    assert plan_of(tmp_path).location_of(1) == ("", "")
    plan = plan_of(tmp_path, bookies=5, racks=2)
    assert [plan.location_of(n) for n in range(1, 6)] == [(f"rack-{rack}", "") for rack in (1, 2, 1, 2, 1)]
    write_plan(tmp_path, plan)
    plan = plan_of(tmp_path, regions=2)
    found = [plan.location_of(n) for n in range(1, 6)]
    assert found == [(f"rack-{rack}", f"region-{region}") for rack, region in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 1))]
    assert plan.region_names == ["region-1", "region-2"]


def test_each_region_has_proxies_at_the_first_start(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, regions=3)
    assert (len(plan.write), len(plan.read)) == (3, 3)
    write_plan(tmp_path, plan)
    plan = plan_of(tmp_path, regions=4)
    assert (len(plan.write), len(plan.read)) == (3, 3), "as before"
    assert len(plan_of(tmp_path, regions=4, write_proxies=1).write) == 1


def test_numbers_of_processes_have_bounds() -> None:
    for name, least in (("bookies", -1), ("racks", 0), ("regions", 0), ("write_proxies", 0), ("read_proxies", 0)):
        for value in (least, 64):
            UpOptions(**{name: value})  # type: ignore[arg-type]  # mypy cannot see which option it is
        for value in (least - 1, 65):
            with pytest.raises(ValueError, match=name):
                UpOptions(**{name: value})  # type: ignore[arg-type]


def test_ports_follow_the_one_that_is_given_and_bookies_keep_theirs(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, port=7400)
    assert (plan.write, plan.read, plan.bookies) == ([7400, 7401], [7402, 7403], [7404, 7405, 7406])
    assert plan.zookeeper_port == 7407
    write_plan(tmp_path, plan)
    moved = plan_of(tmp_path, port=7500)
    assert (moved.write, moved.read, moved.bookies) == ([7500, 7501], [7502, 7503], plan.bookies)
    assert plan_of(tmp_path, port=7400) == plan


def test_an_outside_zookeeper_is_kept_and_cannot_be_exchanged(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, zookeeper="zk:2181")
    assert plan.zookeeper_hosts == "zk:2181"
    assert "zookeeper" not in dict(plan.addresses())
    write_plan(tmp_path, plan)
    with pytest.raises(CommandError, match="another ZooKeeper"):
        plan_of(tmp_path, zookeeper="other:2181")


def test_a_taken_port_is_told_with_what_to_do(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    with (
        socket.create_server(("127.0.0.1", plan.write[0])),
        pytest.raises(CommandError, match="port of a write") as caught,
    ):
        check_ports(plan)
    assert "--port" in caught.value.next_step


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "h"}', '{"no": 1}'])
def test_a_plan_that_cannot_be_read_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(CommandError, match="cannot read the plan"):
        read_plan(tmp_path)


def test_a_plan_that_the_user_may_not_read_is_told_with_its_owner(tmp_path: Path) -> None:
    write_plan(tmp_path, plan_of(tmp_path))
    (tmp_path / "cluster.json").chmod(0)
    with modes_count(), pytest.raises(CommandError, match="permission denied") as caught:
        read_plan(tmp_path)
    assert str(tmp_path / "cluster.json") in caught.value.message
    assert f"as {pwd.getpwuid(os.geteuid()).pw_name}, who owns the file" in caught.value.next_step


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"host": "0.0.0.0"}),
        ({"host": "0.0.0.0"}, {"host": "127.0.0.1"}),
        ({}, {"namespace": "/other"}),
        ({"namespace": "/other"}, {"namespace": "/dlog"}),
        ({}, {"zookeeper": "zk:2181"}),
        ({"zookeeper": "zk:2181"}, {"zookeeper": "other:2181"}),
        ({"bookies": 3}, {"bookies": 2}),
    ],
)
def test_what_a_directory_has_is_kept_and_what_contradicts_it_is_refused(
    first: dict[str, int | str], then: dict[str, int | str], tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, **first)
    write_plan(tmp_path, plan)
    assert plan_of(tmp_path) == plan, "nothing said: as it was"
    assert plan_of(tmp_path, **first) == plan, "the same said again"
    with pytest.raises(CommandError, match="this directory"):
        plan_of(tmp_path, **then)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"namespace": "/dlog/"}),
        ({"namespace": "/other/"}, {"namespace": "/other"}),
        ({"zookeeper": "zk:2181,zl:2181"}, {"zookeeper": "zl;zk:2181/"}),
        ({"zookeeper": "zk:2181/chroot"}, {"zookeeper": "zk/chroot/"}),
    ],
)
def test_another_spelling_is_no_contradiction(first: dict[str, str], then: dict[str, str], tmp_path: Path) -> None:
    plan = plan_of(tmp_path, **first)
    assert plan.namespace in ("/dlog", "/other")
    write_plan(tmp_path, plan)
    assert plan_of(tmp_path, **then) == plan


def test_before_bookies_start_only_what_they_need_is_kept(tmp_path: Path) -> None:
    wrong = plan_of(tmp_path, objects="s3://wrong/x", kafka="k:1", racks=2, namespace="/mine", zookeeper="zk:1")
    early = plan_for_bookies(None, wrong)
    assert (early.bookies, early.zookeeper, early.namespace) == (wrong.bookies, "zk:1", "/mine")
    assert (early.objects, early.kafka, early.racks, early.write) == ("", "", 0, [])
    write_plan(tmp_path, early)
    right = plan_of(tmp_path)
    assert (right.bookies, right.objects, len(right.write), len(right.read)) == (wrong.bookies, "", 2, 2)
    write_plan(tmp_path, right)
    wrong = plan_of(tmp_path, bookies=4, objects="s3://wrong/x", regions=2, write_proxies=1)
    assert plan_for_bookies(right, wrong) == replace(right, bookies=wrong.bookies)


@pytest.mark.parametrize("host", ["a..b", "203.0.113.1", "no-such-host.invalid", "[h]"])
def test_a_host_that_cannot_be_listened_on_is_told(host: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot listen on this host") as caught:
        plan_of(tmp_path, host=host)
    assert "--host" in caught.value.next_step


def test_ports_that_would_end_above_the_last_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="above 65535"):
        plan_of(tmp_path, port=65530)


def test_a_namespace_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="znode path"):
        plan_of(tmp_path, namespace="relative")
