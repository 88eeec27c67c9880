"""Error messages for OSErrors about files and directories: what happened, to which path, what to do."""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MISUSED = {
    errno.EACCES: "run it as the user that owns the path, or choose another path",
    errno.EPERM: "run it as the user that owns the path, or choose another path",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "check the name: a part of it is not a directory",
    errno.EISDIR: "name a file, not a directory",
    errno.EEXIST: "choose another path, or move the existing file away",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "name the file itself, not a symbolic link to it",
    errno.EINVAL: "check the name",
    errno.EROFS: "mount the file system writable, or choose another path",
}
_FAILED = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files (sysctl fs.file-max)",
}


@contextmanager
def named_errors(path: object) -> Iterator[None]:
    """Add the path to an OSError raised in the context without one, as by a write."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def names_file(error: BaseException) -> bool:
    """Whether the error names a file or directory."""
    return isinstance(error, OSError) and error.filename is not None


def describe_error(error: OSError) -> str:
    return f"{(error.strerror or str(error)).lower()}: file={error.filename}"


def remedy_for(error: OSError) -> str:
    number = error.errno or 0
    return _MISUSED.get(number) or _FAILED.get(number) or "check the disk and the system log (dmesg)"


def is_misuse(error: OSError) -> bool:
    """Whether another path, user or mount is needed (exit 2) rather than that something failed (exit 1)."""
    return error.errno in _MISUSED


def owner_of(path: Path) -> str:
    """The name of the user that owns the path, or its nearest parent that this process can examine; `uid N` for a user
    without a name, and `root` if it can examine none."""
    for there in (path, *path.parents):
        try:
            uid = os.stat(there).st_uid
        except OSError:
            continue
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return f"uid {uid}"
    return "root"
