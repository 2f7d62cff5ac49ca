"""Unwind what waits for a callback, so that its memory is free."""

from __future__ import annotations


class Parking(BaseException):
    """Raised through code that waits for a callback when its run is parked.

    A BaseException, so that `except Exception` in a tool does not swallow it.
    """
