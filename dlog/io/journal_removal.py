"""Takes journals out of a bookie's list, at a start that finds them left out.

The start opens the storage with the old list, as always: that replays all journals and makes a checkpoint, after which
each is empty. Then the bookie forgets those that were left out, and opens the storage again without them.

Invariants:
- Until a directory names the shorter list, a start empties the journals again; from then on they hold nothing that is
  not in the ledger directories.
- Ledger directories forget the mark of a journal only when it has no group, so that a start that begins at its first
  file finds nothing.
"""

from __future__ import annotations

from dlog.io.bookie_dirs import LockedDirs, clear_left_out, write_version
from dlog.io.bookie_store import OpenedStorage
from dlog.io.metadata import Cookies
from dlog.io.threads import Threads
from dlog.machine import Versioned
from dlog.wire.bookie_info import Cookie, encode_cookie


async def remove_journals(
    dirs: LockedDirs, opened: OpenedStorage, cookie: Cookie, metadata: Cookies, threads: Threads
) -> None:
    """Take `dirs.left_out` out of the list. opened: the storage with all journals, to which nothing was written; it is
    closed. cookie: with the shorter list. Cancelled or killed anywhere, the next start does it again.

    Raises OSError, CookieError, MetadataUnavailableError.
    """
    text = encode_cookie(cookie)
    await threads.run(_empty, opened, len(dirs.paths.journals))
    await threads.run(write_version, dirs, text)
    seen = await metadata.read_cookie(cookie.bookie)
    await metadata.write_cookie(cookie.bookie, text, seen.version if isinstance(seen, Versioned) else None)
    await threads.run(clear_left_out, dirs)


def _empty(opened: OpenedStorage, kept: int) -> None:
    """Empty the journals behind the first `kept`, then forget their marks."""
    try:
        for journal in opened.journals[kept:]:
            journal.drop_checkpointed()
        opened.dirs.flush({}, (), opened.marks[:kept])
    finally:
        opened.close()
