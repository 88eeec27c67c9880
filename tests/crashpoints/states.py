"""Every state in which a power cut may leave a disk: each prefix of the operations, with subsets of the unsynced ones.

ALICE's method (OSDI 2014) on a disk of 512-byte sectors: of up to EXHAUSTIVE uncertain sectors and names every subset
is made; of more all, none, each one alone missing, and seeded random ones. Equal images are given once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from tests.simulation.disk import Cuts, Image, Keep, SimulatedDisk, all_kept, all_lost, coin

EXHAUSTIVE = 8


def states(disk: SimulatedDisk, rng: random.Random, samples: int) -> Iterator[tuple[int, Image]]:
    """(operations done, disk after the cut). samples: random subsets of a point with more than EXHAUSTIVE uncertain
    parts."""
    for after in range(len(disk.operations) + 1):
        cuts = disk.cuts(after)
        common = {
            inode: hash(bytes(content)) for inode, content in cuts.base.contents.items() if inode not in cuts.unsettled
        }
        seen: set[int] = set()
        for keep in _ways(cuts, rng, samples):
            image = cuts.image(keep)
            mark = _fingerprint(image, common)
            if mark not in seen:
                seen.add(mark)
                yield after, image


def _ways(cuts: Cuts, rng: random.Random, samples: int) -> Iterator[Keep]:
    count = 0

    def counting() -> bool:
        nonlocal count
        count += 1
        return True

    cuts.image(counting)
    if count <= EXHAUSTIVE:
        for bits in range(1 << count):
            yield _pattern(bits)
        return
    yield all_kept
    yield all_lost
    for missing in rng.sample(range(count), min(count, samples)):
        yield _pattern(~(1 << missing))
    for _ in range(samples):
        yield coin(rng, rng.choice((0.1, 0.5, 0.9)))


def _pattern(bits: int) -> Keep:
    left = bits

    def keep() -> bool:
        nonlocal left
        kept = left & 1
        left >>= 1
        return bool(kept)

    return keep


def _fingerprint(image: Image, common: Mapping[int, int]) -> int:
    """common: the hashes of contents that all images of this point share."""
    contents = image.contents
    named = sorted(image.names.items())
    return hash(
        tuple((path, common[inode] if inode in common else hash(bytes(contents[inode]))) for path, inode in named)
    )
