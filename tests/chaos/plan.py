"""The plan of a run, drawn from a seed before anything starts: which fault at which time; a file that can be run again.

A target may be a part ("bookie-2"), the owner of a stream at that moment ("owner:bulk"), a rack ("rack-1"), or a pair
of parts ("client-1>owner:bulk"); `*` means every part.

Invariants:
- A run of a few minutes meets every kind of fault: one deck holds each kind once, and decks are shuffled and dealt one
  after the other. Plans for streams in objects have further kinds, and the object storage as a target.
- At most one bookie loses its directory: an acknowledged entry may have two copies only.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from dlog.client.stream_info import SettingsChanges

WARM_UP_S = 4.0
BOOKIES, WRITERS, READERS, CLIENTS = 5, 2, 2, 3  # an ensemble of 4 finds its bookies also when one is lost
RACKS = 2
_LOSS_WITHIN = 9  # of the first faults, so that a short run has it, and copies are made again under the others
#: stream -> the settings given to `create`
STREAMS: dict[str, SettingsChanges] = {
    "bulk": {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "segment_bytes": 16 << 20},
    "rolls": {"ensemble": 3, "write_quorum": 2, "ack_quorum": 2, "segment_bytes": 1 << 20},
    "singles": {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "segment_bytes": 512 << 10},
    "numbered": {"ensemble": 4, "write_quorum": 3, "ack_quorum": 2, "segment_bytes": 2 << 20},
}
STORES = ("ledger", "s3", "s3-direct")

_Card = Callable[[random.Random, float], "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """at_s: seconds after the load has begun. for_s: until it is healed; 0 if it heals by itself. amount: its meaning
    depends on the kind (bytes until a reset, bytes a second)."""

    at_s: float
    kind: str
    target: str
    for_s: float = 0.0
    amount: int = 0

    def __str__(self) -> str:
        length = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.kind} {self.target}{length}"


@dataclass(frozen=True, slots=True)
class Plan:
    """seconds: length of the load. store: of all streams. wal: store of the write-ahead logs, of streams in `s3`."""

    seed: int
    seconds: float
    faults: list[Fault]
    store: str = "ledger"
    wal: str = "ledger"

    @property
    def streams(self) -> dict[str, SettingsChanges]:
        """The streams, and the settings given to `create`."""
        if self.store == "ledger":
            return STREAMS
        return {name: {"store": self.store, "segment_bytes": of["segment_bytes"]} for name, of in STREAMS.items()}

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_plan(path: Path) -> Plan:
    """Read a plan from a file. Raises ValueError if it is not a plan."""
    told = json.loads(path.read_text())
    try:
        faults = [Fault(**fault) for fault in told.pop("faults")]
        return Plan(int(told.pop("seed")), float(told.pop("seconds")), faults, **told)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a plan: {error}: file={path}") from error


def make_plan(seed: int, seconds: float, every_s: float, store: str = "ledger", wal: str = "ledger") -> Plan:
    """Draw a plan that lasts `seconds`, with a fault about every `every_s`."""
    rng = random.Random(seed)
    cards = [*_DECK, *({"s3": [*_STORAGE, *_CONTROLLER], "s3-direct": _STORAGE}.get(store, []))]
    faults: list[Fault] = []
    deck: list[_Card] = []
    at_s = WARM_UP_S
    while at_s < seconds - 2.0:
        if not deck:
            deck = list(cards)
            rng.shuffle(deck)
            if not faults:
                deck.insert(len(deck) - rng.randint(0, _LOSS_WITHIN), _LOSS)
        faults.append(deck.pop()(rng, round(at_s, 2)))
        at_s += every_s * (0.25 + 1.5 * rng.random())
    return Plan(seed, seconds, faults, store, wal)


def _owner(rng: random.Random) -> str:
    return f"owner:{rng.choice(list(STREAMS))}"


def _bookie(rng: random.Random) -> str:
    return f"bookie-{rng.randint(1, BOOKIES)}"


def _rack(rng: random.Random) -> str:
    return f"rack-{rng.randint(1, RACKS)}"


def _writer(rng: random.Random) -> str:
    return f"write-{rng.randint(1, WRITERS)}"


def _reader(rng: random.Random) -> str:
    return f"read-{rng.randint(1, READERS)}"


def _client(rng: random.Random) -> str:
    return f"client-{rng.randint(1, CLIENTS)}"


def _short(rng: random.Random) -> float:
    """Draw a duration, log-uniform in 0.1 to 8 s: as many short interruptions as outages."""
    return round(0.1 * math.exp(math.log(80.0) * rng.random()), 2)


def _deal(kind: str, target: Callable[[random.Random], str], *, lasts: bool = False, amount: int = 0) -> _Card:
    def card(rng: random.Random, at_s: float) -> Fault:
        where = target(rng)
        return Fault(at_s, kind, where, _short(rng) if lasts else 0.0, rng.randint(1, amount) if amount else 0)

    return card


_DECK: list[_Card] = [
    _deal("kill", _owner),
    _deal("kill", _writer),
    _deal("kill", _reader),
    _deal("kill", _bookie),
    _deal("kill", lambda rng: "recovery-1"),
    _deal("kill", lambda rng: "zookeeper"),
    _deal("kill", lambda rng: "everything"),
    _deal("pause", _owner, lasts=True),
    _deal("pause", _writer, lasts=True),
    _deal("pause", _reader, lasts=True),
    _deal("pause", _bookie, lasts=True),
    _deal("pause", lambda rng: "zookeeper", lasts=True),
    _deal("cut", lambda rng: f"{_owner(rng)}>{_bookie(rng)}", lasts=True),
    _deal("cut", lambda rng: f"{_owner(rng)}>zookeeper", lasts=True),
    _deal("cut", lambda rng: f"*>{_owner(rng)}", lasts=True),
    _deal("cut", lambda rng: f"{_owner(rng)}>*", lasts=True),
    _deal("cut", lambda rng: f"{_client(rng)}>{_owner(rng)}", lasts=True),
    _deal("cut", lambda rng: f"{_reader(rng)}>{_bookie(rng)}", lasts=True),
    _deal("cut", lambda rng: f"*>{_bookie(rng)}", lasts=True),
    _deal("cut", lambda rng: "*>zookeeper", lasts=True),
    _deal("isolate", _rack, lasts=True),
    _deal("cut-requests", lambda rng: f"{_owner(rng)}>{_bookie(rng)}", lasts=True),
    _deal("cut-replies", lambda rng: f"{_owner(rng)}>{_bookie(rng)}", lasts=True),
    _deal("cut-replies", lambda rng: f"{_owner(rng)}>zookeeper", lasts=True),
    _deal("cut-replies", lambda rng: f"{_client(rng)}>{_owner(rng)}", lasts=True),
    _deal("reset", lambda rng: f"{_owner(rng)}>{_bookie(rng)}", amount=200_000),
    _deal("reset", lambda rng: f"{_client(rng)}>{_owner(rng)}", amount=200_000),
    _deal("reset", lambda rng: f"{_owner(rng)}>zookeeper", amount=300),
    _deal("slow", lambda rng: f"{_owner(rng)}>{_bookie(rng)}", lasts=True, amount=200_000),
    _deal("fill", _bookie, lasts=True, amount=24 << 20),
    _deal("expire", _owner),
    _deal("expire", _bookie),
    _deal("restart", lambda rng: "zookeeper"),
    _deal("restart", _owner),
    _deal("restart", lambda rng: "everything"),
    _deal("release", _owner),
    _deal("unplug", _bookie),
    _deal("unplug", lambda rng: "bookies"),
]

_LOSS = _deal("lose", _bookie)
_S3 = "versitygw"


def _disturb(name: str, count: int, *, lasts: bool = False) -> _Card:
    return _deal("storage", lambda rng: name, lasts=lasts, amount=count)


#: of the object storage; tests/chaos/storage.py has what each disturbance is
_STORAGE: list[_Card] = [
    _deal("kill", lambda rng: _S3),
    _deal("pause", lambda rng: _S3, lasts=True),
    _deal("cut", lambda rng: f"*>{_S3}", lasts=True),
    _deal("cut", lambda rng: f"{_owner(rng)}>{_S3}", lasts=True),
    _deal("cut-replies", lambda rng: f"{_owner(rng)}>{_S3}", lasts=True),
    _deal("slow", lambda rng: f"*>{_S3}", lasts=True, amount=2_000_000),
    _deal("reset", lambda rng: f"{_owner(rng)}>{_S3}", amount=500_000),
    _disturb("drop-request", 5),
    _disturb("drop-answer", 5),
    _disturb("late-request", 5, lasts=True),
    _disturb("cut-answer", 5),
    _disturb("repeat", 10),
    _disturb("conflict", 10),
    _disturb("busy", 40),
]

_HOST = "owner:_dlog.objects"
#: of the process that hosts the controller
_CONTROLLER: list[_Card] = [
    _deal("kill", lambda rng: _HOST),
    _deal("pause", lambda rng: _HOST, lasts=True),
    _deal("restart", lambda rng: _HOST),
    _deal("cut", lambda rng: f"*>{_HOST}", lasts=True),
    _deal("cut", lambda rng: f"{_HOST}>{_S3}", lasts=True),
    _deal("cut", lambda rng: f"{_HOST}>zookeeper", lasts=True),
    _deal("expire", lambda rng: _HOST),
]
