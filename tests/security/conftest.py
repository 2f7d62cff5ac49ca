"""Where a test's log is kept, as in the callbacks' tests."""

from callbacks.conftest import desk, place

__all__ = ["desk", "place"]
