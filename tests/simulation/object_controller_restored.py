"""A controller on a metadata stream that has lost its last entries, as after a restore of ZooKeeper: invariant O13."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dlog.errors import MetadataWentBackError
from dlog.events import ObjectMetadataWentBack
from dlog.machine import Answer, Emit
from dlog.objects import went_back
from dlog.objects.controller import AppendEntry, Controller, EntryConfirmed, Requested
from dlog.objects.image import Image
from dlog.objects.keys import parse_object_key, parse_snapshot_key
from dlog.objects.operations import PutKey
from tests.simulation.kernel import Violation
from tests.simulation.object_controller_checks import FOLDER

NEAR = 8  # ids from the next one on, of which an object is always noticed


def first_later(image: Image, keys: Iterable[str]) -> str:
    """What a controller finds in the storage that its image lacks; empty: nothing."""
    names = sorted(keys)
    for place in went_back.places_of_later(FOLDER, image):
        found = next((key for key in names if key > place.behind and key.startswith(f"{place.folder}/")), "")
        if went_back.is_later(FOLDER, image, found):
            return found
    return ""


def check_restored(image: Image, keys: Collection[str]) -> bool:
    """Run a controller on an image that may lack records; whether it notices. keys: what is in the storage. Raises
    Violation."""
    is_certain = any(_is_near(image, key) for key in keys)
    version = image.version
    machine = Controller(image, FOLDER, "restored", 0, later=first_later(image, keys))
    effects: list[Any] = machine.begin()
    effects += machine.handle(Requested(1, PutKey("restored", b"")))
    for entry in [one for one in effects if isinstance(one, AppendEntry)]:
        effects += machine.handle(EntryConfirmed(entry.number))
    is_refused = any(isinstance(one, Answer) and isinstance(one.result, MetadataWentBackError) for one in effects)
    is_told = any(isinstance(one, Emit) and isinstance(one.event, ObjectMetadataWentBack) for one in effects)
    if is_refused != is_told or (is_certain and not is_refused):
        raise Violation("O13", f"the stream has {version} records, and the storage what later ones named")
    if is_refused and machine.image.version != version:
        raise Violation("O13", "a controller of a stream that went back records something")
    return is_refused


def _is_near(image: Image, key: str) -> bool:
    """Whether a key is of what the image lacks, where a controller always looks."""
    applied, parsed = parse_snapshot_key(FOLDER, key), parse_object_key(FOLDER, key)
    if applied is not None:
        return applied > image.version
    return parsed is not None and image.next_object <= parsed.object < image.next_object + NEAR
