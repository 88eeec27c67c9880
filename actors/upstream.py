"""What the owner of a stream says about its LAC, what it sends along, and when that may be believed.

The law of this room: an owner names segments by number, and a number may have lain elsewhere before. So a LAC is used
only once metadata that was read after hearing the number tells where the segment lies, in the stream it was said of;
and so are the entries that come with it.
That a segment ended empty is the last word of its place: what the number means next is looked up anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from dlog.errors import UnavailableError
from dlog.model.ids import NO_ENTRY, Epoch, StreamName
from dlog.model.segment import Segment


class Ear(Protocol):
    """Who hears what an owner says, in order."""

    def __call__(self, number: int, lac: int, ended: bool) -> None:
        """A segment is confirmed up to `lac`; ended: nothing comes after it."""
        ...

    def entries(self, number: int, first: int, payloads: Sequence[bytes]) -> None:
        """Entries of a segment from `first` on, all of them confirmed. Any may be left out."""
        ...

    def end(self) -> None:
        """The connection is over: nothing more is heard on it. Idempotent."""
        ...


class Upstream(Protocol):
    """How the owner of a stream is listened to."""

    async def follow(self, address: str, stream: StreamName, ear: Ear, on_open: Callable[[], None]) -> None:
        """Have the ear hear what the owner at `address` says, until it says no more.

        on_open: called once the owner has been asked. Always raises in the end: OwnedElsewhereError (`location`: whom
        to ask, if known), UnavailableError. When the connection is lost the ear is told so at once, before anybody is
        asked who owns the stream now.
        """
        ...

    async def sync(self, ear: Ear) -> None:
        """Return once the ear has heard everything that the owner had said when this was called.

        Raises UnavailableError, also when the connection that the ear listens on is over and there is another one to
        the same owner: that one tells other ears.
        """
        ...


class Listener(Protocol):
    """Who wants to know (actors/stream_tailer.py)."""

    def believe(self, heard: Heard, number: int) -> None:
        """Read metadata from now on, then call `heard.place`."""
        ...

    def heard(self, segment: Segment, lac: int, ended: bool) -> None:
        """The owner says so, and the place is certain."""
        ...

    def brought(self, segment: Segment, first: int, payloads: Sequence[bytes]) -> None:
        """The owner sent entries along, and the place is certain."""
        ...

    def unheard(self, heard: Heard) -> None:
        """The connection is over."""
        ...


class Heard(Ear):
    """What one connection to an owner has said; segments are looked up before their LAC is used.

    life: of the stream that the owner was asked about (StreamMetadata). epoch: of the claim that metadata named before
    it was asked; None: another proxy named this one.
    """

    def __init__(self, listener: Listener, address: str, life: str, epoch: Epoch | None = None) -> None:
        self.address = address
        self.life = life
        self.epoch = epoch
        self.anything = False
        self.is_over = False
        self._settled = asyncio.Event()  # something was heard, and all of it is placed
        self._listener = listener
        self._placed: dict[int, Segment] = {}
        self._waiting: dict[int, tuple[int, bool]] = {}
        self._words: dict[int, tuple[int, bool]] = {}  # by number: the newest
        self._overtaken: dict[int, int] = {}  # by number: looks at metadata that may show a place it had before

    def __call__(self, number: int, lac: int, ended: bool) -> None:
        self.anything = True
        if ended and lac == NO_ENTRY:
            self._forget(number)
            return
        self._words[number] = (lac, ended)
        segment = self._placed.get(number)
        if segment is not None:
            self._listener.heard(segment, lac, ended)
            return
        is_asked = number in self._waiting
        self._waiting[number] = (lac, ended)
        self._settled.clear()
        if not is_asked:
            self._listener.believe(self, number)

    def entries(self, number: int, first: int, payloads: Sequence[bytes]) -> None:
        """What comes before the number's place is certain is left to the store."""
        segment = self._placed.get(number)
        if segment is not None:
            self._listener.brought(segment, first, payloads)

    async def settle(self) -> None:
        """Return when something was heard and all of it is placed; an owner begins with where the stream stands.

        Until then its silence means nothing: it may not have taken the stream yet. Raises UnavailableError when it has
        nothing more to say.
        """
        await self._settled.wait()
        if self.is_over:
            raise UnavailableError(f"the owner says no more: address={self.address}")

    def end(self) -> None:
        """The connection is over: what it said is known, and what is confirmed since is not. Idempotent."""
        if not self.is_over:
            self.is_over = True
            self._settled.set()
            self._listener.unheard(self)

    def place(self, number: int, segment: Segment | None) -> None:
        """Metadata was read after the number was heard. None: it does not know the number."""
        overtaken = self._overtaken.get(number, 0)
        if overtaken:
            self._overtaken[number] = overtaken - 1
            return
        lac, ended = self._waiting.pop(number)
        if segment is not None:
            self._placed[number] = segment
            self._listener.heard(segment, lac, ended)
        if not self._waiting:
            self._settled.set()

    def moved(self, listed: Callable[[int], Segment | None]) -> None:
        """Metadata names other segments now; listed: the one of a number. One that lies elsewhere than we believed is
        looked up anew; one that is completed its owner has said everything of.

        Only the number of an empty segment comes again: what was said of it beyond that is the new place's.
        """
        for number, old in tuple(self._placed.items()):
            now = listed(number)
            if now is not None and (now.store, now.place) != (old.store, old.place):
                del self._placed[number]
                lac, ended = self._words[number]
                if lac > NO_ENTRY:
                    self(number, lac, ended)
            elif now is not None and now.completed:
                del self._placed[number], self._words[number]

    def _forget(self, number: int) -> None:
        """The segment ended empty and leaves the list, which tells who looks at its place. Where we took it to lie
        another's may lie that is not empty: a Java writer gives the number away while the owner does not know it."""
        self._placed.pop(number, None)
        self._words.pop(number, None)
        if self._waiting.pop(number, None) is not None:
            self._overtaken[number] = self._overtaken.get(number, 0) + 1
            if self._placed and not self._waiting:
                self._settled.set()
