"""The simulation `service`: the whole service as it ships, on a virtual loop, over simulated network, disks and
ZooKeeper."""

from __future__ import annotations

from tests.simulation.service import drawing, world
from tests.simulation.service.mutants import MUTANTS
from tests.simulation.worlds import Room

MUST_REACH = (
    "ack",
    "delivered",
    "stream.owned",
    "ledger.recovered",
    "ensemble.changed",
    "segment.completed",
    "fault.power",
    "fault.crash",
    "fault.pause",
    "fault.cut",
    "fault.expire",
    "power.unsynced",
    "take-over",
    "append.cancelled",
    "fault.meta_reply_lost",
    "fault.fsync_error",
    "fault.disk_full",
    "fault.slow_disk",
    "fault.rot",
    "ledger.id_in_use",
    "ledger.buried",
    "deletion.marked",
    "expired",
    "collection.compact",
)


def room() -> Room:
    return Room(
        name="service",
        styles=drawing.STYLES,
        draw=drawing.draw,
        run=world.run,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress={
            "acks": ("ack",),
            "recoveries": ("ledger.recovered",),
            "ensemble changes": ("ensemble.changed",),
            "take-overs": ("take-over",),
        },
    )
