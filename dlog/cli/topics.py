"""Checks the address of the topics that a cluster is to use, before anything starts."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

from dlog.cli.output import CommandError
from dlog.hostport import split_host_port
from dlog.io.kafka_settings import parse_kafka_address

CONNECT_S = 3.0  # for each broker


def check_topics(address: str, *, is_given: bool) -> None:
    """Check that topics can be used at an address in its full form; empty: none are used.

    is_given: it was named for this start. Else brokers may be down now: the cluster starts, and its streams on Kafka
    are served once they answer. Raises CommandError.
    """
    if not address:
        return
    if address.startswith("file://"):
        _check_directory(Path(address.removeprefix("file://")))
        return
    brokers = parse_kafka_address(address)
    if importlib.util.find_spec("aiokafka") is None:
        raise CommandError("streams on Kafka need aiokafka, which is not installed", "pip install 'dlogd[kafka]'")
    if is_given:
        _check_brokers(brokers)


def _check_directory(directory: Path) -> None:
    """Check that a directory can be written, or created."""
    there = next(path for path in (directory, *directory.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise CommandError(
            f"the topics cannot be in this directory, a file is in the way: file={there}",
            "name another directory with --kafka",
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise CommandError(
            f"the topics cannot be in this directory, permission denied: directory={there}",
            "change its owner or mode, or name another one with --kafka",
        )


def _check_brokers(brokers: tuple[str, ...]) -> None:
    """Check that one of these brokers accepts a connection."""
    why = ""
    for broker in brokers:
        try:
            with socket.create_connection(split_host_port(broker), CONNECT_S):
                return
        except OSError as error:
            why = (error.strerror or str(error) or "no answer").lower()
    raise CommandError(
        f"none of Kafka's brokers accepts a connection: {why}: brokers={','.join(brokers)}",
        "start Kafka, or correct --kafka; without the flag a cluster that had it before starts all the same",
    )
