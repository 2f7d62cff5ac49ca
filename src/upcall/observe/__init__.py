"""Views of a run for people and programs: nodes, labels, redaction, the mirror file, notifications.

Screens of your own use `RunTreeNodes`, which folds events to a tree of nodes, and `Redactor`, which hides secrets.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upcall.observe.capture import model_call_json, price_list, read_prices
    from upcall.observe.labels import Label, Labels
    from upcall.observe.node_table import BriefNode, Change, Node, apply_changes
    from upcall.observe.nodes import RunTreeNodes
    from upcall.observe.redact import Redactor
    from upcall.observe.redact_stream import RedactedStream

__all__ = [
    "BriefNode",
    "Change",
    "Label",
    "Labels",
    "Node",
    "RedactedStream",
    "Redactor",
    "RunTreeNodes",
    "apply_changes",
    "model_call_json",
    "price_list",
    "read_prices",
]

_PLACES = {
    "model_call_json": "upcall.observe.capture",
    "price_list": "upcall.observe.capture",
    "read_prices": "upcall.observe.capture",
    "Label": "upcall.observe.labels",
    "Labels": "upcall.observe.labels",
    "BriefNode": "upcall.observe.node_table",
    "Change": "upcall.observe.node_table",
    "Node": "upcall.observe.node_table",
    "apply_changes": "upcall.observe.node_table",
    "RunTreeNodes": "upcall.observe.nodes",
    "Redactor": "upcall.observe.redact",
    "RedactedStream": "upcall.observe.redact_stream",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a command that shows nothing starts sooner."""
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module 'upcall.observe' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return found
