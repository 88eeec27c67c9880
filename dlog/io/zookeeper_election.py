"""Election of the auditor, as BookKeeper elects it: ephemeral sequential votes, of which the lowest wins.

The election of the controller of object streams (actors/object_controller.py) is a claim on a stream, which Java does
not know; with these znodes a Java auditor and ours take turns.

Invariants:
- A process has one vote for each session; one that a lost reply left in this session counts as its vote.
- Two processes may believe that they are elected while one of them has not noticed that its session is over. Nothing
  depends on there being one: marks merge.

Source: BookKeeper `ZkLedgerAuditorManager`.
"""

from __future__ import annotations

from dlog.io.zookeeper import ANY_VERSION, ZooKeeper
from dlog.io.zookeeper_layout import UnderreplicationPaths
from dlog.wire.underreplication import encode_holder


class AuditorElection:
    """This process's part in the election. name: in its vote, in the syntax of a bookie id."""

    def __init__(self, zk: ZooKeeper, paths: UnderreplicationPaths, name: str) -> None:
        self._zk = zk
        self._paths = paths
        self._vote = encode_holder(name)
        self._announced_generation = -1  # session in which this process was last announced as the auditor

    async def is_elected(self) -> bool:
        """Vote if this session has no vote, and look whether it is the lowest. Raises MetadataUnavailableError.

        Cancelling may leave a vote, which the next call uses. Votes end with the session.
        """
        mine = await self._zk.ephemerals(self._paths.votes)
        if not mine:
            made = await self._zk.create(self._paths.votes, self._vote, ephemeral=True, sequential=True, parents=True)
            mine = [made.path]
        generation = self._zk.generation
        names = (await self._zk.children(self._paths.election, fresh=True))[0]
        numbers = [number for name in names if (number := _number(f"{self._paths.election}/{name}")) is not None]
        if not numbers or min(numbers) not in map(_number, mine):
            return False
        if self._announced_generation != generation:
            await self._zk.set(self._paths.election, self._vote, ANY_VERSION)
            self._announced_generation = generation
        return True


def _number(path: str) -> int | None:
    digits = path.rpartition("/V_")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else None
