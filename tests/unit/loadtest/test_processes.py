"""Tests the measurement of processes from outside."""

from __future__ import annotations

import os
import subprocess
import sys

from loadtest.processes import Watch, cpu_s, machine, usage

SPIN = """
import time
print("on", flush=True)
memory = bytearray(30_000_000)
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
print("off", flush=True)
input()
"""


def test_cpu_and_memory_of_a_process_by_its_role() -> None:
    process = subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        watch = Watch()
        watch.begin({"spinner": [process.pid], "us": [os.getpid()], "nobody": []})
        process.stdout.readline()
        watch.look({"spinner": [process.pid], "us": [os.getpid()]})
        used = watch.used()
        assert used["spinner"]["cpu_s"] > 0.1
        assert used["spinner"]["rss_peak_bytes"] >= 30_000_000
        assert used["spinner"]["processes"] == 1 and used["spinner"]["files"] >= 3
        assert set(used) == {"spinner", "us"}
        clock, ticks = cpu_s(process.pid), usage(process.pid)
        assert clock is not None and ticks is not None and abs(clock - ticks.cpu_s) < 0.1
    finally:
        process.communicate()
    assert usage(process.pid) is None and cpu_s(process.pid) is None
    watch.look({"spinner": [process.pid]})
    assert watch.used()["spinner"]["cpu_s"] == used["spinner"]["cpu_s"], "the dead keep what they were seen to use"


def test_the_machine_says_what_it_is() -> None:
    said = machine()
    assert said["cpus"] == os.cpu_count() and said["memory_bytes"] > 0 and said["kernel"]
