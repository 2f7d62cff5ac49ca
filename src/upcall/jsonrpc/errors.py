"""The errors of JSON-RPC, with the codes that the Agent Client Protocol adds."""

from __future__ import annotations

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REQUEST_CANCELLED = -32800
NOT_FOUND = -32002


class RpcError(Exception):
    """An error that is sent to the other side, or that the other side sent.

    code: the number of its kind
    message: what happened, in a sentence
    data: more for programs; None for nothing
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class ConnectionClosed(RpcError):
    """Raised where an answer is awaited that can't come, because the connection has ended."""

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR, "the connection was closed")
