"""`dlog object search` advises a position that it takes, also if segments in other stores lie between. It tells no more
as covered than is uploaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dlog.cli import object_commands
from dlog.model.ids import StreamName


def test_the_next_position_is_in_the_next_segment_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    part = SimpleNamespace(object=1, is_set_object=False, start=0, end=3)
    image: Any = SimpleNamespace(version=9, objects=SimpleNamespace(owner=lambda _: ("n", 1)))
    found = SimpleNamespace(start=0, end=3, committed=3)
    monkeypatch.setattr(object_commands, "parse_place", lambda name: SimpleNamespace(stream=name))
    monkeypatch.setattr(object_commands, "range_of", lambda *_: found)
    monkeypatch.setattr(object_commands, "find_objects", lambda *_: SimpleNamespace(objects=[part], covered_to=3))
    segments: Any = [SimpleNamespace(number=number, name="1.1") for number in (2, 7)]
    result = object_commands._searched(image, "life", StreamName("w"), segments, "2:0:0", 1)
    assert result["covered_to"] == "7:0:0"
    assert result["rest"] == "more segments follow: `dlog object search w --from 7:0:0`"
    assert object_commands._begin(image, StreamName("w"), segments, result["covered_to"]) == (1, 0)


def test_what_is_not_uploaded_of_an_open_segment_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    image: Any = SimpleNamespace(version=9, nodes={})
    found = SimpleNamespace(start=10, end=None, committed=13, node="n")
    monkeypatch.setattr(object_commands, "parse_place", lambda name: SimpleNamespace(stream=name))
    monkeypatch.setattr(object_commands, "range_of", lambda *_: found)
    monkeypatch.setattr(
        object_commands, "find_objects", lambda *given: SimpleNamespace(objects=[], covered_to=given[2])
    )
    segments: Any = [SimpleNamespace(number=2, name="1.1")]
    for entry, covered in ((900, 3), (3, 3), (1, 1)):
        result = object_commands._searched(image, "life", StreamName("w"), segments, f"2:{entry}:0", 20)
        assert result["covered_to"] == f"2:{covered}:0"
        assert result["rest"] == "the segment is being written, and node n has no write-ahead log"
