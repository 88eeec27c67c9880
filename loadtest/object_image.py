"""Measures the image of streams in objects: `python -m loadtest.object_image [--json] [OBJECTS]`.

One process applies the records of so many objects (10^6 unless said otherwise) and writes a snapshot; a second one
loads it, and weighs it. Nine of ten objects are stream objects of a thousand streams; the others are stream-set objects
of ten slices. Each object is prepared and committed by a record of its own. Times are CPU times of the process, which
waits for nothing.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil

from dlog.io.children import module_environment, python_module
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    MetadataRecord,
    NodeEpoch,
    NodeId,
    NodeOpened,
    ObjectId,
    ObjectsPrepared,
    ObjectStreamId,
    Slice,
    StreamCreated,
    StreamObject,
    StreamOpened,
    StreamSetObject,
    UploadCommitted,
    WalPosition,
)
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of, image_of
from dlog.wire.object_records import decode_entry, encode_entry
from dlog.wire.object_snapshot import decode_snapshot, encode_snapshot

STREAMS, NODES, SLICES, ENTRIES = 1000, 8, 10, 100
RECORDS_AN_ENTRY = 4  # of the metadata stream
BATCH, DECODED_OF = 10_000, 20  # records applied at once; of so many batches one is decoded
ONE = NodeEpoch(1)


def make_records(objects: int) -> Iterator[MetadataRecord]:
    """The records of so many objects. The streams are open on the nodes in turns."""
    nodes = [NodeId(f"node {number}") for number in range(NODES)]
    ends = [0] * STREAMS
    for node in nodes:
        yield NodeOpened(node, ONE, False)
    for stream in range(STREAMS):
        yield StreamCreated(ObjectStreamId(stream + 1))
        yield StreamOpened(ObjectStreamId(stream + 1), Epoch(1), nodes[stream % NODES], ONE)

    def grow(stream: int) -> tuple[ObjectStreamId, int, int]:
        start, ends[stream] = ends[stream], ends[stream] + ENTRIES
        return ObjectStreamId(stream + 1), start, ends[stream]

    for number in range(1, objects + 1):
        object = ObjectId(number)
        node = nodes[number % NODES]
        yield ObjectsPrepared(object, 1, node, ONE, 1)
        mine = range(number % NODES, STREAMS, NODES)
        at = number // NODES
        if number % 10:
            made = StreamObject(object, *grow(mine[at % len(mine)]), 8 << 20)
            yield UploadCommitted(node, ONE, None, (made,), WalPosition(0, number), 1)
        else:
            some = sorted({mine[(at * SLICES + one) % len(mine)] for one in range(SLICES)})
            slices = tuple(Slice(*grow(stream)) for stream in some)
            yield UploadCommitted(
                node, ONE, StreamSetObject(object, object, 1, 8 << 20, slices), (), WalPosition(0, number), 1
            )


def apply_all(objects: int) -> tuple[Image, dict[str, float]]:
    """Build the image. Some batches of records come as entries of a metadata stream, of which decoding is measured,
    too."""
    image, records = Image(), make_records(objects)
    applying_s = decoding_s = 0.0
    decoded = batches = 0
    while some := list(islice(records, BATCH)):
        if batches % DECODED_OF == 0:
            size = RECORDS_AN_ENTRY
            entries = [encode_entry(image.version + at, some[at : at + size]) for at in range(0, len(some), size)]
            begun_s = time.process_time()
            some = [record for entry in entries for record in decode_entry(entry)[1]]
            decoding_s += time.process_time() - begun_s
            decoded += len(some)
        begun_s = time.process_time()
        image.apply_all(some)
        applying_s += time.process_time() - begun_s
        batches += 1
    apply_s = applying_s / image.version
    return image, {
        "applied_per_s": round(1 / apply_s),
        "followed_per_s": round(1 / (apply_s + decoding_s / decoded)),
    }


def load(snapshot: Path) -> dict[str, float]:
    """Load a snapshot as a new follower does; the time, and the memory that the image takes."""
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    begun_s = time.process_time()
    data = snapshot.read_bytes()
    image = image_of(decode_snapshot(data))
    took_s = time.process_time() - begun_s
    snapshot_mb = len(data) / 1e6
    del data
    gc.collect()
    grown = process.memory_info().rss - before
    assert image.version > 0
    return {"load_s": round(took_s, 3), "image_mb": round(grown / 1e6, 1), "snapshot_mb": round(snapshot_mb, 1)}


def main(arguments: list[str]) -> int:
    """Print the figures."""
    if arguments[:1] == ["--load"]:
        print(json.dumps(load(Path(arguments[1]))))
        return 0
    as_json = arguments[:1] == ["--json"]
    objects = int((arguments[as_json:] or ["1000000"])[0])
    with tempfile.TemporaryDirectory(prefix="dlog-image-") as room:
        snapshot = Path(room) / "snapshot"
        image, figures = apply_all(objects)
        snapshot.write_bytes(encode_snapshot(contents_of(image)))
        del image
        command = python_module("loadtest.object_image", "--load", str(snapshot))
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=module_environment())
    figures |= json.loads(done.stdout)
    print(json.dumps(figures) if as_json else " ".join(f"{name}={value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
