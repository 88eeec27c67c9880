"""Cuts a byte stream at arbitrary offsets, as a network may."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import strategies as st

#: sizes of chunks, used in turn until the stream is used up; empty means one chunk
cuts: st.SearchStrategy[list[int]] = st.one_of(
    st.just([]), st.just([1]), st.lists(st.integers(0, 40), min_size=1, max_size=8)
)


def chunked(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    if not any(sizes):
        yield stream
        return
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        yield stream[at : at + size]
        at += size
        turn += 1
