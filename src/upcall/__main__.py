"""`python -m upcall` is the command.

May import: nothing.
"""

import sys

from upcall_command import main  # pyright: ignore[reportMissingTypeStubs]

sys.exit(main())
