"""Find secrets in text: tokens of known forms, passwords in URLs, headers, assignments, options, private keys.

Every expression here runs in linear time: it matches only where a run of its characters begins, so no run is read
more than a few times, however hostile the text is. Apart from private keys, no secret is longer than a line, and
whatever tells of it is on that line or on the one before.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from upcall.observe.name_cache import cached_by_name
from upcall.observe.secret_commands import (
    secrets_in_commands,
    secrets_in_listed_commands,
    secrets_in_lists,
    secrets_in_options,
)
from upcall.observe.secret_fields import Span, secret_fields
from upcall.safety.secrets import is_secret_name

SHORTEST: Final = 8
"""Characters that a text must have to hold a secret that a pattern finds."""

_TOKEN_STARTS = (
    ("-", ("sk-", "xox", "xapp-", "glpat-", "pypi-")),
    ("_", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "k_live_", "k_test_", "npm_", "hf_", "upcall_")),
    ("", ("AKIA", "ASIA", "AIza", "eyJ")),
)
"""The beginnings of tokens, by a character in them: one character is found much faster than several."""

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and others
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])"  # AWS access keys
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|xox[a-z]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}"  # Slack
    r"|AIza[0-9A-Za-z_-]{30,}"  # Google
    r"|[rs]k_(?:live|test)_[0-9A-Za-z]{10,}"  # Stripe
    r"|glpat-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{20,}"
    r"|upcall_[A-Za-z0-9_-]{43}"  # our own, of `upcall tokens new`
    r"|eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{4,}+(?:\.[A-Za-z0-9_-]*+)?"  # JSON web tokens
    r")"
)
_SECRET_WORDS = ("key", "token", "secret", "pass", "pwd", "auth", "cred", "cookie", "webhook", "_pat", "-pat")
"""In lower case. One of them is in every text in which a name or a header tells of a secret."""

_BASIC = re.compile(r"(?i)(?<![a-z0-9])basic[ \t]+([a-z0-9+/]{8,}={0,2})(?![a-z0-9+/])")
"""`Basic` with a user and a password in base64, which is checked."""

_BEARER = re.compile(r"(?i)(?<![a-z0-9])bearer[ \t]+([a-z0-9._~+/=-]{16,})")
_HEADER = re.compile(
    r"(?i)(?<![a-z0-9-])(?:proxy-)?(?:authorization|(?:x-)?api-?key|x-[a-z-]{0,40}(?:key|token|secret|auth))"
    r"[\"']?[ \t]*[:=][ \t]*[\"']?(?:(?:bearer|basic|token|digest|negotiate)[ \t]+)?+([^\s\"',;]{6,})"
)
_COOKIE = re.compile(r"(?i)(?<![a-z0-9-])(?:set-)?cookie[\"']?[ \t]*:[ \t]*[\"']?([^\s\"'][^\r\n\"']*)")
_NAME_BEFORE = r"(?<![A-Za-z0-9_.-])([A-Za-z_][A-Za-z0-9_.-]{1,100})"
_QUOTED = re.compile(
    _NAME_BEFORE + r"[\"']?[ \t]{0,8}[:=][ \t]{0,8}(?:\"((?:[^\"\\\r\n]++|\\.)++)|'((?:[^'\\\r\n]++|\\.)++))"
)
"""`name = "value"`, `"name": 'value'`."""

_QUOTED_AGAIN = re.compile(
    _NAME_BEFORE + r"\\[\"'][ \t]{0,8}:[ \t]{0,8}\\(?:\"((?:[^\"\\\r\n]++|\\[^\"\r\n])++)|'([^'\\\r\n]++))"
)
"""The same with escaped quotes: JSON inside a text inside JSON."""

_ASSIGNED = re.compile(
    r"(?<![A-Za-z0-9_?&])([A-Z][A-Z0-9_]{1,100})=(?!\$(?:[({]|[A-Za-z_]\w*+(?![^\s\"'`;&|<>()]))|[<>&|;])"
    r"([^\s\"'`\\]{2,}[^\s\"'`\\;&|<>()])"
)
"""`NAME=value`, as a shell and a file of variables have it; a variable's or a command's name is not a value."""

_LINE = re.compile(
    r"(?m)^[ \t]{0,80}(?:-[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]{1,100})[ \t]{0,8}[:=][ \t]{0,8}"
    r"([^\s\"'#{}\[\](),;]{6,}+)(?=\r?$)"
)
"""`name: value` alone on its line, as in YAML and properties."""

_PAIR = re.compile(
    r"(?i)(?<![a-z0-9_.-])(?:name|key|header)(?:\\?[\"'])?[ \t]{0,8}[:=][ \t]{0,8}"
    r"(?:\\?[\"'])?([a-z_][a-z0-9_.-]{1,100})"
    r"(?:\\?[\"'])?[ \t]{0,80}+(?:,[ \t]{0,80}+)?(?:\r?\n[ \t]{0,80}+)?"
    r"(?:\\?[\"'])?value(?:\\?[\"'])?[ \t]{0,8}[:=][ \t]{0,8}"
    r"(?:\\\"((?:[^\"\\\r\n]++|\\[^\"\r\n])++)|\"((?:[^\"\\\r\n]++|\\.)++)|'((?:[^'\\\r\n]++|\\.)++)"
    r"|([^\s\"'#{}\[\](),;\\]{3,}))"
)
"""`"name": "API_KEY", "value": "…"`, on one line or on two, as in JSON and in YAML."""

_URL_PASSWORD = re.compile(r"(?<=:/)/?[^\s/:@'\"]*:([^\s/'\"]+)@")
_RAW_PASSWORD = re.compile(r"(?<=:/)/?[^\s/:@'\"\[]*:(?!\d*(?:[/?#]|$))((?:[^\s@'\":]++|:(?!/))++)@")
"""A password with a `/` in it, which some programs accept; digits and then a path are a port."""

_URL_TOKEN = re.compile(r"(?<=://)([\w.~-]{16,1000})(?::(?:x-oauth-basic)?)?@")
"""A token in place of a user; it has a digit and a letter."""

_DSN_PASSWORD = re.compile(
    r"(?<![^\s;\"'])(?:[Pp]assword|PASSWORD|[Pp]asswd|[Pp]wd|PWD)=(?!\$)([^\s\"'`;&|<>(),\[\]{}]{3,}+)(?=[\s;\"'&]|$)"
)
"""`host=db password=…`, `Server=db;Password=…`: how programs name a database and its login."""

_URL_PARAMETER = re.compile(r"[?&]([\w.-]{1,100})=([^&#\s'\"]+)")
_TOO_COMMON = frozenset(("key", "keys", "auth", "pass", "pat"))
"""Names that mean something else too often to tell of a secret in prose and programs: `sorted(x, key="name")`."""

_SHORT = 400
"""Characters of a text that is looked at as a whole: choosing lines would take longer."""

_LISTED_NAMES = ("authorization", "cookie", "apikey")
"""Headers without a dash in their names that tell of the next item in a list."""

_HEADERS = (
    (_HEADER, ("authorization", "api-key", "apikey", "x-")),
    (_COOKIE, ("cookie",)),
    (_DSN_PASSWORD, ("password=", "passwd=", "pwd=")),
)
_NAMES = (
    (_QUOTED, ('"', "'")),
    (_QUOTED_AGAIN, ('\\"', "\\'")),
    (_ASSIGNED, ("=",)),
    (_PAIR, ("value", "Value", "VALUE")),
    (_LINE, (":", "=")),
    (_URL_PARAMETER, ("?", "&")),
)
"""Expressions, each with texts of which one is in whatever it matches: most texts have none."""

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_ENDS: Final = "-----END"


def secret_spans(text: str) -> list[Span]:
    """Return where secrets are in the text, in any order; they may overlap."""
    if len(text) < SHORTEST:
        return []
    spans = _tokens(text)
    has_colon, has_option = ":" in text, False
    if has_colon and "@" in text and ":/" in text:
        spans += _in_urls(text)
    if "-" in text:
        if "PRIVATE KEY" in text:
            spans += _private_keys(text)
        has_option = " -" in text or "--" in text or text[0] == "-"
        if has_option:
            spans += secrets_in_commands(text)
        if '"-' in text or "'-" in text:
            spans += secrets_in_listed_commands(text)
    low = text.lower()
    if "bearer" in low:
        spans += [found.span(1) for found in _BEARER.finditer(text)]
    if "basic" in low:
        spans += [found.span(1) for found in _BASIC.finditer(text) if _is_login(found[1])]
    if has_colon or has_option or "=" in text or ("," in text and ('"' in text or "'" in text)):
        lines = _telling_lines(text, low)
        spans += _named(text, low, lines) if lines else ()
    return spans


def _tokens(text: str) -> list[Span]:
    """Return where tokens of known forms are."""
    spans: list[Span] = []
    for character, starts in _TOKEN_STARTS:
        if character not in text:
            continue
        for start in starts:
            at = text.find(start)
            while at >= 0:
                found = _TOKEN.match(text, at - 1 if at and start[0] == "k" else at)  # `sk_live_`, `rk_live_`
                if found is not None:
                    spans.append(found.span())
                at = text.find(start, max(at + 1, found.end() if found else 0))
    return spans


def _in_urls(text: str) -> Iterator[Span]:
    """Yield the passwords in URLs, and tokens that stand in place of a user."""
    for pattern in (_URL_PASSWORD, _RAW_PASSWORD):
        for found in pattern.finditer(text):
            yield found.span(1)
    for found in _URL_TOKEN.finditer(text):
        token = found[1]
        if any(map(str.isdigit, token)) and any(map(str.isalpha, token)):
            yield found.span(1)


def _is_login(text: str) -> bool:
    """Tell whether this is a user and a password in base64."""
    try:
        login = base64.b64decode(text[: len(text) // 4 * 4])
    except binascii.Error:
        return False
    return b":" in login and login.isascii() and login.decode("ascii").isprintable()


def _telling_lines(text: str, low: str) -> list[Span]:
    """Return the lines that have a word of a secret, each with the next one, in order. `low` is in lower case.

    Few lines of a program or a file have one, and only these are looked at closely.
    """
    if len(text) < _SHORT or len(low) != len(text):  # a few letters become two in lower case
        for word in _SECRET_WORDS:
            if word in low:
                return [(0, len(text))]
        return []
    lines: set[Span] = set()
    for word in _SECRET_WORDS:
        at = low.find(word)
        while at >= 0:
            end = low.find("\n", at)
            start = low.rfind("\n", 0, at) + 1
            if end < 0:
                lines.add((start, len(low)))
                break
            lines.add((start, end))
            at = low.find(word, end)
    joined: list[Span] = []
    for start, end in sorted(lines):
        end = low.find("\n", end + 1)
        end = len(low) if end < 0 else end
        if joined and start <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _named(text: str, low: str, lines: Sequence[Span]) -> Iterator[Span]:
    """Yield where secrets are in these lines that a name or a header before them tells of."""
    headers = [pattern for pattern, needed in _HEADERS if any(word in low for word in needed)]
    names = [pattern for pattern, needed in _NAMES if any(mark in text for mark in needed)]
    for start, end in lines:
        for pattern in headers:
            for found in pattern.finditer(text, start, end):
                yield found.span(1)
        for pattern in names:
            for found in pattern.finditer(text, start, end):
                if tells(found[1]) or (pattern is _URL_PARAMETER and found[1].lower() in _TOO_COMMON):
                    yield found.span(found.lastindex or 2)
    yield from secret_fields(text, tells, lines).spans
    if "-" in text:
        yield from secrets_in_options(text, lines)
    if "," in text and ("-" in text or "[" in text or any(name in low for name in _LISTED_NAMES)):
        yield from secrets_in_lists(text, lines, tells)


@cached_by_name
def tells(name: str) -> bool:
    """Tell whether a name in a text is one of a secret."""
    return name.lower() not in _TOO_COMMON and is_secret_name(name)


def _private_keys(text: str) -> Iterator[Span]:
    """Yield what stands between the two lines of a private key; one without its end reaches to the end."""
    at = 0
    while found := _KEY_BEGINS.search(text, at):
        end = text.find(KEY_ENDS, found.end())
        at = len(text) if end < 0 else end
        if found.end() < at:
            yield found.end(), at


def open_private_key(text: str) -> int:
    """Return where the content of a private key begins that has no end yet, or -1."""
    spans = list(_private_keys(text)) if "PRIVATE KEY" in text else []
    return spans[-1][0] if spans and spans[-1][1] == len(text) else -1


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with those joined that overlap."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
