"""Run `python -m bench.replay`."""

import sys

from bench.replay.run_replay import main

if __name__ == "__main__":
    sys.exit(main())
