"""Files, a shell, todos and programs for agents: where they are kept, and the tools that use them.

May import: workspace.folder, workspace.inlog, workspace.mounts, workspace.python.
"""

from upcall.workspace.folder import Folder
from upcall.workspace.inlog import InLog
from upcall.workspace.mounts import Mounts
from upcall.workspace.python import run_python

__all__ = [
    "Folder",
    "InLog",
    "Mounts",
    "run_python",
]
