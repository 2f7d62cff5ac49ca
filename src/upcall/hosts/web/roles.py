"""The role that each request to the API needs."""

from __future__ import annotations

import re

from upcall.tokens import Role

SAFE = ("GET", "HEAD", "OPTIONS")
_ANSWER = re.compile(r"/api/callbacks/.+/answer", re.DOTALL)


def role_needed(method: str, path: str, reveal: str = "") -> Role:
    """The weakest role that may make a request; whatever is not named here may change something, so an operator's.

    reveal: the parameter of that name in the query
    """
    if method in SAFE:
        return "viewer" if reveal in ("", "0") else "answerer"
    return "answerer" if _ANSWER.fullmatch(path) else "operator"
