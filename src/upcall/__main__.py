"""`python -m upcall` is the command.

May import: cli.
"""

import sys

from upcall.cli import main

sys.exit(main())
