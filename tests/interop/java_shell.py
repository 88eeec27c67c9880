"""BookKeeper's command-line tool, `BookieShell`, as a process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from loadtest.systems.java import BOOKKEEPER
from tests.integration.cluster import BookieCluster
from tests.interop.java_peer import FLAGS


def run_shell(bookies: BookieCluster, directory: Path, *command: str) -> str:
    """What a command prints; it must succeed. directory: for its configuration."""
    conf = directory / "bk.conf"
    conf.write_text(f"metadataServiceUri=zk+hierarchical://{bookies.hosts}/ledgers\nledgerDirectories={directory}\n")
    shell = ("org.apache.bookkeeper.bookie.BookieShell", "-conf", str(conf))
    java = ["java", *FLAGS, "-cp", BOOKKEEPER.class_path(), *shell]
    done = subprocess.run([*java, *command], capture_output=True, text=True, timeout=120, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    return output
