"""The role that each message of a client needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from upcall.tokens import ROLES, Role

_LOOKS = ("status", "inbox")
_ANSWERS = frozenset({"tasks/update"})
_READS = frozenset(
    {
        "initialize", "ping", "server/discover", "tools/list", "tasks/get", "tasks/list", "tasks/result",
        "resources/list", "resources/read", "resources/templates/list", "resources/subscribe",
        "resources/unsubscribe", "prompts/list", "prompts/get", "completion/complete", "logging/setLevel",
        "subscriptions/listen",
    }
)  # fmt: skip
"""The methods that change no session. All others need the role operator, also those of later versions."""


class Needed(NamedTuple):
    """The weakest role that may send a message, and what the message asks for."""

    role: Role
    action: str


def role_needed(message: Any) -> Needed:
    """Return the role that a message needs: viewer to read, answerer to fill in a form, operator for all else.

    A message that is not valid needs nothing: it is answered with an error.
    """
    if isinstance(message, Sequence) and not isinstance(message, str | bytes):
        all_needed = [role_needed(one) for one in cast("Sequence[Any]", message)]
        return max(all_needed, key=lambda one: ROLES.index(one.role), default=Needed("viewer", "nothing"))
    if not isinstance(message, Mapping):
        return Needed("viewer", "nothing")
    fields = cast("Mapping[str, Any]", message)
    method, params = fields.get("method"), fields.get("params")
    if method is None:
        return Needed("answerer", "answer a form")
    if method != "tools/call":
        return Needed(_role_of(str(method)), str(method))
    given: Mapping[str, Any] = cast("Mapping[str, Any]", params) if isinstance(params, Mapping) else {}
    name = given.get("name")
    if name == "answer" or (name in _LOOKS and given.keys() & {"requestState", "inputResponses"}):
        return Needed("answerer", f"tools/call {name}")
    return Needed("viewer" if name in _LOOKS else "operator", f"tools/call {name}")


def _role_of(method: str) -> Role:
    if method in _READS or method.startswith("notifications/"):
        return "viewer"
    return "answerer" if method in _ANSWERS else "operator"
