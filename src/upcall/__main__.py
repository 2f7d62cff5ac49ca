"""`python -m upcall` is the command."""

import sys

from upcall_command import main  # pyright: ignore[reportMissingTypeStubs]

sys.exit(main())
