"""The list of simulations; a new one adds a line here: its name, and the module whose `room()` makes its `Room`.

A simulation is imported on demand, so that hunting in one does not import the others.
"""

from __future__ import annotations

import importlib

from tests.simulation.worlds import Room

_MODULES = {
    "ledger": "tests.simulation.ledger_world",
    "repair": "tests.simulation.repair_world",
    "auditor": "tests.simulation.auditor_world",
    "stream": "tests.simulation.stream_world",
    "cache": "tests.simulation.cache_world",
    "files": "tests.simulation.file_world",
    "region": "tests.simulation.region_world",
    "objects": "tests.simulation.objects_world",
    "compaction": "tests.simulation.compaction_world",
    "nodes": "tests.simulation.object_nodes_world",
    "controller": "tests.simulation.object_controller_world",
    "service": "tests.simulation.service.room",
}
NAMES = tuple(_MODULES)


def load(name: str) -> Room:
    """The `Room` of this name. Raises KeyError if there is none."""
    made: Room = importlib.import_module(_MODULES[name]).room()
    assert made.name == name
    return made
