"""The window of a producer: how many of its batches may be unanswered.

The owner of a stream sends it with every reply, since it depends on the store of the current segment. The log remembers
the DLSNs of as many batches of each producer, so that a batch that is sent again is answered with its DLSN.
"""

from __future__ import annotations

from dlog.options import KiB

WINDOW_MIN = 5  # also what a reply without a window means
WINDOW_MAX = 64
_BATCH_BYTES = 512 * KiB  # of a full batch


def window_for(bytes_in_flight: int, window_min: int = WINDOW_MIN) -> int:
    """The window with which one producer can have `bytes_in_flight` bytes in flight."""
    return max(window_min, min(bytes_in_flight // _BATCH_BYTES, WINDOW_MAX))
