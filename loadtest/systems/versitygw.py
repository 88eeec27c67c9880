"""Installs versitygw, an S3 server on a directory, for tests of cold storage, from the Go module proxy.

Source: the dependencies notes, section 4.
"""

from __future__ import annotations

import shutil

from loadtest.systems.java import CACHE, FetchFailedError, PartMissingError, run

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
SERVER = CACHE / "versitygw" / VERSION / "versitygw"
FETCH_S = 1500.0


def install() -> bool:
    """Build the server unless present; whether it was built. Raises PartMissingError, FetchFailedError."""
    if SERVER.exists():
        return False
    go = shutil.which("go")
    if go is None:
        raise PartMissingError("no go on PATH to build versitygw: run apt-get install golang-go (1.25 or newer)")
    SERVER.parent.mkdir(parents=True, exist_ok=True)
    run([go, "install", MODULE], FETCH_S, GOBIN=str(SERVER.parent), GOFLAGS="-buildvcs=false")
    if not SERVER.exists():
        raise FetchFailedError(f"go install succeeded but there is no {SERVER}")
    return True
