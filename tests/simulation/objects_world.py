"""The simulation `objects`: a chain of chunks on a model of an object storage, with its writer, recoveries and readers.

The machines are those of dlog/objects/chain.py, the bytes those of dlog/wire/chunk.py. The storage carries out a
request to create a chunk late, twice or never, and loses answers; what a lost answer means is found out as
dlog/stores/object_storage/creating.py does. Every process may die between two events.

Styles of plan:
- "swarm": a writer, recoveries, searches for the tail and followers, with all faults;
- "long": a chain of hundreds of chunks and short pages of its listings, with few faults;
- "fenced": recoveries begin while the writer has many chunks in flight, which land late;
- "lost": another program deletes a chunk that was confirmed, and is known to be by a chunk above it;
- "deleted": the segment is deleted, by processes that die at any step, while its writer is frozen, and is read;
- "merged": chunks are merged, by processes that die at any step, and the segment may be deleted meanwhile.

The invariants C1 to C13 are in invariants.py.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dlog.errors import DamagedError
from dlog.objects.chain import (
    AHEAD,
    IN_FLIGHT_MAX,
    Begun,
    ChainFollower,
    ChainTail,
    ChainWriter,
    ChunkPut,
    ChunksFound,
    Confirmed,
    CreateChunk,
    EntryAppended,
    Fenced,
    GivenUp,
    HeadsRead,
    LingerOver,
    ListBehind,
    Listed,
    NoChain,
    Put,
    ReadHeads,
    SealAsked,
    Sealed,
    TailFound,
    TailSearch,
)
from dlog.objects.deletion import (
    AllListed,
    ChainDeletion,
    ChunksDeleted,
    DeleteChunks,
    DeletionEffect,
    DeletionFact,
    Ending,
    EndingTried,
    EndSegment,
    KindsRead,
    ListAll,
    ReadKinds,
    SegmentDeleted,
)
from dlog.objects.merge import (
    BeginSought,
    ChunksCopied,
    CopyChunks,
    CopyRead,
    CreateIndex,
    DeleteCopy,
    DeleteMerged,
    EndSought,
    IndexPut,
    IndexSought,
    MergeEffect,
    MergeFact,
    MergeOver,
    ReadCopy,
    Removed,
    SeekBegin,
    SeekEnd,
    SeekIndex,
    SegmentMerge,
)
from dlog.wire.chunk import HEAD_BYTES, ChunkHead, ChunkKind, decode_body, decode_head, encode_chunk
from dlog.wire.chunk_index import ChunkIndex, decode_index, encode_index, make_index
from tests.simulation.kernel import Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

WhenAwake = Callable[[Callable[[], None]], None]
STYLES = ("swarm", "long", "fenced", "lost", "deleted", "merged")
MUST_REACH = (
    "ack",
    "recovered",
    "sealed",
    "fenced",
    "given_up",
    "tail",
    "followed",
    "late",
    "repeated",
    "lost_answer",
    "outrun",
    "dead_chunk",
    "paged",
    "died",
    "lost",
    "told_as_damage",
    "deleted",
    "died_deleting",
    "not_found",
    "woke_up",
    "merged",
    "cleaned",
    "merge_was_late",
    "died_merging",
    "followed_merged",
    "found_merged",
)
PROGRESS = {"acks": ("ack",), "recoveries": ("recovered",), "entries followed": ("followed",)}
SEGMENT = b"segment " * 2
INDEX = -1  # in place of a chunk's number
PUT_ATTEMPTS = 3
READS_MAX = 4 + IN_FLIGHT_MAX  # of one recovery
END_S = 1000.0


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"objects/{style}/{seed}/plan")
    is_long = style == "long"
    config: dict[str, Any] = {
        "style": style,
        "entries": rng.randint(200, 1200) if is_long else rng.randint(0, 60),
        "chunk_bytes_max": 1 if is_long else rng.choice((1, 20, 200)),
        "page": rng.choice((2, 4) if is_long else (2, 1000)),  # and as many more as the FENCE may be ahead
        "recoveries": rng.choice((1, 2, 3)),
        "finders": rng.randint(1, 3),
        "followers": rng.randint(0, 2),
        "seals": rng.random() < 0.5,
        "begins_at": rng.choice((0.05, 0.3, 1.0, 10.0)) if not is_long else rng.choice((2.0, 30.0)),
        "faults": rng.choice((0.0, 0.001)) if is_long else rng.choice((0.0, 0.05, 0.3, 0.6)),
        "late_s": rng.choice((0.05, 0.5, 20.0)),
        "dies_at": rng.choice((0.1, 1.0)) if rng.random() < 0.3 else 0.0,  # the writer
    }
    if style == "fenced":
        config |= {"entries": 60, "chunk_bytes_max": 1, "begins_at": rng.choice((0.05, 0.1, 0.2)), "seals": False}
        config |= {"finders": 4, "finders_begin_at": 1.0}
    if style == "lost":
        config |= {"entries": 60, "chunk_bytes_max": 1, "begins_at": rng.choice((0.5, 1.0)), "dies_at": 0.0}
        config |= {"loses_at": rng.choice((0.1, 0.2, 0.4)), "faults": rng.choice((0.0, 0.05))}
    if style == "deleted":
        config |= {"entries": rng.choice((5, 60, 300)), "chunk_bytes_max": rng.choice((1, 20)), "dies_at": 0.0}
        config |= {"begins_at": rng.choice((0.2, 0.5)), "finders_begin_at": 0.6, "recoveries": rng.choice((0, 1, 3))}
        config |= {"finders": 10, "followers": 2, "freezes_at": rng.choice((0.05, 0.2, 0.4, 1.0))}
        config |= {"deleters": rng.randint(1, 3), "deletes_at": rng.choice((0.3, 0.6)), "damages": rng.random() < 0.3}
    if style == "merged":
        config |= {"entries": rng.choice((5, 20, 60)), "chunk_bytes_max": rng.choice((1, 20)), "dies_at": 0.0}
        config |= {"recoveries": rng.choice((0, 1)), "begins_at": rng.choice((0.2, 0.5)), "followers": 2}
        config |= {"finders": 10, "finders_begin_at": 1.0, "freezes_at": rng.choice((0.2, 0.5, 100.0))}
        config |= {"followers_begin_within_s": 6}
        config |= {"mergers": rng.randint(1, 5), "merges_at": rng.choice((0.3, 1.0)), "damages": False}
        config |= {"late_s": rng.choice((0.2, 2.0)), "faults": rng.choice((0.0, 0.05, 0.3))}
        if rng.random() < 0.4:
            config |= {"deleters": 1, "deletes_at": rng.choice((0.5, 1.5))}
    config["in_flight"] = IN_FLIGHT_MAX if is_long else rng.choice((2, 4, IN_FLIGHT_MAX))
    config["page"] += AHEAD * config["in_flight"]
    return Plan(seed=seed, config=config)


def _at_once(step: Callable[[], None]) -> None:
    step()


class ObjectsWorld:
    """One chain, its storage and the processes that use it."""

    def __init__(self, plan: Plan) -> None:
        self.config = plan.config
        self.rng = random.Random(f"objects/{plan.config['style']}/{plan.seed}/run")
        self.reached: Counter[str] = Counter()
        self.chunks: dict[int, bytes] = {}  # the storage
        self._created: dict[int, bytes] = {}  # also what is deleted or damaged
        self.counting: list[ChunkHead] = []
        self.counted: list[bytes] = []  # payloads of the entries that count
        self.has_ended = False
        self.now_s = 0.0
        self.events = self.trace_hash = 0
        self.confirmed = 0  # by the writer
        self.contiguous: dict[int, int] = {}  # of the writer's chunks: how many were confirmed when it was created
        self.has_lost = False  # a chunk that counts
        self.is_deleted = False  # BEGIN is; what is created from then on does not count
        self.deletes = False  # any chunk of the segment was deleted, by its deletion
        self.is_quiet = False  # no faults, and no grace period
        self.index: bytes | None = None
        self.copies: dict[bytes, bytes] = {}  # by nonce
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> None:
        """Run the history. Raises Violation."""
        config = self.config
        writer = WriterProcess(self)
        writer.start()
        for name in range(config["recoveries"]):
            self.later(config["begins_at"] * self.rng.uniform(0.5, 2), TailProcess(self, f"r{name}", True).start)
        for name in range(config["finders"]):
            begins_at = config.get("finders_begin_at", config["begins_at"])
            self.later(begins_at * self.rng.uniform(0, 2), TailProcess(self, f"t{name}", False).start)
        if "loses_at" in config:
            self.later(config["loses_at"], self._lose)
        if "freezes_at" in config:
            self.later(config["freezes_at"], writer.freeze)
        for _ in range(config.get("mergers", 0)):
            dies_after = self.rng.choice((3, 6, 12, 30, 80, 1000, 1000))
            self.later(config["merges_at"] * self.rng.uniform(0.5, 3), MergeProcess(self, dies_after).start)
        if "deleters" in config:
            for _ in range(config["deleters"]):
                dies_after = self.rng.choice((2, 4, 6, 8, 12, 1000))
                self.later(config["deletes_at"] * self.rng.uniform(0.8, 2), DeleterProcess(self, dies_after).start)
            if config["damages"]:
                self.later(config["deletes_at"] * self.rng.uniform(0.5, 2), self._damage)
        followers = [FollowerProcess(self) for _ in range(config["followers"])]
        for follower in followers:
            self.later(self.rng.uniform(0, config.get("followers_begin_within_s", 1)), follower.poll)
        self._drain()
        if "deleters" in config:
            self._finish_deletion(writer)
            return
        last = TailProcess(self, "last", True)
        last.start()
        self._drain()
        writer.wake_up()
        self._drain()
        if "mergers" in config:
            self._finish_merge()
        if self.has_lost:
            return
        if last.found is None and self.chunks:
            raise Violation("C2", "the last recovery, without faults, found no end")
        for follower in followers:
            follower.poll()
            self._drain()
            if follower.entries != self.counted:
                raise Violation("C4", f"a follower has {len(follower.entries)} entries, {len(self.counted)} count")

    def _finish_deletion(self, writer: WriterProcess) -> None:
        """Delete what is left, wake up the writer, and delete again what it or a late request has created."""
        for _ in range(2):
            DeleterProcess(self, 10**9).start()
            self._drain()
            writer.wake_up()
            self._drain()
        self.is_quiet = True
        DeleterProcess(self, 10**9).start()
        self._drain()
        kinds = [kind_of(number, data) for number, data in self.chunks.items()]
        if any(kind not in (ChunkKind.FENCE, None) for kind in kinds):
            raise Violation("C10", f"the segment is deleted, and these are left: {kinds}")
        self.reached["deleted"] += 1

    def _finish_merge(self) -> None:
        """Merge, and delete what is merged."""
        self.is_quiet = True
        for _ in range(3):
            MergeProcess(self, 10**9).start()
            self._drain()
        self.check_kept()
        index = self.find_index()
        if index is None:
            if len(self.counting) > 3:
                raise Violation("C13", f"{len(self.counting)} chunks count, and are not merged")
            return
        left = [number for number in self.chunks if 0 < number < index.end_number]
        if left or list(self.copies) != [index.nonce]:
            raise Violation("C13", f"the segment is merged, and chunks {left} and {len(self.copies)} copies are left")

    def check_kept(self) -> None:
        """Check that the entries that count are in chunks, or in the data of the index."""
        if self.is_deleted or not self.chunks:
            return
        index = self.find_index()
        there = [0] if index is not None else range(len(self.counting))
        if not self.chunks.keys() >= set(there):
            raise Violation("C11", f"of {len(self.counting)} chunks that count these are left: {sorted(self.chunks)}")
        if index is not None and self.merged_entries(index) != self.counted:
            raise Violation("C11", f"of {len(self.counted)} entries the index has {index.entries}, or other ones")

    def find_index(self) -> ChunkIndex | None:
        return decode_index(self.index) if self.index is not None else None

    def merged_entries(self, index: ChunkIndex) -> list[bytes] | None:
        """The entries in the data of an index; None if the data are missing."""
        data = self.copies.get(index.nonce)
        if data is None:
            return None
        found: list[bytes] = []
        for number in range(1, index.end_number):
            at, size = index.place(number) or (0, 0)
            found += map(bytes, decode_body(decode_head(data[at:]), data[at + HEAD_BYTES : at + size]))
        return found

    def read_chunk(self, number: int) -> bytes | None:
        """A chunk, of its object or of the merged data; None if there is none."""
        index = self.find_index()
        place = index.place(number) if index is not None else None
        if number in self.chunks or index is None or place is None or index.nonce not in self.copies:
            return self.chunks.get(number)
        return self.copies[index.nonce][place[0] : sum(place)]

    def _damage(self) -> None:
        """Make the last chunks unreadable, or one of them."""
        top = max(self.chunks, default=0)
        for number in self.rng.choice(([top], [top - 1], [top - 2, top - 1, top], range(1, top + 1))):
            if number in self.chunks:
                self.chunks[number] = b"?" * self.rng.choice((1, HEAD_BYTES, 300))
                self.has_lost = True

    def delete(self, number: int) -> None:
        self.deletes |= self.chunks.pop(number, None) is not None
        self.is_deleted |= number == 0

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self.events, do))

    def _drain(self) -> None:
        while self._queue:
            self.now_s, number, do = heapq.heappop(self._queue)
            self.trace_hash = hash((self.trace_hash, number, round(self.now_s * 1e6)))
            do()

    # ---- the storage ------------------------------------------------------------------------------------------------

    def create(
        self, number: int, data: bytes, done: Callable[[Put], None], attempt: int = 1, when_awake: WhenAwake = _at_once
    ) -> None:
        """Create a chunk unless there is one; `done` gets what is certain. when_awake: runs the steps of the process
        that asks."""
        rng, delay_s = self.rng, self.rng.uniform(0.01, 0.1)
        fault = rng.choice(("lost_request", "lost_answer", "late", "repeated")) if self._fails(number) else ""
        if fault:
            self.reached[fault] += 1

        def resolve() -> None:
            self._resolve(number, data, done, attempt, when_awake)

        if fault == "late":
            self.later(delay_s + rng.uniform(0, self.config["late_s"]), lambda: self._land_late(number, data))
        if fault in ("lost_request", "late"):
            self.later(delay_s, lambda: when_awake(resolve))
            return

        def land() -> None:
            is_made = self._put(number, data)
            if fault == "repeated":
                is_made = self._put(number, data)
            if fault == "lost_answer" or not is_made:
                self.later(rng.uniform(0.01, 0.1), lambda: when_awake(resolve))
            else:
                self.later(rng.uniform(0.01, 0.1), lambda: when_awake(lambda: done(Put.MADE)))

        self.later(delay_s, land)

    def _land_late(self, number: int, data: bytes) -> None:
        self._put(number, data)

    def _fails(self, number: int) -> bool:
        share = self.config["faults"] if number != INDEX else 0.8
        return self.now_s < END_S and not self.is_quiet and self.rng.random() < share

    def _resolve(
        self, number: int, data: bytes, done: Callable[[Put], None], attempt: int, when_awake: WhenAwake
    ) -> None:
        there = self.chunks.get(number) if number != INDEX else self.index
        if there is not None:
            done(Put.MADE if there[:HEAD_BYTES] == data[:HEAD_BYTES] else Put.EXISTS)
        elif attempt < PUT_ATTEMPTS:
            self.create(number, data, done, attempt + 1, when_awake)
        else:
            done(Put.UNKNOWN)

    def _put(self, number: int, data: bytes) -> bool:
        if number == INDEX:
            self.reached["merge_was_late"] += self.is_deleted
            is_made, self.index = self.index is None, self.index or data
            self.check_kept()
            return is_made
        if number in self.chunks:
            return False
        self.chunks[number] = data
        self._created[number] = data
        while not (self.has_ended or self.is_deleted) and (following := self._created.get(len(self.counting))):
            head = decode_head(following)
            if head.first != len(self.counted) and head.kind is not ChunkKind.FENCE:
                raise Violation("C6", f"chunk {head.number} begins with entry {head.first}, {len(self.counted)} count")
            self.counting.append(head)
            if head.kind is ChunkKind.DATA:
                self.counted += map(bytes, decode_body(head, following[HEAD_BYTES:]))
            if len(self.counted) != head.end and head.kind is not ChunkKind.FENCE:
                raise Violation("C6", f"chunk {head.number} ends at {head.end}, and has {len(self.counted)}")
            self.has_ended = head.kind.is_end
        self.reached["dead_chunk"] += self.has_ended and number >= len(self.counting)
        return True

    def _lose(self) -> None:
        """Delete a confirmed chunk of the last ones, if a chunk above tells that it existed."""
        known = max((self.contiguous.get(number, 0) for number in self.chunks), default=0)
        if known < 2 or self.has_ended:
            self.later(0.02, self._lose) if self.now_s < 1.0 else None
            return
        self.has_lost = True
        self.reached["lost"] += 1
        del self.chunks[self.rng.randrange(max(1, known - self.config["in_flight"]), known)]

    def list_behind(self, behind: int) -> Listed:
        return Listed(behind, tuple(sorted(number for number in self.chunks if number > behind)[: self.config["page"]]))

    def read_heads(self, numbers: Sequence[int]) -> HeadsRead | None:
        """The answer; None if a chunk was deleted after it was listed, or its head is damaged."""
        try:
            return HeadsRead(tuple(decode_head(self.read_chunk(number) or b"") for number in numbers))
        except DamagedError:
            assert self.has_lost or self.deletes or self.index
            return None

    def chunk(self, effect: CreateChunk, nonce: bytes, payloads: Sequence[bytes], bytes_before: int) -> bytes:
        what: dict[str, Any] = {"number": effect.number, "contiguous": effect.contiguous, "first": effect.first}
        what |= {"epoch": 1, "bytes_before": bytes_before}
        return b"".join(encode_chunk(effect.kind, payloads, nonce=nonce, segment=SEGMENT, **what))

    def nonce(self) -> bytes:
        return self.rng.randbytes(16)


def kind_of(number: int, data: bytes) -> ChunkKind | None:
    """The kind of a chunk; None if its head cannot be read."""
    try:
        head = decode_head(data)
    except DamagedError:
        return None
    return head.kind if head.number == number else None


class WriterProcess:
    """Appends entries from time to time, and may seal or die."""

    def __init__(self, world: ObjectsWorld) -> None:
        self._world = world
        self._nonce = world.nonce()
        self._machine = ChainWriter(world.config["chunk_bytes_max"], in_flight_max=world.config["in_flight"])
        self._entries: list[bytes] = []
        self._confirmed_chunks = 0
        self._is_open = False
        self._is_dead = False
        self._held: list[Callable[[], None]] | None = None  # steps of a frozen process

    def start(self) -> None:
        if self._world.config["dies_at"]:
            self._world.later(self._world.config["dies_at"], self._die)
        self._machine, effects = self._machine.begin()
        self._perform(effects)

    def freeze(self) -> None:
        self._held = []

    def wake_up(self) -> None:
        held, self._held = self._held or [], None
        self._world.reached["woke_up"] += bool(held)
        for step in held:
            step()

    def _when_awake(self, step: Callable[[], None]) -> None:
        step() if self._held is None else self._held.append(step)

    def _die(self) -> None:
        self._is_dead = True
        self._world.reached["died"] += 1

    def _append(self) -> None:
        self._when_awake(self._append_one)

    def _append_one(self) -> None:
        world = self._world
        if not self._is_open or self._is_dead:
            return
        if len(self._entries) < world.config["entries"]:
            body = b"%d " % len(self._entries) + b"." * world.rng.choice((0, 1, 30))
            self._entries.append(body)
            self._tell(EntryAppended(len(body)))
            world.later(0.2, self._linger)
            world.later(world.rng.choice((0.0, 0.001, 0.05)), self._append)
        elif world.config["seals"]:
            self._is_open = False
            self._tell(SealAsked())

    def _linger(self) -> None:
        self._when_awake(lambda: self._tell(LingerOver()) if self._is_open else None)

    def _created(self, number: int, result: Put) -> None:
        self._tell(ChunkPut(number, result))

    def _tell(self, fact: EntryAppended | LingerOver | SealAsked | ChunkPut) -> None:
        if not self._is_dead:
            self._machine, effects = self._machine.after(fact)
            self._perform(effects)

    def _perform(self, effects: Sequence[object]) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case CreateChunk(number, kind, first, end):
                    payloads = self._entries[first:end] if kind is not ChunkKind.BEGIN else [b"description"]
                    before = sum(map(len, self._entries[:first]))
                    world.contiguous[number] = self._confirmed_chunks
                    data = world.chunk(effect, self._nonce, payloads, before)
                    done = partial(self._created, number)
                    world.create(number, data, done, when_awake=self._when_awake)
                case Begun():
                    self._is_open = True
                    self._confirmed_chunks = 1
                    world.later(0.0, self._append)
                case Confirmed(end):
                    if world.counted[:end] != self._entries[:end]:
                        name = "C8" if world.is_deleted else "C1"
                        raise Violation(name, f"{end} entries are confirmed, {len(world.counted)} count")
                    self._confirmed_chunks += 1
                    world.reached["ack"] += end - world.confirmed
                    world.confirmed = end
                case Sealed(end):
                    if not (world.has_ended and end == len(world.counted)):
                        raise Violation(
                            "C8" if world.is_deleted else "C2", f"sealed at {end}, {len(world.counted)} count"
                        )
                    world.reached["sealed"] += 1
                case Fenced() | GivenUp():
                    self._is_open = False
                    world.reached["fenced" if isinstance(effect, Fenced) else "given_up"] += 1
                case _:
                    raise AssertionError(effect)


class TailProcess:
    """A recovery, or a search for the tail."""

    def __init__(
        self, world: ObjectsWorld, name: str, is_recovery: bool, done: Callable[[Ending | None], None] | None = None
    ) -> None:
        self.found: TailFound | None = None
        self._done = done
        self._world = world
        self._name = name
        self._is_recovery = is_recovery
        self._nonce = b""
        self._machine = ChainTail(is_recovery, world.config["in_flight"])
        self._listings = self._reads = self._confirmed = 0
        self._began_with_loss = False

    def start(self) -> None:
        self._nonce = self._world.nonce()
        self._confirmed = self._world.confirmed
        self._began_with_loss = self._world.has_lost
        self._listings = self._reads = 0
        search = TailSearch(page=self._world.config["page"])
        self._machine, effects = ChainTail(self._is_recovery, self._world.config["in_flight"], search).begin()
        self._perform(effects)

    def _tell(self, fact: Listed | HeadsRead | ChunkPut | None) -> None:
        if fact is None:
            if not self._is_gone():
                self._over(Ending.DAMAGED)
            return
        try:
            self._machine, effects = self._machine.after(fact)
        except DamagedError as error:
            if not self._is_gone() and not self._is_merged():
                if not self._world.has_lost:
                    name = "C9" if self._world.deletes else "C12" if self._world.index else "C4"
                    raise Violation(name, f"{self._name}: {error}") from error
                self._world.reached["told_as_damage"] += 1
                self._over(Ending.DAMAGED)
            return
        self._perform(effects)

    def _is_gone(self) -> bool:
        """Whether there is no BEGIN; then the search ends."""
        if 0 in self._world.chunks and not self._world.is_deleted:  # a late request may create BEGIN again
            return False
        self._world.reached["not_found"] += 1
        self._over(Ending.MISSING)
        return True

    def _is_merged(self) -> bool:
        """Whether there is an index; then the search ends."""
        index = self._world.find_index()
        if index is None:
            return False
        self._world.reached["found_merged"] += 1
        self._check(TailFound(index.entries, index.end_number, index.payload_bytes, True))
        return True

    def _over(self, ending: Ending | None) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done(ending)

    def _list(self, behind: int) -> None:
        world = self._world
        self._listings += 1
        pages = len(world.chunks) // world.config["page"] + 1
        world.reached["paged"] += pages > 3
        if self._listings > 8 + 3 * pages.bit_length() + self._reads:
            raise Violation("C5", f"{self._name}: {self._listings} listings of {len(world.chunks)} chunks")
        answer = world.list_behind(behind)
        world.later(world.rng.uniform(0.001, 0.05), lambda: self._tell(answer))

    def _perform(self, effects: Sequence[object]) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case ListBehind(behind):
                    world.later(world.rng.uniform(0.001, 0.05), lambda behind=behind: self._list(behind))  # type: ignore[misc]  # a default
                case ReadHeads(numbers):
                    self._reads += 1
                    world.reached["outrun"] += self._reads > 1
                    if self._reads > READS_MAX:
                        raise Violation("C5", f"{self._name}: read heads {self._reads} times, and finds no end")
                    world.later(world.rng.uniform(0.001, 0.05), partial(self._read, numbers))
                case CreateChunk(number):
                    data = world.chunk(effect, self._nonce, (), sum(map(len, world.counted[: effect.first])))
                    world.create(number, data, lambda result, number=number: self._tell(ChunkPut(number, result)))  # type: ignore[misc]  # a default
                case TailFound():
                    self._check(effect)
                case NoChain() | GivenUp():
                    if self._done is not None:
                        self._over(Ending.MISSING if isinstance(effect, NoChain) else None)
                    elif world.now_s < END_S and 0 in world.chunks:
                        world.later(1.0, self.start)
                case _:
                    raise AssertionError(effect)

    def _read(self, numbers: Sequence[int]) -> None:
        if not self._is_gone() and not self._is_merged():
            heads = self._world.read_heads(numbers)
            self._world.later(self._world.rng.uniform(0.001, 0.05), partial(self._tell, heads))

    def _check(self, found: TailFound) -> None:
        world = self._world
        self.found = found
        self._over(Ending.ENDED)
        world.reached["recovered" if self._is_recovery else "tail"] += 1
        if self._began_with_loss and found.end < self._confirmed:
            raise Violation("C7", f"{self._name} found {found}, {self._confirmed} were confirmed, and a chunk is lost")
        if world.has_lost and self._is_recovery:
            return  # the segment has a FENCE that does not count
        size = sum(map(len, world.counted[: found.end]))
        if found.is_ended:
            if not (world.has_ended and found.end == len(world.counted) and found.payload_bytes == size):
                name = "C9" if world.deletes else "C12" if world.index else "C2"
                raise Violation(name, f"{self._name} found the end {found}, {len(world.counted)} count")
        elif self._is_recovery:
            raise Violation("C12" if world.index else "C2", f"{self._name} recovered and found no end: {found}")
        if not self._confirmed <= found.end <= len(world.counted):
            name = "C9" if world.deletes else "C12" if world.index else "C3"
            raise Violation(name, f"{self._name} found {found}, {self._confirmed} were confirmed before")


class DeleterProcess:
    """Deletes the segment, and dies after so many steps."""

    def __init__(self, world: ObjectsWorld, dies_after: int) -> None:
        self._world = world
        self._steps_left = dies_after
        self._nonce = world.nonce()
        self._machine = ChainDeletion(world.config["in_flight"])

    def start(self) -> None:
        if self._world.chunks:
            self._machine, effects = self._machine.begin()
            self._perform(effects)

    def _tell(self, fact: DeletionFact) -> None:
        self._machine, effects = self._machine.after(fact)
        self._perform(effects)

    def _later(self, do: Callable[[], None]) -> None:
        self._steps_left -= 1
        if self._steps_left:
            self._world.later(self._world.rng.uniform(0.001, 0.05), do)
        else:
            self._world.reached["died_deleting"] += 1

    def _perform(self, effects: Sequence[DeletionEffect]) -> None:
        world = self._world
        [effect] = effects
        match effect:
            case EndSegment():
                self._later(TailProcess(world, "deleter", True, self._ended).start)
            case ListAll():
                self._later(self._list)
            case ReadKinds(numbers):
                self._later(partial(self._read, numbers))
            case CreateChunk(number):
                data = world.chunk(effect, self._nonce, (), 0)
                world.create(number, data, lambda result: self._later(partial(self._tell, ChunkPut(number, result))))
            case DeleteChunks(numbers):
                self._delete(world.rng.sample(numbers, len(numbers)))
            case SegmentDeleted():
                world.index = None
                world.copies.clear()
            case GivenUp():
                pass

    def _ended(self, ending: Ending | None) -> None:
        if ending is not None:  # else the recovery gave up, and so does the deletion
            self._later(partial(self._tell, EndingTried(ending)))

    def _list(self) -> None:
        chunks = self._world.chunks
        short = frozenset(number for number, data in chunks.items() if len(data) == HEAD_BYTES)
        self._tell(AllListed(tuple(sorted(chunks)), short))

    def _read(self, numbers: Sequence[int]) -> None:
        self._tell(KindsRead(tuple(kind_of(number, self._world.chunks.get(number, b"")) for number in numbers)))

    def _delete(self, left: Sequence[int]) -> None:
        if left:
            self._world.delete(left[0])
            self._later(lambda: self._delete(left[1:]))
        else:
            self._later(lambda: self._tell(ChunksDeleted()))


class MergeProcess:
    """Merges the chunks of the segment, or deletes merged ones, and dies after so many steps."""

    def __init__(self, world: ObjectsWorld, dies_after: int) -> None:
        self._world = world
        self._steps_left = dies_after
        self._nonce = world.nonce()
        self._machine = SegmentMerge()
        self._heads: list[ChunkHead] = []
        self._copy = b""

    def start(self) -> None:
        self._machine, effects = self._machine.begin()
        self._perform(effects)

    def _tell(self, fact: MergeFact) -> None:
        try:
            self._machine, effects = self._machine.after(fact)
        except DamagedError as error:
            if not self._world.deletes:
                raise Violation("C12", f"a merge: {error}") from error
            return
        self._perform(effects)

    def _later(self, do: Callable[[], None]) -> None:
        self._steps_left -= 1
        if self._steps_left:
            self._world.later(self._world.rng.uniform(0.001, 0.05), do)
        else:
            self._world.reached["died_merging"] += 1

    def _perform(self, effects: Sequence[MergeEffect]) -> None:
        world = self._world
        [effect] = effects
        match effect:
            case SeekIndex():
                self._later(self._seek_index)
            case SeekEnd():
                tail = TailProcess(world, "merge", False, lambda ending: self._end_sought(tail, ending))
                self._later(tail.start)
            case CopyChunks(first, end):
                self._later(partial(self._copy_chunk, first, end))
            case ReadCopy():
                self._later(self._read_copy)
            case CreateIndex(heads):
                data = encode_index(make_index(self._nonce, heads))
                world.create(INDEX, data, lambda result: self._later(partial(self._tell, IndexPut(result))))
            case SeekBegin():
                self._later(lambda: self._tell(BeginSought(0 in world.chunks)))
            case DeleteCopy(with_index):
                self._later(partial(self._delete_copy, with_index))
            case DeleteMerged(first, end):
                self._later(partial(self._delete_merged, [n for n in sorted(world.chunks) if first <= n < end]))
            case MergeOver(result):
                world.reached[result.value] += 1

    def _seek_index(self) -> None:
        index = self._world.find_index()
        is_due = self._world.is_quiet or self._world.rng.random() < 0.6
        self._tell(IndexSought(index.end_number if index else None, is_due))

    def _end_sought(self, tail: TailProcess, ending: Ending | None) -> None:
        if ending is Ending.ENDED and tail.found is not None:
            self._later(partial(self._tell, EndSought(tail.found)))

    def _copy_chunk(self, number: int, end: int) -> None:
        if number == end:
            self._world.copies[self._nonce] = self._copy
            self._tell(ChunksCopied(tuple(self._heads)))
        elif (data := self._world.read_chunk(number)) is not None:
            self._heads.append(decode_head(data))
            self._copy += data
            self._later(partial(self._copy_chunk, number + 1, end))

    def _read_copy(self) -> None:
        data, at = self._world.copies.get(self._nonce), 0
        if data is None:
            return
        heads: list[ChunkHead] = []
        while at < len(data):
            heads.append(decode_head(data[at:]))
            at += HEAD_BYTES + heads[-1].body_bytes
        self._tell(CopyRead(tuple(heads)))

    def _delete_copy(self, with_index: bool) -> None:
        if with_index:
            self._world.index = None
        self._world.copies.pop(self._nonce, None)
        self._world.check_kept()
        self._tell(Removed())

    def _delete_merged(self, numbers: Sequence[int]) -> None:
        world = self._world
        if numbers:
            world.chunks.pop(numbers[0], None)
            world.check_kept()
            self._later(partial(self._delete_merged, numbers[1:]))
            return
        if (index := world.find_index()) is not None:
            world.copies = {nonce: data for nonce, data in world.copies.items() if nonce == index.nonce}
            world.check_kept()
        self._tell(Removed())


class FollowerProcess:
    """Reads the chain while it grows."""

    def __init__(self, world: ObjectsWorld) -> None:
        self.entries: list[bytes] = []
        self._world = world
        self._machine = ChainFollower()
        self._is_over = False  # a chunk is missing
        self._polls = 0

    def poll(self) -> None:
        self._polls += 1
        self._perform(self._machine.poll())

    def _tell(self, fact: Listed | HeadsRead | None) -> None:
        if self._is_over:
            return
        index, world = self._world.find_index(), self._world
        if fact is None or (index is not None and 0 in world.chunks and self._machine.next_number not in world.chunks):
            self._is_over = True
            if index is not None and 0 in world.chunks and not world.is_deleted:
                self.entries = world.merged_entries(index) or []
                world.reached["followed_merged"] += 1
                if self.entries != world.counted:
                    raise Violation("C12", f"a follower reads {len(self.entries)} merged, {len(world.counted)} count")
            return
        try:
            self._machine, effects = self._machine.after(fact)
        except DamagedError as error:
            raise Violation("C4", f"a follower: {error}") from error
        self._perform(effects)
        if not effects or isinstance(effects[-1], ChunksFound):
            self._again()

    def _again(self) -> None:
        if self._polls < 60 and not self._machine.is_ended:
            self._world.later(self._world.rng.uniform(0.05, 1.0), self.poll)

    def _perform(self, effects: Sequence[object]) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case ListBehind(behind):
                    listed = world.list_behind(behind)
                    world.later(world.rng.uniform(0.001, 0.05), lambda listed=listed: self._tell(listed))  # type: ignore[misc]  # a default
                case ReadHeads(numbers):
                    heads = world.read_heads(numbers)
                    world.later(world.rng.uniform(0.001, 0.05), lambda heads=heads: self._tell(heads))  # type: ignore[misc]  # a default
                case ChunksFound(heads):
                    for head in heads:
                        data = world.read_chunk(head.number)
                        if data is None or kind_of(head.number, data) is None:
                            assert world.has_lost or world.deletes
                            self._is_over = True
                            return
                        if head.kind is ChunkKind.DATA:
                            self.entries += map(bytes, decode_body(head, data[HEAD_BYTES:]))
                            world.reached["followed"] += head.entries
                    if self.entries != world.counted[: len(self.entries)]:
                        raise Violation("C4", f"a follower believes {len(self.entries)}, {len(world.counted)} count")
                case _:
                    raise AssertionError(effect)


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    with planting((parts or {}).get("planted", ())):
        world = ObjectsWorld(plan)
        violation, text = judged(world.run, trace=trace)
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=world.reached,
        trace_hash=world.trace_hash & 0xFFFFFFFF,
        events=world.events,
        virtual_s=world.now_s,
        lines=[text] if trace and text else None,
    )


def room() -> Room:
    """The simulation `objects` of `python -m tests.simulation`."""
    from tests.simulation.mutants.objects import MUTANTS

    return Room(
        name="objects",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
    )
