"""Real processes under faults: everything is killed, frozen, cut off, filled, expired and unplugged under load, and
then judged. `python -m tests.chaos --minutes 2` says what it did and what it found.

The law of this room: the parts are the ones `dlog up` starts and watches, and the clients are clients like any other.
Faults are drawn from a seed before the run, so that a plan can be read, kept and run again; what real processes make of
it is not the same twice. Nothing is judged while it happens: every process writes down what it did and what it was told
(tests/history), and one checker judges all of it at the end. A run in which too little happened proves nothing and says
so. Whatever this machine does not allow is named in the report, never left out in silence.

- `plan.py`: what is done when, from a seed, as a file.
- `links.py`: every connection between parts and clients, with switches; `zookeeper.py`: ending a session from outside.
- `disks.py`: a filesystem for each bookie, that can be filled and unplugged.
- `cluster.py`: the parts; `faults.py`: what is done to them.
- `client.py`: the processes that write and read; `report.py`: what came of it; `run.py`: one run.
"""
