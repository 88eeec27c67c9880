"""One run of a compaction plan: read indexes, prepare ids, copy entries, commit. Without I/O.

The driver performs the effects in order and passes facts one at a time; answers may come in any order. It retries what
a busy object storage refuses. A read or write that it gives up ends the run: the object ids expire, and the sources
stay as they are. Every block that is read is checked, so damage is never copied.

The entries are decoded and encoded again, so that small blocks become large ones and entries that are not live are
left out. Sources are read in pieces of neighbouring blocks, in the order in which they are needed.

Invariants:
- bytes that are read and not copied, or copied and not written, keep within `held_bytes_max`, one part and the index of
  a new object, except that a piece that is needed next is always read: a plan of stream-set objects may hold all its
  sources, which keep within `memory_bytes`;
- nothing is committed before all new objects are written whole, and `find_uncovered` has found no fault in what was
  written, with the image as it is then;
- a commit with an unclear answer is repeated as it was.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from dlog.errors import DamagedError, DLogError, UnsupportedVersionError
from dlog.model.object_streams import NodeEpoch, ObjectId, Slice, StreamObject, StreamSetObject
from dlog.objects.compaction import CompactionPlan, NewObject, Part, find_uncovered
from dlog.objects.image import Image, ObjectState
from dlog.objects.operations import CommitCompaction, Done, ObjectsArePrepared, PrepareObjects
from dlog.values import value
from dlog.wire.stream_object import (
    BLOCK_BYTES,
    BlockRow,
    Buffer,
    Footer,
    ObjectEncoder,
    ObjectIndex,
    decode_block,
    decode_footer,
    decode_index,
    index_in,
    tail_bytes,
)

MIB = 1 << 20


# ---- facts ----------------------------------------------------------------------------------------------------------


@value
class BytesRead:
    """The answer to ReadBytes."""

    object: ObjectId
    position: int
    data: Buffer


@value
class PartWritten:
    """The answer to WritePart; of the last part: the object exists whole."""

    object: ObjectId
    number: int


@value
class StorageFailed:
    """A read or write of an object was given up, or ids are refused (object NO_OBJECT)."""

    object: ObjectId
    error: DLogError


@value
class CommitRefused:
    """The answer to CommitCompaction: it is not recorded and never will be."""

    reason: str


@value
class CommitUnclear:
    """The answer to CommitCompaction: it may have been recorded."""


CompactionFact = BytesRead | ObjectsArePrepared | PartWritten | StorageFailed | Done | CommitRefused | CommitUnclear


# ---- effects --------------------------------------------------------------------------------------------------------


@value
class ReadBytes:
    """Read so many bytes of an object; answered by BytesRead with the same object and position, or StorageFailed."""

    object: ObjectId
    position: int
    bytes: int


@value
class WritePart:
    """Write a part of a new object, as its next part. is_last: the object is whole with it.

    Parts of an object are numbered from 0; an object with one part needs no multipart upload. Answered by PartWritten
    or StorageFailed. The bytes never change, so a repeated request is the same.
    """

    object: ObjectId
    number: int
    data: tuple[Buffer, ...]
    is_last: bool


@value
class CompactionDone:
    """The run has ended and is recorded. Bytes of payloads and blocks that were read and written."""

    bytes_read: int
    bytes_written: int


@value
class CompactionAbandoned:
    """The run has ended and nothing is recorded. unfinished: objects that were begun and are not whole: abort their
    uploads. error: None if the metadata changed meanwhile, which is no fault; plan again."""

    reason: str
    error: DLogError | None
    unfinished: tuple[ObjectId, ...]


#: Two operations of the controller are among them: PrepareObjects is answered by ObjectsArePrepared or StorageFailed,
#: CommitCompaction by Done, CommitRefused or CommitUnclear.
CompactionEffect = ReadBytes | PrepareObjects | WritePart | CommitCompaction | CompactionDone | CompactionAbandoned


# ---- the machine ----------------------------------------------------------------------------------------------------


class Phase(enum.Enum):
    """How far a run is."""

    BEGUN = "begun"
    INDEXES = "indexes"
    IDS = "ids"
    COPYING = "copying"
    COMMITTING = "committing"
    DONE = "done"
    ABANDONED = "abandoned"


TRANSITIONS: dict[Phase, set[Phase]] = {
    Phase.BEGUN: {Phase.INDEXES, Phase.COMMITTING, Phase.ABANDONED},
    Phase.INDEXES: {Phase.IDS, Phase.ABANDONED},
    Phase.IDS: {Phase.COPYING, Phase.ABANDONED},
    Phase.COPYING: {Phase.COMMITTING, Phase.ABANDONED},
    Phase.COMMITTING: {Phase.DONE, Phase.ABANDONED},
    Phase.DONE: set(),
    Phase.ABANDONED: set(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """held_bytes_max: see the module. piece_bytes: of one read. part_bytes: of one write, at least 5 MiB on S3.

    prepare_max: ids that are asked for at once. expiry_ms: by when the run must have ended.
    """

    held_bytes_max: int = 64 * MIB
    piece_bytes: int = 8 * MIB
    part_bytes: int = 16 * MIB
    block_bytes: int = BLOCK_BYTES
    prepare_max: int = 1000
    expiry_ms: int = 24 * 3600 * 1000


@dataclass(slots=True)
class _Piece:
    """Neighbouring blocks of one source, read at once. uses: steps that are not done yet."""

    source: ObjectId
    position: int
    bytes: int
    uses: int = 0
    data: Buffer | None = None


@dataclass(slots=True)
class _Step:
    """Copy entries start..end-1 of a block to a new object. is_last: of that object."""

    output: int
    block: BlockRow
    start: int
    end: int
    piece: _Piece
    is_last: bool = False


@dataclass(slots=True)
class _Output:
    """A new object that is being written. slices: once it is encoded whole."""

    new: NewObject
    object: ObjectId
    encoder: ObjectEncoder
    parts: list[Buffer] = field(default_factory=list)
    parts_bytes: int = 0
    number: int = 0
    unwritten: dict[int, int] = field(default_factory=dict)  # bytes by number, of parts that are not confirmed
    is_encoded: bool = False

    @property
    def is_whole(self) -> bool:
        return self.is_encoded and not self.unwritten


class CompactionRun:
    """Runs one plan. image: the one that its process follows; it changes between two facts.

    indexes: those of sources that are known already; the others are read.
    """

    def __init__(
        self,
        plan: CompactionPlan,
        node_epoch: NodeEpoch,
        image: Image,
        *,
        indexes: dict[ObjectId, ObjectIndex] | None = None,
        options: CopyOptions | None = None,
    ) -> None:
        self.plan = plan
        self.phase = Phase.BEGUN
        self.held_bytes = self.bytes_read = self.bytes_written = 0
        self._node_epoch = node_epoch
        self._image = image
        self._options = options or CopyOptions()
        self._indexes = {object: index for object, index in (indexes or {}).items() if object in plan.sources}
        self._footers: dict[ObjectId, Footer] = {}
        self._reading: set[tuple[ObjectId, int]] = set()
        self._steps: deque[_Step] = deque()
        self._pieces: deque[_Piece] = deque()  # that are not asked for yet
        self._asked: dict[tuple[ObjectId, int], _Piece] = {}
        self._ids: list[ObjectId] = []
        self._outputs: list[_Output] = []
        self._by_id: dict[ObjectId, _Output] = {}
        self._unwritten_bytes = self._written_whole = 0
        self._commit: CommitCompaction | None = None

    def begin(self) -> list[CompactionEffect]:
        """The first effects."""
        gone = self._source_gone()
        if gone:
            return self._abandon(gone)
        if not self.plan.new_objects:
            return self._begin_commit()
        self._set_phase(Phase.INDEXES)
        effects: list[CompactionEffect] = []
        for source in self.plan.sources:
            if source not in self._indexes:
                size = self._image.objects.bytes_of(source)
                effects += self._read(source, size - tail_bytes(size), tail_bytes(size))
        return effects or self._prepare()

    def handle(self, fact: CompactionFact) -> list[CompactionEffect]:
        """The next effects. What is not expected any more is ignored."""
        try:
            match self.phase, fact:
                case (Phase.DONE | Phase.ABANDONED, _):
                    return []
                case _, StorageFailed(object, error):
                    gone = self._source_gone()
                    return self._abandon(gone or f"object={object}: {error.message}", None if gone else error)
                case Phase.INDEXES, BytesRead(object, position, data) if (object, position) in self._reading:
                    self._reading.remove((object, position))
                    return self._index_read(object, data)
                case Phase.IDS, ObjectsArePrepared(first, count):
                    self._ids += [ObjectId(first + at) for at in range(count)]
                    return self._prepare()
                case Phase.COPYING, BytesRead(object, position, data) if (object, position) in self._asked:
                    self._piece_read(self._asked.pop((object, position)), data)
                    return self._copy()
                case Phase.COPYING, PartWritten(object, number):
                    self._part_written(object, number)
                    return self._copy()
                case Phase.COMMITTING, Done():
                    self._set_phase(Phase.DONE)
                    return [CompactionDone(self.bytes_read, self.bytes_written)]
                case Phase.COMMITTING, CommitRefused(reason):
                    return self._abandon(reason)
                case Phase.COMMITTING, CommitUnclear():
                    assert self._commit is not None
                    return [self._commit]
                case _:
                    return []
        except (DamagedError, UnsupportedVersionError) as error:
            return self._abandon(error.message, error)

    # ---- indexes and ids ----

    def _read(self, object: ObjectId, position: int, size: int) -> list[CompactionEffect]:
        self._reading.add((object, position))
        return [ReadBytes(object, position, size)]

    def _index_read(self, object: ObjectId, data: Buffer) -> list[CompactionEffect]:
        self.bytes_read += len(data)
        footer = self._footers.get(object)
        index: Buffer | None = data
        if footer is None:
            footer = self._footers[object] = decode_footer(data, self._image_bytes(object, data))
            if footer.object != object:
                raise DamagedError(f"an object says that it is another: object={object} says={footer.object}")
            index = index_in(footer, data)
        if index is None:
            return self._read(object, footer.index_position, footer.index_bytes)
        self._indexes[object] = decode_index(footer, index)
        return [] if self._reading else self._prepare()

    def _image_bytes(self, object: ObjectId, data: Buffer) -> int:
        """The size of an object. One that was destroyed meanwhile has none: then what was read is checked by itself."""
        known = self._image.objects.state(object) in (ObjectState.COMMITTED, ObjectState.MARKED)
        return self._image.objects.bytes_of(object) if known else len(data)

    def _prepare(self) -> list[CompactionEffect]:
        """Ask for the ids that are missing; begin to copy if none is."""
        if self.phase is not Phase.IDS:
            self._set_phase(Phase.IDS)
        missing = len(self.plan.new_objects) - len(self._ids)
        if missing <= 0:
            self._plan_copy()
            return self._copy()
        count, expiry_ms = min(missing, self._options.prepare_max), self._options.expiry_ms
        return [PrepareObjects(self.plan.node, self._node_epoch, count, expiry_ms)]

    # ---- copying ----

    def _plan_copy(self) -> None:
        self._set_phase(Phase.COPYING)
        block_bytes = self._options.block_bytes
        self._outputs = [
            _Output(new, object, ObjectEncoder(object, self.plan.node, self._node_epoch, block_bytes=block_bytes))
            for object, new in zip(self._ids, self.plan.new_objects, strict=True)
        ]
        self._by_id = {output.object: output for output in self._outputs}
        wanted = [(at, part) for at, new in enumerate(self.plan.new_objects) for part in new.parts]
        by_block = self._plan_pieces([part for _, part in wanted])
        seen: set[int] = set()
        for at, part in wanted:
            index, there = self._indexes[part.source], 0
            for number in part.blocks(index):
                block, piece = index.blocks[number], by_block[part.source, number]
                start, end = max(part.start, block.start), min(part.end, block.end)
                self._steps.append(_Step(at, block, start, end, piece))
                there += end - start
                piece.uses += 1
                if id(piece) not in seen:
                    seen.add(id(piece))
                    self._pieces.append(piece)
            if there != part.end - part.start:
                raise DamagedError(
                    f"an object lacks entries that metadata names: object={part.source} stream={part.stream} "
                    f"start={part.start} end={part.end} there={there}"
                )
        for step, following in zip(self._steps, [*list(self._steps)[1:], None], strict=True):
            step.is_last = following is None or following.output != step.output

    def _plan_pieces(self, parts: list[Part]) -> dict[tuple[ObjectId, int], _Piece]:
        """For each block that is needed the piece that has it."""
        needed = sorted({(part.source, number) for part in parts for number in part.blocks(self._indexes[part.source])})
        found: dict[tuple[ObjectId, int], _Piece] = {}
        piece: _Piece | None = None
        for source, number in needed:
            block = self._indexes[source].blocks[number]
            if (
                piece is None
                or piece.source != source
                or piece.position + piece.bytes != block.position
                or piece.bytes + block.bytes > self._options.piece_bytes
            ):
                piece = _Piece(source, block.position, 0)
            piece.bytes += block.bytes
            found[source, number] = piece
        return found

    def _piece_read(self, piece: _Piece, data: Buffer) -> None:
        if len(data) != piece.bytes:
            raise DamagedError(
                f"an object was read in part: object={piece.source} position={piece.position} bytes={len(data)}"
            )
        self.bytes_read += len(data)
        piece.data = memoryview(data)

    def _part_written(self, object: ObjectId, number: int) -> None:
        output = self._by_id.get(object)
        if output is None or number not in output.unwritten:
            return
        size = output.unwritten.pop(number)
        self.held_bytes -= size
        self._unwritten_bytes -= size
        self._written_whole += output.is_whole

    def _copy(self) -> list[CompactionEffect]:
        """Copy what can be copied, and read what can be read. The only place that does."""
        effects: list[CompactionEffect] = []
        while self._steps and self._steps[0].piece.data is not None and self._has_room_to_write:
            effects += self._copy_block(self._steps.popleft())
        while self._pieces and (self._has_room_for(self._pieces[0]) or self._is_needed(self._pieces[0])):
            piece = self._pieces.popleft()
            self.held_bytes += piece.bytes
            self._asked[piece.source, piece.position] = piece
            effects.append(ReadBytes(piece.source, piece.position, piece.bytes))
        if self._written_whole == len(self._outputs):
            effects += self._begin_commit()
        return effects

    @property
    def _has_room_to_write(self) -> bool:
        """Whether less than half of what may be held waits to be written."""
        return self._unwritten_bytes <= self._options.held_bytes_max // 2

    def _has_room_for(self, piece: _Piece) -> bool:
        return self.held_bytes + piece.bytes <= self._options.held_bytes_max

    def _is_needed(self, piece: _Piece) -> bool:
        return bool(self._steps) and self._steps[0].piece is piece

    def _copy_block(self, step: _Step) -> list[CompactionEffect]:
        piece, output, block = step.piece, self._outputs[step.output], step.block
        assert piece.data is not None
        at = block.position - piece.position
        entries = decode_block(block, memoryview(piece.data)[at : at + block.bytes])
        for offset in range(step.start, step.end):
            self._add(output, output.encoder.add(block.stream, offset, entries[offset - block.start]))
        piece.uses -= 1
        if not piece.uses:
            piece.data = None
            self.held_bytes -= piece.bytes
        if step.is_last:
            self._add(output, output.encoder.finish())
            output.is_encoded = True
        return self._write(output) if output.is_encoded or output.parts_bytes >= self._options.part_bytes else []

    @staticmethod
    def _add(output: _Output, parts: list[Buffer]) -> None:
        output.parts += parts
        output.parts_bytes += sum(map(len, parts))

    def _write(self, output: _Output) -> list[CompactionEffect]:
        part = WritePart(output.object, output.number, tuple(output.parts), output.is_encoded)
        output.unwritten[output.number] = output.parts_bytes
        self.held_bytes += output.parts_bytes
        self._unwritten_bytes += output.parts_bytes
        self.bytes_written += output.parts_bytes
        output.number += 1
        output.parts, output.parts_bytes = [], 0
        return [part]

    # ---- the commit ----

    def _begin_commit(self) -> list[CompactionEffect]:
        written = [output.encoder.slices() for output in self._outputs]
        fault = find_uncovered(self._image, self.plan.node, self.plan.sources, written)
        if fault is not None:
            return self._abandon(fault)
        self._set_phase(Phase.COMMITTING)
        self._commit = CommitCompaction(
            self.plan.node,
            self._node_epoch,
            self.plan.sources,
            tuple(
                StreamSetObject(one.object, one.new.order, one.new.time_ms, one.encoder.bytes, one.encoder.slices())
                for one in self._outputs
                if one.new.is_set_object
            ),
            tuple(
                _stream_object(one.object, one.encoder.slices(), one.encoder.bytes)
                for one in self._outputs
                if not one.new.is_set_object
            ),
        )
        return [self._commit]

    def _source_gone(self) -> str:
        for source in self.plan.sources:
            if self._image.objects.state(source) is not ObjectState.COMMITTED:
                return f"a source is gone: object={source}"
        return ""

    def _abandon(self, reason: str, error: DLogError | None = None) -> list[CompactionEffect]:
        unfinished = tuple(one.object for one in self._outputs if one.number and not one.is_whole)
        self._set_phase(Phase.ABANDONED)
        return [CompactionAbandoned(reason, error, unfinished)]

    def _set_phase(self, phase: Phase) -> None:
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase


def _stream_object(object: ObjectId, slices: tuple[Slice, ...], size: int) -> StreamObject:
    (one,) = slices
    return StreamObject(object, one.stream, one.start, one.end, size)
