"""Views of a run for people and programs: nodes, labels, redaction, the mirror file, notifications.

Screens of your own use `RunTreeNodes`, which folds events to a tree of nodes, and `Redactor`, which hides secrets.
"""

from upcall.observe.capture import model_call_json, price_list, read_prices
from upcall.observe.labels import Label, Labels
from upcall.observe.node_table import Change, Node, apply_changes
from upcall.observe.nodes import RunTreeNodes
from upcall.observe.redact import Redactor
from upcall.observe.redact_stream import RedactedStream

__all__ = [
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
