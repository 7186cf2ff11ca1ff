"""`python -m reprise`: the command `reprise`."""

import sys

from reprise.cli.main import main

sys.exit(main())
