"""Workspaces, and the tools that use them: files, a shell, to-do lists and programs."""

from upcall.agent import Kit
from upcall.tools import tool
from upcall.workspace.command import shell
from upcall.workspace.files import Writing, ls, read_file
from upcall.workspace.folder import Folder
from upcall.workspace.guard import names_git
from upcall.workspace.inlog import InLog
from upcall.workspace.mounts import Mounts
from upcall.workspace.python import run_python
from upcall.workspace.search import glob, grep
from upcall.workspace.todos import read_todos, write_todos

__all__ = [
    "Folder",
    "InLog",
    "Mounts",
    "file_tools",
    "run_python",
    "shell",
    "todo_tools",
]


def file_tools() -> Kit:
    """Tools to list, find, read, write and edit the files of the agent's workspace.

    Writing into `.git` needs an approval.
    """
    writing = Writing()
    write = tool(writing.write_file, needs_approval=names_git)
    edit = tool(writing.edit_file, needs_approval=names_git)
    return Kit(tools=(ls, glob, grep, read_file, write, edit))


def todo_tools() -> Kit:
    """Tools to keep a to-do list; its open items survive compaction."""
    return Kit(tools=(write_todos, read_todos))
