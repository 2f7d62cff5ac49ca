"""Classify failed requests: retry after a wait, or raise an error that says what to do.

Errors never contain keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec

from upcall.errors import ContextTooLong, ModelError, ModelRefused, ResponseTooLarge
from upcall.safety.bounds import CALLS, TEXT
from upcall.safety.secrets import without_login

_SHORT = 400
_SECRET = 6
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s'\"]+@|\b(?:sk|pk)-[\w*-]{6,}|(?<=Bearer )\S+")
_LIMIT_FIRST = re.compile(r"maximum context length (?:is|of) (\d+)")
_ASKED = re.compile(
    r"(?:resulted in|requested|request has|contains at least|too long:|request \() ?(\d+) (?:input )?tok"
)
_BOTH = (
    re.compile(r"prompt is too long: (?P<asked>\d+) tokens > (?P<limit>\d+)"),
    re.compile(r"exceed context limit: (?P<asked>\d+ \+ \d+) > (?P<limit>\d+)"),
)
_TOO_LONG = ("context_length_exceeded", "exceed_context_size_error", "request_too_large")
_TOO_LONG_TEXT = (
    "prompt is too long",
    "maximum context length",
    "exceed context limit",
    "exceeds the context window",
)
_TAG_NAME = re.compile(r"/?[A-Za-z]*")
_DIGITS = 15  # more digits than any token count has
_READ = 65_536
"""The characters of a provider's message to examine."""
_PASSING = ("overloaded", "rate_limit", "server_error", "api_error", "timeout", "unavailable", "internal")


class Endpoint(NamedTuple):
    """The endpoint that was called, as errors name it."""

    name: str
    model: str
    base_url: str
    key_hint: str
    key: str = ""
    provider: str = ""
    """The provider's name in the log, next to the call ids that it assigns. Contains no address."""
    secrets: tuple[str, ...] = ()

    def excerpt(self, data: bytes) -> str:
        """Return the beginning of a body, cleaned."""
        return self.clean(data[:300].decode("utf-8", "replace"))

    def clean(self, text: str) -> str:
        """Remove markup, keys and passwords from a text, and shorten it for an error."""
        for secret in (self.key, *self.secrets):
            text = text.replace(secret, "***") if secret else text
        text = text[:_READ]
        text = _CREDENTIALS.sub("***", without_login(text))
        if "<" in text:
            text = _without_markup(text)
        text = " ".join(text.split())
        return text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"


def _without_markup(text: str) -> str:
    """Return the text of an HTML page without tags, scripts and styles, in one pass."""
    before, *tags = text.split("<")
    pieces, skipping = [before], ""
    for tag in tags:
        inside, closed, rest = tag.partition(">")
        name = (_TAG_NAME.match(inside) or [""])[0].lower()
        if skipping:
            skipping = "" if name == f"/{skipping}" else skipping
        elif name in ("script", "style", "head"):
            skipping = name
        elif not closed:
            rest = f"<{inside}"
        pieces.append("" if skipping else rest)
    return " ".join(pieces)


