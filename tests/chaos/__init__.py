"""Faults on real processes: parts of a cluster are killed, frozen, cut off, filled, expired and unplugged under load, a
bookie loses its directory, and then the histories are checked. `python -m tests.chaos --minutes 2` reports what it did
and what it found.

- `plan.py`: what is done when, from a seed, as a file.
- `links.py`: every connection between parts and clients, with switches; `zookeeper.py`: ending a session from outside.
- `disks.py`: a filesystem for each bookie, that can be filled and unplugged.
- `cluster.py`: the parts; `faults.py`: the faults.
- `client.py`: the processes that write and read; `report.py`: the result; `run.py`: one run.

Invariants:
- The parts are the ones that `dlog up` starts and watches, and the clients are ordinary clients.
- Faults are drawn from a seed before the run, so that a plan can be read, kept and run again. The effect on real
  processes differs from run to run.
- Nothing is checked during the run: every process writes down what it did and which answers it got (tests/history), and
  one checker checks all of it at the end.
- A run in which too little happened proves nothing, and its report says so.
- What this machine does not allow is named in the report.
"""
