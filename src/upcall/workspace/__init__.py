"""Files, a shell and todos for agents: where they are kept, and the tools that use them.

May import: workspace.folder, workspace.inlog, workspace.mounts.
"""

from upcall.workspace.folder import Folder
from upcall.workspace.inlog import InLog
from upcall.workspace.mounts import Mounts

__all__ = [
    "Folder",
    "InLog",
    "Mounts",
]