def secrets_in(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return header values that look like secrets: long enough not to occur in ordinary text."""
    return tuple(value for value in headers.values() if len(value) >= _SECRET)


def provider_name(model: str, base_url: str | None) -> str:
    """Return the model's name, with a short digest of the address unless it is the provider's own."""
    return f"{model}#{hashlib.sha256(base_url.encode()).hexdigest()[:8]}" if base_url else model


class Failure(NamedTuple):
    """A failed request: an `error` if retrying can't help, otherwise the problem and the least time to wait.

    `status` is that of the answer over HTTP, where there was one.
    """

    problem: str
    after: float | None = None
    error: ModelError | None = None
    status: int | None = None


def excess_failure(endpoint: Endpoint, characters: int, calls: int) -> Failure | None:
    """Return the failure for a response that has become too long, or None."""
    if characters <= TEXT and calls <= CALLS:
        return None
    most = f"{TEXT:,} characters of text" if characters > TEXT else f"{CALLS:,} tool calls"
    error = ResponseTooLarge(endpoint.name, f"more than {most} in one response")
    return Failure(error.problem, error=error)


class ProviderError(NamedTuple):
    """The contents of a provider's error body."""

    kind: str
    message: str
    tokens: int | None = None
    limit: int | None = None
    status: int | None = None


def classify(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """Classify a response with an HTTP error, or with a body that is not a response."""
    if _is_html(body):
        return _html(endpoint, status, headers, body)
    details = parse_error_body(body)
    status = details.status if status == 200 and details.status else status
    problem = endpoint.clean(details.message) or f"answered HTTP {status} without a reason"
    if too_long := context_error(endpoint, details):
        return Failure(problem, error=too_long)
    if status == 429 and "quota" in details.kind:
        return Failure(problem, error=ModelRefused(endpoint.name, problem, status))
    if status in (408, 425, 429) or status >= 500:
        return Failure(f"HTTP {status}: {problem}", retry_after(headers), status=status)
    if status == 200 and any(word in details.kind.lower() for word in _PASSING):
        return Failure(f"{details.kind}: {problem}", retry_after(headers), status=status)
    return Failure(problem, error=_refusal(endpoint, status, problem, headers))


def _refusal(endpoint: Endpoint, status: int, problem: str, headers: Mapping[str, str]) -> ModelError:
    shown_status = status if status != 200 else None
    if status in (401, 403):
        return ModelRefused(endpoint.name, f"the key was not accepted; check {endpoint.key_hint}", status)
    if status == 404:
        text = f"{endpoint.base_url} has no model {endpoint.model!r}, or is not an address of this API: {problem}"
        return ModelRefused(endpoint.name, text, status)
    if 300 <= status < 400:
        target = endpoint.clean(headers.get("Location", "another address"))
        return ModelRefused(
            endpoint.name, f"{endpoint.base_url} redirects to {target}; give that as base_url", status
        )
    if status == 413:
        return ContextTooLong(endpoint.name, None, None)
    return ModelRefused(endpoint.name, problem, shown_status)


def _html(endpoint: Endpoint, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    excerpt = endpoint.clean(body.decode("utf-8", "replace"))[:200]
    problem = f"{endpoint.base_url} answered with HTML instead of JSON: {excerpt!r}"
    if status in (401, 403, 404) or 300 <= status < 400:
        return Failure(problem, error=_refusal(endpoint, status, problem, headers))
    if status == 429 or status >= 500:
        return Failure(f"HTTP {status}: {problem}", retry_after(headers), status=status)
    return Failure(problem, error=ModelRefused(endpoint.name, f"{problem}; is base_url right?", status))


def stream_error(endpoint: Endpoint, details: ProviderError) -> Failure:
    """Classify an error event in the middle of a stream. Most mean overload and are retried."""
    problem = endpoint.clean(f"{details.kind}: {details.message}" if details.kind else details.message)
    if too_long := context_error(endpoint, details):
        return Failure(problem, error=too_long)
    if "invalid_request" in details.kind or "quota" in details.kind or "authentication" in details.kind:
        return Failure(problem, error=ModelRefused(endpoint.name, problem))
    return Failure(f"the stream broke off with an error: {problem}")


def context_error(endpoint: Endpoint, details: ProviderError) -> ContextTooLong | None:
    """Return the error for a conversation that is too long, with both token counts if the provider gives them."""
    text = details.message[:_READ]
    if not any(k in details.kind for k in _TOO_LONG) and not any(t in text for t in _TOO_LONG_TEXT):
        return None
    if details.tokens or details.limit:
        return ContextTooLong(endpoint.name, details.tokens, details.limit)
    for pattern in _BOTH:
        if found := pattern.search(text):
            total = sum(_read_number(n) or 0 for n in found["asked"].split(" + "))
            return ContextTooLong(endpoint.name, total or None, _read_number(found["limit"]))
    tokens, limit = _ASKED.search(text), _LIMIT_FIRST.search(text)
    return ContextTooLong(endpoint.name, _read_number(tokens and tokens[1]), _read_number(limit and limit[1]))


def _read_number(digits: str | None) -> int | None:
    return int(digits) if digits and len(digits) <= _DIGITS else None


def parse_error_body(body: bytes) -> ProviderError:
    """Parse an error body in any of the usual shapes; a body that is not JSON becomes the message."""
    try:
        return parse_error_value(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ProviderError("", body.decode("utf-8", "replace"))


def parse_error_value(value: Any) -> ProviderError:
    """Parse a decoded error body."""
    if isinstance(value, list) and value:
        value = cast("list[Any]", value)[0]
    if not isinstance(value, dict):
        return ProviderError("", str(cast("object", value)))
    fields = cast("dict[str, Any]", value)
    inner = fields.get("error", fields)
    if not isinstance(inner, dict):
        return ProviderError("", str(inner))
    error = cast("dict[str, Any]", inner)
    message = error.get("message") or error.get("detail") or _json(error)
    code = error.get("code")
    kind = " ".join(str(k) for k in (error.get("type"), code) if isinstance(k, str))
    return ProviderError(
        kind,
        message if isinstance(message, str) else _json(message),
        _number(error.get("n_prompt_tokens")),
        _number(error.get("n_ctx")),
        code if isinstance(code, int) and 300 <= code < 600 else None,
    )


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError:
        return "(an error that is nested too deeply to be shown)"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the server asks us to wait, from `retry-after-ms` or `retry-after`."""
    from email.utils import parsedate_to_datetime  # takes 10 ms to import

    try:
        if milliseconds := headers.get("retry-after-ms"):
            return max(0.0, float(milliseconds) / 1000)
        if not (value := headers.get("retry-after")):
            return None
        if re.fullmatch(r"\s*[\d.]+\s*", value):
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _is_html(body: bytes) -> bool:
    return body[:512].lstrip().startswith(b"<")
