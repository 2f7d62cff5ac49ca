"""A log as reads have it: in the reader's thread, with a connection of its own and what is kept about the log.

The runtime that runs sessions belongs to the event loop, and so does its connection. No read may touch them. So a
read is a function that gets a `Log`, and nothing in a `Log` leads back to the event loop. `check_free` refuses
functions that carry anything but plain values from there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

import msgspec

from upcall.app import Runtime
from upcall.contracts import Store
from upcall.hosts.web.changes import Changes
from upcall.hosts.web.index.reader import IndexReader
from upcall.hosts.web.listing import Listing
from upcall.hosts.web.runs import KnownAgents
from upcall.hosts.web.trees import Trees
from upcall.hosts.web.waiting import Waiting
from upcall.observe.labels import Labels
from upcall.observe.redact import Redactor
from upcall.prices import Cost

R = TypeVar("R")

_PLAIN = (str, bytes, int, float, type(None), dict, list, tuple, msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Kept:
    """The index of a log, and how its texts are shown. Only the reader's thread uses it after the start."""

    redactor: Redactor
    labels: Labels
    cost: Cost | None
    view_only: bool
    agents: KnownAgents
    index: IndexReader | None
    listing: Listing
    trees: Trees
    changes: Changes
    waiting: Waiting


class Log:
    """A log to read from. `runtime` runs nothing; it is the reader's own."""

    def __init__(self, runtime: Runtime, kept: Kept) -> None:
        self.runtime, self.kept = runtime, kept

    @property
    def store(self) -> Store:
        """The reader's own connection."""
        return self.runtime.store


Read = Callable[[Log], Coroutine[Any, Any, R]]
"""Reads a log. It carries only plain values from the event loop."""


def check_free(read: Callable[..., Any]) -> None:
    """Raise TypeError if a read carries something that may belong to the event loop: an object, or its method."""
    if not isinstance(read, FunctionType):
        raise TypeError(f"{read!r} is not a plain function; a read function gets everything from its Log")
    for name, cell in zip(read.__code__.co_freevars, read.__closure__ or (), strict=True):
        value = cell.cell_contents
        if isinstance(value, FunctionType):
            check_free(value)
        elif not isinstance(value, _PLAIN):
            kind = type(value).__name__
            raise TypeError(f"{read.__qualname__} must not pass {name}, of type {kind}, to the reader's thread")
