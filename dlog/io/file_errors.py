"""What the system says about a file or a directory, told with its path and with what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_MISUSED = {
    errno.EACCES: "run it as the user who owns it, or choose another",
    errno.EPERM: "run it as the user who owns it, or choose another",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "check the name: a part of it is no directory",
    errno.EISDIR: "name a file",
    errno.EEXIST: "choose another, or move away what is there",
    errno.ENAMETOOLONG: "choose a shorter one",
    errno.ELOOP: "name the file itself, not a link to it",
    errno.EINVAL: "check the name",
    errno.EROFS: "mount it so that it can be written, or choose another",
}
_FAILED = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or raise the quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of the machine",
}


@contextmanager
def named_errors(path: object) -> Iterator[None]:
    """Name the path in each OSError that leaves the scope and names none, as those of a write do."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def names_file(error: BaseException) -> bool:
    """Whether it is about a file or a directory that it names."""
    return isinstance(error, OSError) and error.filename is not None


def what_happened(error: OSError) -> str:
    return f"{(error.strerror or str(error)).lower()}: file={error.filename}"


def what_to_do(error: OSError) -> str:
    number = error.errno or 0
    return _MISUSED.get(number) or _FAILED.get(number) or "look at the disk, and at what the system logged"


def is_misuse(error: OSError) -> bool:
    """Whether another path, user or mount is wanted (exit 2), rather than that something failed (exit 1)."""
    return error.errno in _MISUSED
