"""Checks the root of the objects that a cluster is to use, before anything starts."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

from dlog.cli.output import CommandError
from dlog.io.objects import Objects
from dlog.stores.contract import SegmentNotFoundError, StoreError
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.s3_direct.options import ObjectsOptions


def check_objects(root: str, *, options: ObjectsOptions, is_given: bool) -> None:
    """Check that streams can have their objects below a root; empty: none do.

    is_given: it was named for this start, so it must answer. Else the storage may be down now: the cluster starts, and
    its streams there are served once it answers. Raises CommandError, ConfigError.
    """
    if not root:
        return
    location = parse_root(root)
    if location.scheme == "s3" and importlib.util.find_spec("aiobotocore") is None:
        raise CommandError("streams on S3 need aiobotocore, which is not installed", "pip install 'dlogd[s3]'")
    if location.scheme not in ("s3", "file"):
        raise CommandError(
            f"streams cannot have their objects there, no object can be created only where there is none: root={root}",
            "name s3://bucket/prefix or file:///path with --objects",
        )
    if location.scheme == "file":
        _check_directory(Path(location.file_path))
    elif is_given:
        asyncio.run(_read_something(location, options))


def _check_directory(directory: Path) -> None:
    """Check that a directory can be written, or created."""
    there = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "permission denied" if there.is_dir() else "a file is in the way"
        raise CommandError(
            f"the objects cannot be in this directory, {why}: path={there}",
            "name another one with --objects, or change its owner or mode",
        )


async def _read_something(location: Location, options: ObjectsOptions) -> None:
    """Have the storage answer."""
    async with Objects(options) as objects:
        try:
            await objects.read(location.below(f"absent-{os.getpid()}"), 0, 1)
        except SegmentNotFoundError:
            return
        except StoreError as error:
            raise CommandError(
                f"the objects cannot be at this root: {error.message}",
                "correct --objects, or the section [objects] (DLOG_OBJECTS_*)",
            ) from None
