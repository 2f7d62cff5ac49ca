"""Run the command: `python -m upcall.cli`."""

import sys

from upcall.cli import main

sys.exit(main())
