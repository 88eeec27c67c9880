"""Checks the objects of the store `s3` against its metadata: lists the bucket, reads every block of every object.

The comparison is dlog/objects/fsck.py. The metadata are read before and after the listing, by functions of the caller.

Invariants:
- an object that the controller deletes while the bucket is listed is no finding: what may be removed is looked for once
  more after the metadata are read, and an object that is recorded as destroyed was deleted before that;
- an object is removed only if an image that was read after its listing has it as an orphan or as destroyed, and an
  unfinished upload only if its object will never be committed by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from dlog.model.object_streams import ObjectId, Slice
from dlog.objects.fsck import (
    OVERDUE_MS,
    REMOVABLE,
    Comparison,
    Finding,
    Kind,
    ListedObject,
    committed_objects,
    compare,
    is_removable,
    judge_unfinished,
    missing_parts,
    slices_by_object,
)
from dlog.objects.image import Image, ObjectState
from dlog.stores.contract import SegmentCorruptError, SegmentNotFoundError
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.port import Found, Objects
from dlog.stores.s3.object_reads import ObjectGoneError, ObjectReads, object_name
from dlog.values import value

READS_AT_ONCE = 8  # objects
DELETES_AT_ONCE = 1000

ReadImage = Callable[[], Awaitable[Image]]


@value
class Checked:
    """Result of a check. comparison: of the listing; findings: those, and what was found in objects. listed, bytes: of
    the bucket. objects, blocks: that were read. version: of the image after the listing."""

    comparison: Comparison
    findings: tuple[Finding, ...]
    listed: int
    bytes: int
    objects: int
    blocks: int
    version: int


class ObjectCheck:
    """Checks the objects below the root of streams.

    root: without the name of the incarnation. folder: that name. read: gives the metadata; fresh: with all that was
    recorded before the call, as far as there is a controller.
    """

    def __init__(
        self, objects: Objects, root: Location, folder: str, reads: ObjectReads, read: ReadImage, fresh: ReadImage
    ) -> None:
        self._objects = objects
        self._root = root
        self._folder = folder
        self._reads = reads
        self._read = read
        self._fresh = fresh
        self._blocks = 0

    async def run(self, *, reads_blocks: bool = True, overdue_ms: int = OVERDUE_MS) -> Checked:
        """Raises StoreError."""
        before = committed_objects(await self._read())
        listed = await self._list()
        now_ms = await self._objects.now_unix_ms(self._root.parent)
        image = await self._fresh()
        comparison = compare(image, self._folder, listed, before, now_ms, overdue_ms=overdue_ms)
        version, findings = image.version, await self._still_there(comparison.findings)
        findings += [finding for finding, _ in await self._unfinished(image)]
        gone = {one.object for one in findings if one.kind is Kind.MISSING}
        expected = slices_by_object(image)
        to_read = [ObjectId(object) for object in committed_objects(image) if object not in gone]
        if reads_blocks:
            for at in range(0, len(to_read), READS_AT_ONCE):
                some = to_read[at : at + READS_AT_ONCE]
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._check(object, expected.get(object, [])), name=f"check object {object}")
                        for object in some
                    ]
                findings += [finding for task in tasks for finding in task.result()]
        size = sum(one.bytes for one in listed)
        objects = len(to_read) if reads_blocks else 0
        return Checked(comparison, tuple(findings), len(listed), size, objects, self._blocks, version)

    async def remove(self, findings: Sequence[Finding]) -> int:
        """Delete what is found of these that may be removed by the newest image; how many. Raises StoreError."""
        image = await self._fresh()
        keys = [
            one.place
            for one in findings
            if one.kind in (Kind.ORPHAN, Kind.ZOMBIE) and is_removable(image, self._folder, ListedObject(one.place, 0))
        ]
        for at in range(0, len(keys), DELETES_AT_ONCE):
            await self._objects.delete_many([self._root.below(key) for key in keys[at : at + DELETES_AT_ONCE]])
        places = {one.place for one in findings if one.kind is Kind.UNFINISHED}
        uploads = [left for finding, left in await self._unfinished(image) if finding.place in places] if places else []
        for left in uploads:
            await self._objects.discard(left)
        return len(keys) + len(uploads)

    async def _still_there(self, findings: Sequence[Finding]) -> list[Finding]:
        """Without those about objects that were deleted since they were listed."""
        gone: set[Finding] = set()

        async def look(one: Finding) -> None:
            try:
                await self._objects.read_end(self._root.below(one.place), 1)
            except SegmentNotFoundError:
                gone.add(one)

        removable = [one for one in findings if one.kind in REMOVABLE]
        for at in range(0, len(removable), READS_AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for one in removable[at : at + READS_AT_ONCE]:
                    group.create_task(look(one), name=f"look for {one.place}")
        return [one for one in findings if one not in gone]

    async def _unfinished(self, image: Image) -> list[tuple[Finding, Found]]:
        """The uploads in parts that nobody will finish."""
        above = f"{self._root}/"
        found: list[tuple[Finding, Found]] = []
        async for left in self._objects.unfinished(self._root):
            finding = judge_unfinished(image, self._folder, left.location.removeprefix(above))
            if finding is not None:
                found.append((finding, left))
        return found

    async def _list(self) -> list[ListedObject]:
        above = f"{self._root}/"
        found: list[ListedObject] = []
        async for one in self._objects.list(self._root):
            found.append(ListedObject(one.location.removeprefix(above), one.bytes))
        return found

    async def _check(self, object: ObjectId, expected: Sequence[Slice]) -> list[Finding]:
        """Read all of an object that the metadata have as committed."""
        image = await self._read()
        if image.objects.state(object) is not ObjectState.COMMITTED:
            return []  # marked meanwhile
        name, place = object_name(image, object), f"object {object}"
        findings: list[Finding] = []
        try:
            index = await self._reads.index(name)
        except ObjectGoneError:
            return await self._gone(object)
        except SegmentCorruptError as error:
            return [Finding(Kind.DAMAGED, place, error.message, object)]
        for part in missing_parts(expected, index.slices()):
            why = f"by the metadata they are in object {object}, which lacks them"
            entries = f"stream {part.stream}, entries {part.start} to {part.end - 1}"
            findings.append(Finding(Kind.HOLE, entries, why, object, part.stream))
        for row in index.blocks:
            try:
                await self._reads.block(name, row, past_cache=True)
                self._blocks += 1
            except ObjectGoneError:
                return [*findings, *await self._gone(object)]
            except SegmentCorruptError as error:
                findings.append(Finding(Kind.DAMAGED, place, error.message, object, row.stream))
        return findings

    async def _gone(self, object: ObjectId) -> list[Finding]:
        """An object was there when the bucket was listed, and is not there now."""
        if (await self._fresh()).objects.state(object) is not ObjectState.COMMITTED:
            return []
        return [Finding(Kind.MISSING, f"object {object}", "it was deleted, and not by the controller", object)]
