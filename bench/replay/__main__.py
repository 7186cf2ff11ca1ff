"""`python -m bench.replay`."""

import sys

from bench.replay.command import main

if __name__ == "__main__":
    sys.exit(main())
