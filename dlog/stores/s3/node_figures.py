"""Figures of the node of this process for metrics: how old is what is not uploaded, and how long is its log.

The machine has no clock, so they are sampled. A scrape reads single numbers, from another thread.
"""

from __future__ import annotations

from collections import deque

from dlog.model.object_streams import NodeId
from dlog.objects.image import Image
from dlog.objects.node_cache import NodeCache

SAMPLES_MAX = 1000


class NodeFigures:
    """Sampled figures; times are those of the event loop.

    unuploaded_bytes, unuploaded_entries: what only the log and the memory of the node have. oldest_entry_s: when the
    oldest of these entries was first seen; None: there is none. wal_segments: segments of the log that are not deleted.
    oldest_segment_s: when the oldest of these was first seen; None: there is none. orphan_bytes: of objects that
    nothing refers to and that are not deleted yet, by the metadata.
    """

    def __init__(self) -> None:
        self.unuploaded_bytes = 0
        self.unuploaded_entries = 0
        self.oldest_entry_s: float | None = None
        self.wal_segments = 0
        self.oldest_segment_s: float | None = None
        self.orphan_bytes = 0
        self._cache: NodeCache | None = None
        self._added: deque[tuple[float, int]] = deque()  # time, entries added by then
        self._segments: dict[int, float] = {}  # number -> when it was first seen

    def note(self, now_s: float, cache: NodeCache, image: Image, node: NodeId) -> None:
        """Take a sample. cache: of the machine that runs now."""
        if cache is not self._cache:
            self._cache = cache
            self._added.clear()
        added, uploaded = cache.added_entries, cache.uploaded_entries
        if added > (self._added[-1][1] if self._added else uploaded):
            self._added.append((now_s, added))
        while self._added and self._added[0][1] <= uploaded:
            self._added.popleft()
        if len(self._added) > SAMPLES_MAX:  # nothing is uploaded for long: times between may be left out
            self._added = deque(list(self._added)[::2])
        self.unuploaded_bytes = cache.unuploaded_bytes
        self.unuploaded_entries = added - uploaded
        self.oldest_entry_s = self._added[0][0] if self._added else None
        known = image.nodes.get(node)
        numbers = [] if known is None else [segment.number for segment in known.wal]
        self._segments = {number: self._segments.get(number, now_s) for number in numbers}
        self.wal_segments = len(numbers)
        self.oldest_segment_s = min(self._segments.values(), default=None)
        self.orphan_bytes = image.objects.marked_bytes
