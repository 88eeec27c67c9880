"""A metadata stream that lost records: what in the object storage proves it, and a controller that finds it."""

from __future__ import annotations

import pytest

from dlog.errors import FencedError, MetadataWentBackError
from dlog.events import ObjectControllerEnded, ObjectMetadataWentBack
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId
from dlog.objects.controller import AppendEntry, AppendFailed, DeleteObjects, Ticked, WriteSnapshot
from dlog.objects.errors import ControllerLostError
from dlog.objects.image import Image
from dlog.objects.keys import object_key, snapshot_key
from dlog.objects.operations import PutKey
from dlog.objects.went_back import PLACES, is_later, places_of_later
from tests.unit.objects.test_controller import Story, prepare

N1, E1 = NodeId("n1"), NodeEpoch(1)


def key(object: int) -> str:
    return object_key("f", ObjectId(object), N1, E1)


def image_with(objects: int, version: int) -> Image:
    image = Image()
    image.objects.prepare(ObjectId(1), objects, (N1, E1), 10)
    image.version = version
    return image


def found(image: Image, keys: list[str]) -> list[str]:
    """What the lists of a controller find."""
    firsts = [
        min((one for one in keys if one.startswith(f"{place.folder}/") and one > place.behind), default="")
        for place in places_of_later("f", image)
    ]
    assert len(firsts) == PLACES
    return [one for one in firsts if is_later("f", image, one)]


def test_objects_and_snapshots_that_the_image_knows_are_not_later() -> None:
    image = image_with(1000, 70)
    known = [key(object) for object in range(1, 1001)]
    known += [snapshot_key("f", applied, "c") for applied in (1, 69, 70)]
    assert found(image, [*known, "f/00/zz", "f/snapshots/x", "g/00/0000000000001000-1-n1"]) == []


@pytest.mark.parametrize("lost", [*range(1, 9), 33, 225, 257, 1025])
def test_an_object_of_an_id_that_the_image_does_not_know_is_later(lost: int) -> None:
    image = image_with(1000, 70)
    known = [key(object) for object in range(1, 1001)]
    assert key(1000 + lost) in found(image, [*known, key(1000 + lost)])


@pytest.mark.parametrize("first", [9, 40, 300, 1000])
def test_of_32_ids_in_a_row_one_is_found(first: int) -> None:
    image = image_with(1000, 70)
    assert found(image, [key(1000 + first + n) for n in range(32)])


def test_a_snapshot_with_records_that_the_image_lacks_is_later() -> None:
    image = image_with(1, 70)
    assert found(image, [snapshot_key("f", 71, "c")]) == [snapshot_key("f", 71, "c")]


def test_a_controller_refuses_everything_once_it_is_certain_that_it_is_one() -> None:
    story = Story(later=key(7))
    assert len(story.of(AppendEntry)) == 1, "it begins with an append"
    assert story.told(ObjectMetadataWentBack) == []
    story.appended += story.of(AppendEntry)
    story.is_confirming = False
    assert story.ask(PutKey("k", b"")) is None
    story.is_confirming = True
    story.confirm()
    (event,) = story.told(ObjectMetadataWentBack)
    assert (event.key, event.records, event.next_object) == (key(7), 0, 1)
    refused = story.answer(1)
    assert isinstance(refused, MetadataWentBackError)
    assert "restore.md" in refused.message and not refused.outcome_unknown
    assert isinstance(story.ask(prepare()), MetadataWentBackError)
    story.tell(Ticked(10**9))
    assert not story.of(DeleteObjects) and not story.of(WriteSnapshot)
    assert [entry.records for entry in story.appended] == [()]


def test_a_controller_that_was_deposed_meanwhile_raises_no_alarm() -> None:
    story = Story(later=key(7))
    story.is_confirming = False
    assert story.ask(PutKey("k", b"")) is None
    story.tell(AppendFailed(FencedError("the metadata stream has another owner")))
    assert story.told(ObjectMetadataWentBack) == []
    assert isinstance(story.answer(1), ControllerLostError)
    assert len(story.told(ObjectControllerEnded)) == 1
