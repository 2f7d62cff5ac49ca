"""The YAML at the beginning of agent files and skills: short, flat, and without aliases.

An alias may stand for another many times over, and merged keys double with each of them: 700 characters can take a
minute. Nobody needs them in front matter.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

MOST = 10_000
"""Characters of front matter."""

_MOST_LEVELS = 20


def compose(text: str) -> yaml.Node | None:
    """Return the root node of a YAML text, with the lines of its keys; yaml.YAMLError says what is wrong."""
    return _loader()(_check_size(text)).get_single_node()


def construct(text: str) -> Any:
    """Return the value of a YAML text; yaml.YAMLError or ValueError says what is wrong."""
    import yaml

    loader = _loader()(_check_size(text))
    node = loader.get_single_node()
    if node is None:
        return None
    try:
        return loader.construct_document(node)
    except (LookupError, AttributeError, TypeError) as error:  # the library does not check what follows `!!bool`
        problem = f"a value does not fit its tag ({type(error).__name__}: {error})"
        raise yaml.MarkedYAMLError(None, None, problem, node.start_mark) from None


def _check_size(text: str) -> str:
    import yaml

    if len(text) > MOST:
        raise yaml.YAMLError(f"it has {len(text)} characters; at most {MOST} are allowed")
    return text


@cache
def _loader() -> Any:
    """Return the loader class. It is created at the first use, because the library is slow to import."""
    import yaml
    from yaml.composer import ComposerError

    base: Any = yaml.SafeLoader

    class Loader(base):
        """Refuses aliases and deep nesting while it composes."""

        levels = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            """Compose one node; raise ComposerError if it is an alias or too deep."""
            event: Any = self.peek_event()
            if isinstance(event, yaml.AliasEvent):
                raise ComposerError(None, None, "aliases (*name) are not supported", event.start_mark)
            if self.levels >= _MOST_LEVELS:
                problem = f"it is nested more than {_MOST_LEVELS} levels deep"
                raise ComposerError(None, None, problem, event.start_mark)
            self.levels += 1
            try:
                return base.compose_node(self, parent, index)
            finally:
                self.levels -= 1

    return Loader
