"""`python -m upcall.cli` is the command."""

import sys

from upcall.cli import main

sys.exit(main())
