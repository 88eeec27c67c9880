"""`python -m dlog` is `dlog`."""

import sys

from dlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
