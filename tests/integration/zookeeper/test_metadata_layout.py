"""What dlog writes into ZooKeeper, read by another client (kazoo), byte by byte as Java documents it."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from dlog.errors import ClusterNotFoundError, ConfigError, DamagedError, Remedy, UnsupportedVersionError
from dlog.events import Event, ZnodeNotReadable
from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.metadata import BookieInfo, ProxyInfo
from dlog.io.metadata_contact import connection_events
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoRightsError, RequestTooLargeError
from dlog.log.changes import ForgetTruncated, MarkTruncated, TruncateTo
from dlog.machine import Conflict, Missing, Versioned
from dlog.model.dlsn import of
from dlog.model.ids import BookieId, EntryId, Epoch, LedgerId, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata, LedgerState
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.quorum import Quorum
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata, Truncation
from dlog.wire.stream_metadata import decode_segment, encode_owner, encode_segment
from tests.deleting import delete_stream
from tests.integration.zookeeper.toxic import Toxic

pytestmark = pytest.mark.zookeeper

NAMESPACE = "/messaging/dlog"
KEY = StreamKey(StreamName("orders"))
R = f"{NAMESPACE}/orders/<default>"
OWNER = Owner(epoch=Epoch(1), proxy=ProxyId("w1"), address="127.0.0.1:8001", claim="c1")
UNREADABLE = [make_acl("world", "anyone", write=True, create=True, delete=True, admin=True)]
LEDGER = LedgerMetadata(
    quorum=Quorum(), fragments=(Fragment(EntryId(0), (BookieId("a"), BookieId("b"), BookieId("c"))),)
)


@pytest.fixture
def kazoo(zookeeper_hosts: str) -> Iterator[KazooClient]:
    client = KazooClient(hosts=zookeeper_hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
async def metadata(zookeeper_hosts: str) -> AsyncIterator[ZooKeeperMetadata]:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as made:
        yield made


def data(kazoo: KazooClient, path: str) -> bytes:
    found: bytes = kazoo.get(path)[0]
    return found


async def written(metadata: ZooKeeperMetadata, value: StreamMetadata, version: object) -> object:
    outcome = await metadata.compare_and_set(KEY, value, version)
    assert isinstance(outcome, Versioned), outcome
    return outcome.version


async def test_a_cluster_is_made_once_however_many_make_it(zookeeper_hosts: str, kazoo: KazooClient) -> None:
    async with asyncio.TaskGroup() as tasks:
        makers = [tasks.create_task(cluster_init(zookeeper_hosts, NAMESPACE), name="init") for _ in range(4)]
    results = [maker.result() for maker in makers]
    assert [sorted(getattr(r, what) for r in results) for what in ("made", "bound")] == [[False] * 3 + [True]] * 2
    assert {r.instance_id for r in results} == {data(kazoo, "/ledgers/INSTANCEID").decode()}
    assert data(kazoo, "/ledgers/LAYOUT") == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert kazoo.get_children("/ledgers/available") == ["readonly"]
    server, _, chroot = zookeeper_hosts.partition("/")
    assert data(kazoo, NAMESPACE).decode() == (
        "1\nBKDL\n"
        f'{{"1":{{"str":"{server}"}},"2":{{"str":"/{chroot}/ledgers"}},"3":{{"tf":0}},"4":{{"tf":0}},'
        f'"5":{{"str":"{server}"}},"6":{{"str":"{server}"}},"7":{{"str":"{server}"}}}}'
    )
    assert data(kazoo, "/messaging") == b""


async def test_a_cluster_is_made_though_the_connection_is_lost_meanwhile(
    zookeeper_hosts: str, kazoo: KazooClient
) -> None:
    async with Toxic(zookeeper_hosts) as toxic, asyncio.TaskGroup() as tasks:
        toxic.silence_after = b"HierarchicalLedgerManagerFactory"  # the transaction arrives, its reply does not
        making = tasks.create_task(cluster_init(toxic.hosts, NAMESPACE, connect_timeout_s=40.0), name="init")
        await toxic.silenced.wait()
        toxic.silence_after, toxic.silence_replies = None, False
        toxic.cut()
    assert making.result().instance_id == data(kazoo, "/ledgers/INSTANCEID").decode()


async def test_a_cluster_is_made_on_a_server_that_is_started_later(own_zookeeper: EmbeddedZooKeeper) -> None:
    await own_zookeeper.start()
    await own_zookeeper.stop()
    async with asyncio.TaskGroup() as tasks:
        making = tasks.create_task(cluster_init(own_zookeeper.hosts, NAMESPACE, connect_timeout_s=40.0), name="init")
        await asyncio.sleep(0)
        await own_zookeeper.start()
    assert making.result().made


async def test_a_cluster_that_differs_is_left_alone(zookeeper_hosts: str, kazoo: KazooClient) -> None:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    with pytest.raises(ConfigError, match="bound to other ledgers"):
        await cluster_init(zookeeper_hosts, NAMESPACE, ledgers_root="/others")
    kazoo.set("/ledgers/LAYOUT", b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1")
    with pytest.raises(UnsupportedVersionError):
        await cluster_init(zookeeper_hosts, NAMESPACE)
    with pytest.raises(UnsupportedVersionError):
        await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE)


async def test_a_second_namespace_is_bound_to_the_cluster_there_is(zookeeper_hosts: str, kazoo: KazooClient) -> None:
    first = await cluster_init(zookeeper_hosts, NAMESPACE)
    kazoo.create("/messaging/empty", b"")
    for namespace in ("/other", "/messaging/empty"):
        second = await cluster_init(zookeeper_hosts, namespace)
        assert (second.instance_id, second.made, second.bound) == (first.instance_id, False, True)
        assert data(kazoo, namespace) == data(kazoo, NAMESPACE)


async def test_without_a_cluster_its_identity_is_not_found(zookeeper_hosts: str) -> None:
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as metadata:
        with pytest.raises(ClusterNotFoundError, match="dlog cluster init"):
            await metadata.instance_id()


async def test_ledgers_lie_where_bookkeeper_puts_them(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    for ledger, path in ((40, "/ledgers/00/0000/L0040"), (6_000_000_000, "/ledgers/000/0000/0060/0000/L0000")):
        key = LedgerKey(LedgerId(ledger))
        first = await metadata.compare_and_set(key, LEDGER, None)
        assert isinstance(first, Versioned)
        assert data(kazoo, path).startswith(b"BookieMetadataFormatVersion\t3\n")
        assert kazoo.exists(path).version == 0
        await metadata.compare_and_set(key, LEDGER.in_recovery(), first.version)
        assert kazoo.exists(path).version == 1
        await metadata.delete(key)
    assert sorted(kazoo.get_children("/ledgers")) == ["INSTANCEID", "LAYOUT", "available"], "empty parents are pruned"


async def test_the_identity_of_a_store_is_recorded_once(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    assert await metadata.read_store_identity("file") is None
    for identity in ("one", "another"):
        await metadata.record_store_identity("file", identity)
        assert await metadata.read_store_identity("file") == "one"
    assert data(kazoo, f"{NAMESPACE}/.stores/file") == b"one"
    assert ".stores" not in await metadata.streams()


async def test_a_create_that_took_place_unheard_is_known_by_its_token(metadata: ZooKeeperMetadata) -> None:
    key, ours = LedgerKey(LedgerId(1)), replace(LEDGER, ctoken=77)
    assert isinstance(await metadata.compare_and_set(key, ours, None), Versioned)
    assert isinstance(await metadata.compare_and_set(key, ours, None), Versioned)
    assert await metadata.compare_and_set(key, replace(LEDGER, ctoken=78), None) == Conflict()
    assert await metadata.compare_and_set(key, LEDGER, None) == Conflict()


async def test_ids_come_from_the_sequence_and_from_the_long_one_when_it_is_there(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    assert [await metadata.new_ledger_id() for _ in range(2)] == [0, 1]
    assert await metadata.new_ledger_id(ahead=5) == 6, "a jump past ids that are in use"
    assert await metadata.new_ledger_id() == 7
    assert kazoo.get_children("/ledgers/idgen") == []
    kazoo.create("/ledgers/idgen-long/HOB-0000000001", makepath=True)
    assert [await metadata.new_ledger_id() for _ in range(2)] == [2**32, 2**32 + 1]
    assert await metadata.new_ledger_id(ahead=2048) == 2**32 + 2049
    kazoo.create("/ledgers/idgen-long/HOB-0000000007")
    assert await metadata.new_ledger_id() == 7 << 32


async def test_an_id_that_nobody_waited_for_leaves_no_znode(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    async def cancelled(answers: int, ahead: int) -> None:
        """answers: answers that the session gets meanwhile; one before the first znode is created, or two where parents
        are missing."""
        async with asyncio.TaskGroup() as group:
            call = group.create_task(metadata.new_ledger_id(ahead=ahead), name="new id")
            for _ in range(answers):
                await metadata.zookeeper.exists("/")
            call.cancel()

    for answers in range(6):
        await cancelled(answers, 1 + answers % 2)
    last = await metadata.new_ledger_id()
    assert last > 0, "some of those that were cancelled had made znodes"
    assert kazoo.get_children("/ledgers/idgen") == []
    kazoo.create("/ledgers/idgen-long/HOB-0000000001", makepath=True)
    for answers in range(6):
        await cancelled(answers, 1 + answers % 2)
    await metadata.new_ledger_id()
    assert kazoo.get_children("/ledgers/idgen-long/HOB-0000000001") == []


async def test_registrations_are_bookkeepers(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    info = BookieInfo(BookieId("127.0.0.1:33181"), "127.0.0.1", 33181)
    session = metadata.zookeeper.session_id
    expected = bytes.fromhex("3223 0a06") + b"bookie" + bytes.fromhex("109d8302 1a09") + b"127.0.0.1"
    expected += bytes.fromhex("220a") + b"bookie-rpc"
    await metadata.register_bookie(info)
    found, stat = kazoo.get("/ledgers/available/127.0.0.1:33181")
    assert (found, stat.ephemeralOwner) == (expected, session)
    await metadata.register_bookie(info, readonly=True)
    assert kazoo.get_children("/ledgers/available") == ["readonly"]
    assert kazoo.get_children("/ledgers/available/readonly") == ["127.0.0.1:33181"]
    await metadata.write_cookie(info.bookie, "5\nbookieHost: x\n", None)
    assert data(kazoo, "/ledgers/cookies/127.0.0.1:33181") == b"5\nbookieHost: x\n"
    await metadata.register_proxy(ProxyInfo(ProxyId("w1"), "write", "127.0.0.1:8001"))
    assert data(kazoo, f"{NAMESPACE}/.proxies/write/w1") == b'{"address":"127.0.0.1:8001"}'
    placed = ProxyInfo(ProxyId("r1"), "read", "127.0.0.1:8002", location=NetworkLocation("eu-1", "r2"))
    await metadata.register_proxy(placed)
    assert data(kazoo, f"{NAMESPACE}/.proxies/read/r1") == b'{"address":"127.0.0.1:8002","location":"/eu-1/r2"}'
    for number, location in enumerate(("7", '"no location"', '"/eu/r/1"', "null")):
        told = f'{{"address":"h:1","location":{location}}}'.encode()
        kazoo.create(f"{NAMESPACE}/.proxies/read/other{number}", told)
    found = (await metadata.members()).read_proxies
    assert found.pop(placed.proxy) == placed
    assert {info.location for info in found.values()} == {DEFAULT_LOCATION} and len(found) == 4
    assert await metadata.streams() == [], "what begins with a dot is no stream"


async def test_a_bookie_that_is_moved_to_another_rack_is_seen_there(metadata: ZooKeeperMetadata) -> None:
    info = BookieInfo(BookieId("b:1"), "b", 1)
    for location in (NetworkLocation("eu", "r1"), NetworkLocation("eu", "r2"), DEFAULT_LOCATION):
        await metadata.register_bookie(replace(info, location=location))
        assert (await metadata.members()).writable == {info.bookie: replace(info, location=location)}
        await metadata.unregister_bookie(info.bookie)
    await metadata.register_bookie(replace(info, location=NetworkLocation("us", "r1")))
    await metadata.register_bookie(info)
    assert (await metadata.members()).writable == {info.bookie: info}, "without being away in between"


async def test_a_java_bookie_without_an_endpoint_is_no_member(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    kazoo.create("/ledgers/available/legacy:3181", b"")
    kazoo.create("/ledgers/available/broken", b"\xff\xff")
    members = await metadata.members()
    assert members.writable == {"legacy:3181": BookieInfo(BookieId("legacy:3181"), "legacy", 3181)}


async def test_a_stream_is_distributedlogs_and_three_znodes_more(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    value = StreamMetadata(name=KEY.stream)
    await written(metadata, value, None)
    assert kazoo.get_children(f"{NAMESPACE}/orders") == ["<default>"]
    found = {name: data(kazoo, f"{R}/{name}") for name in kazoo.get_children(R)}
    (incarnation,) = (name for name in found if name.startswith("life-"))
    assert found.pop(incarnation) == b""
    owner = json.loads(found.pop("owner"))
    assert (owner["epoch"], "life-" + owner["life"]) == (0, incarnation)
    assert found.pop("settings").startswith(b'{"store":"ledger",')
    assert found == {
        "maxtxid": b"0",
        "version": b"\xff\xff\xff\xff",
        "lock": b"",
        "readLock": b"",
        "ledgers": b"0",
        "allocation": b"",
    }


async def test_the_life_of_a_segment_as_distributedlog_writes_it(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    value = StreamMetadata(name=KEY.stream)
    version = await written(metadata, value, None)
    value = replace(value, allocated="9")
    version = await written(metadata, value, version)
    assert data(kazoo, f"{R}/allocation") == b"9"
    segment = Segment(number=SegmentNumber(1), name="9", first_txid=Txid(1000))
    value = replace(value.with_segment(segment), allocated="")
    version = await written(metadata, value, version)
    assert (data(kazoo, f"{R}/allocation"), kazoo.exists(f"{R}/allocation").version) == (b"", 2)
    assert (data(kazoo, f"{R}/ledgers"), kazoo.exists(f"{R}/ledgers").version) == (b"1", 1)
    assert kazoo.get_children(f"{R}/ledgers") == ["inprogress_000000000000000001"]
    assert data(kazoo, f"{R}/ledgers/inprogress_000000000000000001") == b"5;9;1000;1;0;0;-1"
    done = replace(
        segment,
        completed=True,
        last_txid=Txid(1041),
        last_entry=EntryId(1),
        last_slot=0,
        record_count=2,
        completed_unix_ms=1795167475756,
        start_sequence_id=6,
    )
    version = await written(metadata, replace(value.with_segment(done), max_txid=Txid(1041)), version)
    assert kazoo.get_children(f"{R}/ledgers") == ["logrecs_000000000000000001"]
    assert data(kazoo, f"{R}/ledgers/logrecs_000000000000000001") == b"8589934597;9;1000;1041;1795167475756;1;1;0;0;0;6"
    assert (data(kazoo, f"{R}/ledgers"), kazoo.exists(f"{R}/ledgers").version) == (b"1", 2)
    assert data(kazoo, f"{R}/maxtxid") == b"1041"


async def test_a_claim_takes_the_lock_from_whoever_has_it(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    version = await written(metadata, StreamMetadata(name=KEY.stream), None)
    for client in ("holder", "waiter"):
        kazoo.create(f"{R}/lock/member_{client}_s72057688474976278_", client.encode(), ephemeral=True, sequence=True)
    value = StreamMetadata(name=KEY.stream, owner=OWNER)
    version = await written(metadata, value, version)
    session = metadata.zookeeper.session_id
    (member,) = kazoo.get_children(f"{R}/lock")
    assert re.fullmatch(rf"member_1%3B0%3B127\.0\.0\.1%3A8001_s{session}_\d{{10}}", member)
    found, stat = kazoo.get(f"{R}/lock/{member}")
    assert (found, stat.ephemeralOwner) == (b"1;0;127.0.0.1:8001", session)
    version = await written(metadata, replace(value, allocated="3"), version)
    assert kazoo.get_children(f"{R}/lock") == [member], "only a claim moves it"
    await written(metadata, replace(value, allocated="3", owner=replace(OWNER, released=True)), version)
    assert kazoo.get_children(f"{R}/lock") == []


def make_as_java_does(kazoo: KazooClient) -> None:
    kazoo.ensure_path(f"{NAMESPACE}/orders")
    for name, content in (
        ("", b""),
        ("/maxtxid", b"41"),
        ("/version", b"\xff" * 4),
        ("/lock", b""),
        ("/readLock", b""),
    ):
        kazoo.create(R + name, content)
    kazoo.create(f"{R}/ledgers", b"2")


async def test_a_stream_made_by_java_is_read_and_taken_over(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    make_as_java_does(kazoo)
    kazoo.create(f"{R}/ledgers/logrecs_000000000000000001", b"34359738373;11;1000;1041;1795167342520;1;0;8;0;0;0")
    kazoo.create(f"{R}/ledgers/inprogress_000000000000000002", b"5;12;1042;2;0;0;-1")
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    value = read.value
    assert (value.owner, value.allocated, value.max_segment, value.max_txid) == (Owner(), "", 2, 41)
    assert [(s.number, s.name, s.completed, s.record_count) for s in value.segments] == [
        (1, "11", True, 8),
        (2, "12", False, 0),
    ]
    version = await written(metadata, replace(value, owner=OWNER, allocated="13"), read.version)
    assert data(kazoo, f"{R}/allocation") == b"13"
    assert await metadata.compare_and_set(KEY, replace(value, allocated="14"), read.version) == Conflict()
    kazoo.set(f"{R}/ledgers", b"2")  # as a Java writer does whenever it starts or completes a segment
    assert await metadata.compare_and_set(KEY, replace(value, owner=OWNER), version) == Conflict()


async def test_a_stream_that_java_made_anew_takes_no_change_of_the_one_before(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    make_as_java_does(kazoo)
    kazoo.create(f"{R}/ledgers/inprogress_000000000000000001", b"5;11;1042;1;0;0;-1")
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    kazoo.delete(f"{NAMESPACE}/orders", recursive=True)
    make_as_java_does(kazoo)
    kazoo.create(f"{R}/ledgers/inprogress_000000000000000001", b"5;12;1042;1;0;0;-1")
    claimed = replace(read.value, owner=OWNER)
    assert await metadata.compare_and_set(KEY, claimed, read.version) == Conflict()
    again = await metadata.read(KEY)
    assert isinstance(again, Versioned)
    assert (again.value.owner, [s.name for s in again.value.segments]) == (Owner(), ["12"])
    await written(metadata, replace(again.value, owner=OWNER), again.version)


async def test_a_change_behind_our_back_to_one_segment_is_seen(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    done = Segment(
        number=SegmentNumber(1), name="9", first_txid=Txid(0), completed=True, record_count=12, start_sequence_id=0
    )
    await written(metadata, StreamMetadata(name=KEY.stream).with_segment(done), None)
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    path = f"{R}/ledgers/logrecs_000000000000000001"
    kazoo.set(path, data(kazoo, path).replace(b"51539607557", b"51539608069"))
    again = await metadata.read(KEY)
    assert isinstance(again, Versioned)
    assert [s.truncation.name for s in again.value.truncated] == ["TRUNCATED"]
    assert again.value.segments == ()
    assert await metadata.compare_and_set(KEY, read.value.without_segment(1), read.version) == Conflict()
    kazoo.create(f"{R}/ledgers/something_else", b"?")
    kazoo.delete(path)
    gone = await metadata.read(KEY)
    assert isinstance(gone, Versioned)
    assert gone.value.listed == ()


async def test_truncating_many_segments_is_one_small_change(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    """More than one multi could mark. The truncation point is stored with the owner; the segments that Java reads are
    marked in portions."""
    await written(metadata, StreamMetadata(name=KEY.stream, owner=OWNER), None)
    read = await metadata.read(KEY)
    for first in range(1, 12_000, 2000):
        assert isinstance(read, Versioned)
        more = (ended_segment(number) for number in range(first, first + 2000))
        value = replace(read.value, segments=(*read.value.segments, *more))
        read = await metadata.compare_and_set(KEY, value, read.version)
    assert isinstance(read, Versioned)
    truncated = TruncateTo(of(11_900, 0, 0)).apply(read.value)
    changed = await metadata.compare_and_set(KEY, truncated, read.version)
    assert isinstance(changed, Versioned) and changed.value == truncated
    assert json.loads(data(kazoo, f"{R}/owner"))["trim"] == 11_900
    other = await metadata.read(KEY)
    assert isinstance(other, Versioned)
    assert (len(other.value.truncated), other.value.segments[0].number) == (11_899, 11_900)
    marked = await metadata.compare_and_set(KEY, MarkTruncated(SegmentNumber(200)).apply(other.value), other.version)
    assert isinstance(marked, Versioned)
    assert parse(kazoo, 200).truncation is Truncation.TRUNCATED
    assert parse(kazoo, 201).truncation is Truncation.ACTIVE
    forgotten = ForgetTruncated(SegmentNumber(200)).apply(marked.value)
    outcome = await metadata.compare_and_set(KEY, forgotten, marked.version)
    assert isinstance(outcome, Versioned)
    again = await metadata.read(KEY)
    assert isinstance(again, Versioned)
    assert again.value == outcome.value == forgotten
    assert not kazoo.exists(f"{R}/ledgers/logrecs_{200:018d}")


async def test_a_change_that_zookeeper_will_never_take_is_refused_and_not_unknown(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    await written(metadata, StreamMetadata(name=KEY.stream, owner=OWNER), None)
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    large = replace(read.value, segments=tuple(ended_segment(number) for number in range(1, 10_000)))
    with pytest.raises(RequestTooLargeError) as too_large:
        await metadata.compare_and_set(KEY, large, read.version)
    assert too_large.value.remedy is Remedy.FIX
    kazoo.set_acls(f"{R}/owner", [make_acl("world", "anyone", read=True)])
    with pytest.raises(NoRightsError) as forbidden:
        await metadata.compare_and_set(KEY, replace(read.value, allocated="7"), read.version)
    assert forbidden.value.remedy is Remedy.FIX and f"{R}/owner" in forbidden.value.message
    again = await metadata.read(KEY)
    assert isinstance(again, Versioned) and again.value == read.value


async def test_a_number_that_could_not_be_read_again_is_not_written(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    made = await metadata.compare_and_set(KEY, StreamMetadata(name=KEY.stream, owner=OWNER), None)
    assert isinstance(made, Versioned)
    last = encode_owner(replace(OWNER, epoch=Epoch(2**63 - 1)), made.value.incarnation)
    kazoo.set(f"{R}/owner", last)
    kazoo.set(f"{R}/ledgers", str(10**18).encode())
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    claimed = replace(read.value, owner=replace(OWNER, epoch=Epoch(read.value.owner.epoch + 1)))
    with pytest.raises(DamagedError, match="the owner epoch is too large to be stored"):
        await metadata.compare_and_set(KEY, claimed, read.version)
    number = read.value.next_number()
    with pytest.raises(DamagedError, match="the segment number is too large to be stored"):
        started = read.value.with_segment(Segment(number=number, name="7", first_txid=Txid(1)))
        await metadata.compare_and_set(KEY, started, read.version)
    assert data(kazoo, f"{R}/owner") == last and kazoo.get_children(f"{R}/ledgers") == []
    assert await metadata.read(KEY) == read


async def test_a_registration_that_may_not_be_read_is_no_member_and_is_told_once(
    metadata: ZooKeeperMetadata, kazoo: KazooClient, zookeeper_hosts: str
) -> None:
    await metadata.register_proxy(ProxyInfo(ProxyId("w1"), "write", "127.0.0.1:8001"))
    await metadata.register_bookie(BookieInfo(BookieId("b:1"), "b", 1))
    strangers = [f"{NAMESPACE}/.proxies/write/stranger", "/ledgers/available/h:1"]
    for path in strangers:
        kazoo.create(path, b"", acl=UNREADABLE)
    async with await ZooKeeperMetadata.connect(zookeeper_hosts, NAMESPACE) as started_later:
        told: list[Event] = []
        for connected in (metadata, started_later):
            with connection_events(connected, told.append):
                for _ in range(2):
                    members = await connected.members()
                    assert set(members.write_proxies) == {ProxyId("w1")} and set(members.writable) == {BookieId("b:1")}
    assert Counter(told) == Counter(2 * [ZnodeNotReadable(path) for path in strangers]), "once by each process"


async def test_a_stream_that_may_not_be_read_hides_no_other_from_a_list_of_heads(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    names = [StreamName(name) for name in ("orders", "other", "third")]
    for name in names:
        made = await metadata.compare_and_set(StreamKey(name), StreamMetadata(name=name, owner=OWNER), None)
        assert isinstance(made, Versioned)
    secret = [f"{NAMESPACE}/orders/<default>/owner", f"{NAMESPACE}/third/<default>/settings"]
    for path in secret:
        kazoo.set_acls(path, UNREADABLE)
    told: list[Event] = []
    with connection_events(metadata, told.append):
        assert [head and head.owner for head in await metadata.stream_heads(names)] == [None, OWNER, None]
        assert told == [ZnodeNotReadable(path) for path in secret]
        with pytest.raises(NoRightsError):
            await metadata.read(KEY)  # not a stream without an owner
        kazoo.set_acls(secret[0], OPEN_ACL_UNSAFE)
        assert [head and head.owner for head in await metadata.stream_heads(names)] == [OWNER, OWNER, None]
        kazoo.set_acls(secret[0], UNREADABLE)
        await metadata.stream_heads(names)
    assert told == [ZnodeNotReadable(path) for path in (*secret, secret[0])]


def ended_segment(number: int) -> Segment:
    return Segment(
        number=SegmentNumber(number),
        name=str(number),
        first_txid=Txid(number),
        completed=True,
        last_entry=EntryId(3),
        last_slot=0,
    )


def parse(kazoo: KazooClient, number: int) -> Segment:
    name = f"logrecs_{number:018d}"
    return decode_segment(name, data(kazoo, f"{R}/ledgers/{name}"))


async def test_segments_that_java_truncated_may_not_be_read_and_one_in_progress_may(
    metadata: ZooKeeperMetadata, kazoo: KazooClient
) -> None:
    """Java marks each segment, up to the last one too, and keeps no truncation point."""
    done = Segment(
        number=SegmentNumber(1), name="9", first_txid=Txid(0), completed=True, truncation=Truncation.TRUNCATED
    )
    make_as_java_does(kazoo)
    for number in (1, 2):
        stored = encode_segment(replace(done, number=SegmentNumber(number)))
        kazoo.create(f"{R}/ledgers/logrecs_{number:018d}", stored)
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    assert (numbers(read.value.truncated), numbers(read.value.segments)) == ([1, 2], [])
    assert (read.value.next_number(), read.value.first_dlsn) == (3, of(3, 0, 0))
    opened = Segment(number=SegmentNumber(3), name="11", first_txid=Txid(7), truncation=Truncation.TRUNCATED)
    kazoo.create(f"{R}/ledgers/inprogress_{3:018d}", encode_segment(opened))
    read = await metadata.read(KEY)
    assert isinstance(read, Versioned)
    assert (numbers(read.value.truncated), numbers(read.value.segments)) == ([1, 2], [3])


def numbers(segments: tuple[Segment, ...]) -> list[int]:
    return [s.number for s in segments]


async def test_a_deleted_stream_leaves_nothing(metadata: ZooKeeperMetadata, kazoo: KazooClient) -> None:
    segments = tuple(Segment(number=SegmentNumber(n), name=str(n), first_txid=Txid(0)) for n in range(1, 1200))
    await written(metadata, StreamMetadata(name=KEY.stream, owner=OWNER, segments=segments), None)
    kazoo.create(f"{R}/subscribers/me/readLock", makepath=True)
    await delete_stream(metadata, KEY.stream)
    assert kazoo.get_children(NAMESPACE) == [".deletions"]
    assert await metadata.read(KEY) == Missing()


async def test_ledger_metadata_survives_the_way_there_and_back(metadata: ZooKeeperMetadata) -> None:
    value = replace(LEDGER, state=LedgerState.CLOSED, last_entry=EntryId(7), length=123, custom=(("app", b"x"),))
    await metadata.compare_and_set(LedgerKey(LedgerId(3)), value, None)
    read = await metadata.read(LedgerKey(LedgerId(3)))
    assert isinstance(read, Versioned)
    assert read.value == value
