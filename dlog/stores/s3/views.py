"""What this process knows of segments that it reads: how far they reach, from four sources.

The image (committed entries, and the end of an ended range), this process's node (confirmed entries of what it writes),
the log of another node (confirmed entries of what that writes), and what the stream's owner reports. All four only ever
report entries that no recovery drops.
"""

from __future__ import annotations

import asyncio

from dlog.errors import DLogError
from dlog.model.ids import NO_ENTRY, EntryId
from dlog.model.object_streams import NodeId, ObjectStreamId
from dlog.objects.image import Image, Range
from dlog.stores.s3.metadata import MetadataView
from dlog.stores.s3.own_node import OwnNode
from dlog.stores.s3.places import Place, range_of
from dlog.stores.s3.tasks import Tasks
from dlog.stores.s3.wal_follower import WalFollower, WalFollowers

WAIT_S = 5.0  # for the next record of the metadata, then it is asked for again


class SegmentView:
    """A segment that readers have open. start: offset of its first entry. node: that writes it, or wrote it."""

    def __init__(self, place: Place, start: int, node: NodeId) -> None:
        self.place = place
        self.start = start
        self.node = node
        self.users = 0
        self.lac = NO_ENTRY
        self.end: EntryId | None = None
        self.is_deleted = False
        self.follower: WalFollower | None = None
        self.moved = asyncio.Event()  # replaced each time it is set

    def offset(self, entry: int) -> int:
        return self.start + entry

    def learn(self, lac: int) -> None:
        """Everything up to this entry is confirmed."""
        if self.end is None and lac > self.lac:
            self.lac = EntryId(lac)
            self.wake()

    def ended(self, end: int) -> None:
        """The segment has its end."""
        if self.end is None:
            self.end = self.lac = EntryId(end)
            self.wake()

    def refresh(self, image: Image) -> None:
        """Take over what an image says."""
        found = range_of(image, self.place)
        if found is not None:
            self.take(found)
        elif self.place.stream not in image.streams and self.place.stream < image.next_stream:
            self.is_deleted = True
            self.wake()

    def take(self, found: Range) -> None:
        if found.end is not None:
            self.ended(found.end - found.start - 1)
        else:
            self.learn(found.committed - found.start - 1)

    def wake(self) -> None:
        """Let calls that wait for the LAC look again."""
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()


class SegmentViews:
    """The views of a process. While there are any, it follows the image for them."""

    def __init__(self, metadata: MetadataView, node: OwnNode | None, followers: WalFollowers, tasks: Tasks) -> None:
        self._metadata = metadata
        self._node = node
        self._followers = followers
        self._tasks = tasks
        self._views: dict[Place, SegmentView] = {}
        self._by_stream: dict[ObjectStreamId, SegmentView] = {}
        self._watch: asyncio.Task[None] | None = None

    def acquire(self, place: Place, found: Range) -> SegmentView:
        """The view of a segment; the caller releases it. found: its range. Raises ReaderClosedError."""
        view = self._views.get(place)
        if view is None:
            view = SegmentView(place, found.start, found.node)
            if self._watch is None or self._watch.done():
                self._watch = self._tasks.start(self._follow_image, "follows the metadata of open segments")
            self._views[place] = self._by_stream[place.stream] = view
        view.users += 1
        view.take(found)
        self._learn_here(view)
        if view.end is None and not self._is_here(view):
            end = self.follower(view).end_of(place.stream)
            if end is not None:
                view.learn(end - view.start - 1)
        return view

    def follower(self, view: SegmentView) -> WalFollower:
        """The follower of the log with what is not uploaded of a segment, for as long as the view needs it. Raises
        ReaderClosedError."""
        if view.follower is None:
            view.follower = self._followers.acquire(view.node)
        return view.follower

    def release(self, view: SegmentView) -> None:
        view.users -= 1
        if view.users:
            return
        if view.follower is not None:
            self._followers.release(view.follower)
            view.follower = None
        if self._views.get(view.place) is view:
            del self._views[view.place], self._by_stream[view.place.stream]
        if not self._views and self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def confirmed(self, stream: ObjectStreamId, end: int) -> None:
        """So much of a stream is confirmed: this process's node or the log of another one says so."""
        view = self._by_stream.get(stream)
        if view is not None:
            view.learn(end - view.start - 1)

    def ended(self, stream: ObjectStreamId, end: int) -> None:
        """This process closed a stream at that offset."""
        view = self._by_stream.get(stream)
        if view is not None:
            view.ended(end - view.start - 1)

    def _is_here(self, view: SegmentView) -> bool:
        return self._node is not None and self._node.confirmed_end(view.place.stream) is not None

    def _learn_here(self, view: SegmentView) -> None:
        end = None if self._node is None else self._node.confirmed_end(view.place.stream)
        if end is not None:
            view.learn(end - view.start - 1)

    async def _follow_image(self) -> None:
        while True:
            try:
                await self._metadata.wait_newer(WAIT_S)
                image = await self._metadata.read()
            except DLogError:
                await asyncio.sleep(WAIT_S)
                continue
            for view in tuple(self._views.values()):
                view.refresh(image)
                if view.end is not None and view.follower is not None and image_has(image, view):
                    self._followers.release(view.follower)
                    view.follower = None
                elif view.end is None and not self._is_here(view):
                    self.follower(view)  # the node here that wrote it may have ended
            await asyncio.sleep(0)


def image_has(image: Image, view: SegmentView) -> bool:
    """Whether all entries of a segment are in objects."""
    found = range_of(image, view.place)
    return found is None or (found.end is not None and found.committed >= found.end)
