"""Makes `python -m dlog` the same as the command `dlog`."""

import sys

from dlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
