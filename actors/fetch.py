"""Entries on their way from a store, and what each who waits for them gets.

The law of this room: one fetch serves all who want some of it; each gets no more than it asked for.
"""

from __future__ import annotations

from actors.source_view import View
from dlog.log.read_messages import GetEntries


class Fetch:
    """Entries `first`..`last` of a segment on their way from the store, and who waits for some of them."""

    __slots__ = ("first", "last", "waiters")

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self.waiters: list[tuple[View, GetEntries]] = []


def cut(payloads: list[bytes], at: int, question: GetEntries) -> tuple[bytes, ...]:
    """Of a fetch, what a question asked for."""
    got: list[bytes] = []
    size = 0
    for payload in payloads[at : at + question.last - question.first + 1]:
        got.append(payload)
        size += len(payload)
        if size >= question.max_bytes:
            break
    return tuple(got)
