"""Measures the index search of streams in objects: `python -m loadtest.object_search [--json] [OBJECTS ...]`.

Builds an image with so many objects (10^3 and 10^6 unless said otherwise) in two layouts: all of one stream, or of a
thousand streams. Nine of ten objects are stream objects; the others are slices in stream-set objects of eight nodes,
between which the streams move. Each search begins at a random entry and wants at most four objects. Times are CPU times
of this process, which waits for nothing.
"""

from __future__ import annotations

import json
import random
import sys
import time

from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId
from dlog.objects.image import Image, NodeImage, Range, SliceTable, StreamImage
from dlog.objects.search import find_objects

WANTED = 4
SEARCHES = 20_000
ENTRIES = 100  # of each object
OBJECTS_A_RANGE = 50
NODES = [NodeId(f"node {number}") for number in range(8)]


def build_image(objects: int, streams: int) -> Image:
    """An image with so many objects, evenly spread over the streams."""
    image, rng = Image(), random.Random(objects)
    image.nodes = {node: NodeImage() for node in NODES}
    image.next_stream = ObjectStreamId(streams + 1)
    number = 0
    for stream in map(ObjectStreamId, range(1, streams + 1)):
        its = image.streams[stream] = StreamImage()
        for at in range(objects // streams):
            number += 1
            if at % OBJECTS_A_RANGE == 0:
                if its.ranges:
                    its.ranges[-1].end = at * ENTRIES
                its.ranges.append(Range(Epoch(at), rng.choice(NODES), NodeEpoch(1), at * ENTRIES))
            node = image.nodes[its.ranges[-1].node]
            table = its.objects if rng.random() < 0.9 else node.slices.setdefault(stream, SliceTable())
            table.add(at * ENTRIES, (at + 1) * ENTRIES, ObjectId(number))
            its.ranges[-1].committed = (at + 1) * ENTRIES
    return image


def measure(image: Image) -> tuple[float, float]:
    """The median and the 99th percentile of the searches, in microseconds."""
    rng, took = random.Random(1), []
    streams = len(image.streams)
    for _ in range(SEARCHES):
        stream = ObjectStreamId(rng.randint(1, streams))
        end = image.streams[stream].ranges[-1].committed
        start = rng.randrange(max(1, end - WANTED * ENTRIES))
        begun = time.process_time_ns()
        result = find_objects(image, stream, start, start + 100 * ENTRIES, WANTED)
        took.append(time.process_time_ns() - begun)
        assert 1 <= len(result.objects) <= WANTED and result.covered_to > start
    took.sort()
    return took[len(took) // 2] / 1e3, took[len(took) * 99 // 100] / 1e3


def main(arguments: list[str]) -> int:
    """Print one line for each layout; with --json, one object for each number of objects: the worse of its layouts."""
    as_json = arguments[:1] == ["--json"]
    for objects in map(int, arguments[as_json:] or ("1000", "1000000")):
        found = []
        for streams in (1, min(1000, objects // 4)):
            median, high = measure(build_image(objects, streams))
            found.append((median, high))
            if not as_json:
                print(f"objects={objects} streams={streams} wanted={WANTED} p50={median:.1f}us p99={high:.1f}us")
        if as_json:
            p50_us, p99_us = (round(max(values), 2) for values in zip(*found, strict=True))
            print(json.dumps({"p50_us": p50_us, "p99_us": p99_us}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
