"""`python -m loadtest`: runs workloads on systems, reports on a run, or installs other systems.

python -m loadtest W1,W3 --system dlog,kafka --quick --out RUN.json
python -m loadtest --plan loadtest/plans/main.toml --out RUN.json
python -m loadtest report RUN.json --html report.html
python -m loadtest peers install kafka
python -m loadtest spark --gb 1 --rounds 5
python -m loadtest growth truncate roll
"""

from __future__ import annotations

import sys
from importlib import import_module

from loadtest import attached, command
from loadtest.report import main as report

USAGE = f"""usage: python -m loadtest WORKLOAD[,WORKLOAD...]|all [options]     run workloads (--help says more)
       python -m loadtest --plan PLAN.toml --out RUN.json         run a list of such commands into one file; resumable
       python -m loadtest report RUN.json [options]               make tables, plots and a page from a run
       python -m loadtest peers install|start NAME                install or start a system to compare with
       python -m loadtest spark [--gb N] [--rounds R]             W18: read with Spark; compare with Kafka and Parquet
       python -m loadtest growth [CURVE ...] [--sizes N,N,N]      cost of operations at three sizes, and its exponent
       python -m loadtest {"|".join(attached.NAMES)}
                                                                  quick measurement of a cluster that already runs
"""


def main(arguments: list[str]) -> int:
    """Exit 0: green; 1: not green, or something failed; 2: wrong usage."""
    match arguments:
        case ["report", *rest]:
            return report(rest)
        case ["peers", *rest]:
            return int(import_module("loadtest.systems.peers").main(rest))
        case ["spark", *rest]:
            return int(import_module("loadtest.spark.command").main(rest))
        case ["growth", *rest]:
            return int(import_module("loadtest.growth.command").main(rest))
        case ["-h" | "--help"]:
            print(USAGE)
            return command.main(arguments)
        case []:
            print(USAGE, file=sys.stderr)
            return 2
    if any(name in attached.NAMES for name in arguments):
        return attached.main(arguments)
    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
