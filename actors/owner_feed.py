"""Receives LACs and entries from a stream's owner and decides when they may be used.

An owner names segments by number, and a number may have had another location before.

Invariants:
- a LAC, and the entries sent with it, are used only after metadata, read after the number arrived, gives the
  segment's location in the same stream incarnation;
- after "ended empty" nothing more is used for that location; the number's next location is looked up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from dlog.errors import UnavailableError
from dlog.model.ids import NO_ENTRY, Epoch, StreamName
from dlog.model.segment import Segment


class OwnerListener(Protocol):
    """Receives what an owner sends, in order."""

    def __call__(self, number: int, lac: int, ended: bool) -> None:
        """Segment `number` is confirmed up to `lac`; ended: nothing comes after it."""
        ...

    def entries(self, number: int, first: int, payloads: Sequence[bytes]) -> None:
        """Confirmed entries of a segment from `first` on. The owner may omit any."""
        ...

    def end(self) -> None:
        """The connection is over, nothing more is received. Idempotent."""
        ...


class OwnerSubscriptions(Protocol):
    """Subscribes to the owner of a stream."""

    async def follow(
        self, address: str, stream: StreamName, listener: OwnerListener, on_open: Callable[[], None]
    ) -> None:
        """Pass what the owner at `address` sends to `listener`, until the subscription ends.

        on_open: called once the request is sent. Always raises in the end: OwnedElsewhereError (`location`: the proxy
        to ask next, if known) or UnavailableError. When the connection is lost `listener.end` is called at once, before
        the new owner is looked up.
        """
        ...

    async def sync(self, listener: OwnerListener) -> None:
        """Return once `listener` has received everything that the owner had sent when this was called.

        Raises UnavailableError, also if the connection of `listener` is over and there is another one to the same
        owner: that one serves other receivers.
        """
        ...


class OwnerFeedUser(Protocol):
    """Uses what an owner sent (actors/owner_follower.py)."""

    def on_first_lac(self, feed: OwnerFeed, number: int) -> None:
        """Begin a new metadata read, then call `feed.locate`."""
        ...

    def on_lac(self, segment: Segment, lac: int, ended: bool) -> None:
        """The owner sent this LAC, and the segment's location is certain."""
        ...

    def on_entries(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """The owner sent these entries, and the segment's location is certain."""
        ...

    def on_closed(self, feed: OwnerFeed) -> None:
        """The connection is over."""
        ...


class OwnerFeed(OwnerListener):
    """What one connection to an owner has sent; a segment is looked up before its LAC is used.

    incarnation: of the stream that the owner was asked about (StreamMetadata). epoch: of the claim that metadata
    named before the request; None: another proxy redirected us here.
    """

    def __init__(self, listener: OwnerFeedUser, address: str, incarnation: str, epoch: Epoch | None = None) -> None:
        self.address = address
        self.incarnation = incarnation
        self.epoch = epoch
        self.anything = False
        self.is_over = False
        self._settled = asyncio.Event()  # something was received, and all segments are located
        self._listener = listener
        self._located: dict[int, Segment] = {}
        self._waiting: dict[int, tuple[int, bool]] = {}
        self._words: dict[int, tuple[int, bool]] = {}  # by number: the newest LAC
        self._outdated_reads: dict[int, int] = {}  # by number: metadata reads that may show its previous location

    def __call__(self, number: int, lac: int, ended: bool) -> None:
        self.anything = True
        if ended and lac == NO_ENTRY:
            self._forget(number)
            return
        self._words[number] = (lac, ended)
        segment = self._located.get(number)
        if segment is not None:
            self._listener.on_lac(segment, lac, ended)
            return
        is_asked = number in self._waiting
        self._waiting[number] = (lac, ended)
        self._settled.clear()
        if not is_asked:
            self._listener.on_first_lac(self, number)

    def entries(self, number: int, first: int, payloads: Sequence[bytes]) -> None:
        """Entries that arrive before the location is certain are dropped; readers get them from the store."""
        segment = self._located.get(number)
        if segment is not None:
            self._listener.on_entries(segment, first, payloads)

    async def settle(self) -> None:
        """Wait until the owner has sent a LAC, and metadata has the location of every segment that it named.

        An owner sends its current LAC first. Until then the tail is not known: the owner may still be taking the
        stream over. Raises UnavailableError if the connection ends.
        """
        await self._settled.wait()
        if self.is_over:
            raise UnavailableError(f"the connection to the owner ended: address={self.address}")

    def end(self) -> None:
        """The connection is over; what it sent stays valid. Idempotent."""
        if not self.is_over:
            self.is_over = True
            self._settled.set()
            self._listener.on_closed(self)

    def locate(self, number: int, segment: Segment | None) -> None:
        """Metadata was read after the number arrived. None: it does not list the number."""
        overtaken = self._outdated_reads.get(number, 0)
        if overtaken:
            self._outdated_reads[number] = overtaken - 1
            return
        lac, ended = self._waiting.pop(number)
        if segment is not None:
            self._located[number] = segment
            self._listener.on_lac(segment, lac, ended)
        if not self._waiting:
            self._settled.set()

    def moved(self, listed: Callable[[int], Segment | None]) -> None:
        """The segment list changed; listed: the segment of a number. Look up segments that have another location now;
        forget completed ones, of which the owner sends nothing more.

        Only the number of an empty segment is reused, so a LAC above "empty" belongs to the new location.
        """
        for number, old in tuple(self._located.items()):
            now = listed(number)
            if now is not None and now.location != old.location:
                del self._located[number]
                lac, ended = self._words[number]
                if lac > NO_ENTRY:
                    self(number, lac, ended)
            elif now is not None and now.completed:
                del self._located[number], self._words[number]

    def _forget(self, number: int) -> None:
        """The segment ended empty and leaves the list; readers of its location learn that from the list. The location
        we had may belong to another, non-empty segment: a Java writer may have reused the number unknown to the owner.
        """
        self._located.pop(number, None)
        self._words.pop(number, None)
        if self._waiting.pop(number, None) is not None:
            self._outdated_reads[number] = self._outdated_reads.get(number, 0) + 1
            if self._located and not self._waiting:
                self._settled.set()
