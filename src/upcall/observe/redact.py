"""Hide secrets in everything that is shown.

The log keeps what a replay needs. What people and programs are shown goes through a `Redactor`: it hides values by
the names of their fields, by patterns, and by the values of secret variables. A hidden value is shown as
`⟦hidden 48 #1⟧`: it has 48 characters and is the first one hidden in this document.

A text that looks like such a mask is hidden as well. So every mask in a shown document was made here, and `restore`
finds the value that belongs to it.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec

from upcall.errors import SetupError
from upcall.observe.bare_text import bare_text
from upcall.observe.masks import MASK, mask
from upcall.observe.name_cache import cached_by_name
from upcall.observe.option_files import read_mapping
from upcall.observe.redact_stream import Looks, RedactedStream
from upcall.observe.restoring import Restoring, as_text
from upcall.observe.secret_commands import are_arguments, command_of, has_pairs, secret_items
from upcall.observe.secret_fields import Span, secret_fields
from upcall.observe.secret_patterns import SHORTEST, merged, secret_spans, tells
from upcall.safety.bounds import DEPTH
from upcall.safety.patterns import BadPattern, Pattern, TooSlow
from upcall.safety.secrets import is_secret_name

_LEAST_VALUE, _LEAST_OWN, _FEW, _SHORT = 8, 4, 10, 200
_LONG, _AFTER = 4_096, 2
"""Characters of a secret that are looked for at the end of a beginning, and after it: the `@` after a password."""

_PATTERN_SECONDS = 0.2
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")
_PERCENT = re.compile("%[0-9A-F]{2}")
_PAIR_NAMES = ("name", "key", "header")
_FILE_KEYS = ("names", "patterns", "values")
_URL_LOGIN = re.compile(r"://[^\s/:@]*:([^\s/@]{8,})@")

_SCHEMAS = frozenset(
    (
        *(("CallbackRaised", "schema"), ("Callback", "schema"), ("ToolSpec", "schema")),
        *(("Change", "output"), ("Request", "output")),
    )
)
"""Fields that hold JSON schemas: names of properties there are not names of secrets."""

StructT = TypeVar("StructT", bound=msgspec.Struct)
_NOT_SPECIAL: Any = object()


class Redactor:
    """Hides secrets in JSON values, events and texts. It never changes; `adding` returns a larger one.

    names: further names of fields whose values are secret
    patterns: further regular expressions; what one of them matches is hidden
    values: further texts that are hidden wherever they appear
    environ: variables, such as `os.environ`; the values of those with the name of a secret are hidden
    """

    def __init__(
        self,
        *,
        names: Iterable[str] = (),
        patterns: Iterable[str] = (),
        values: Iterable[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._names = frozenset(_folded(name) for name in names)
        self._pattern_texts = tuple(patterns)
        self._patterns = [_compiled(text) for text in self._pattern_texts]
        self._own_values, self._environ = tuple(values), environ
        for value in self._own_values:
            if len(value) < _LEAST_OWN:
                raise SetupError(f"a value to hide needs at least {_LEAST_OWN} characters")
        anywhere, self.words = _secret_values(environ or {})  # words are hidden only as whole values
        forms = {form for value in (*anywhere, *self._own_values) for form in _forms(value)}
        known = sorted({*anywhere, *self._own_values, *forms}, key=len, reverse=True)
        self._values: tuple[str, ...] = tuple(known)
        self._longest: int = max(_LONG, *map(len, known)) if known else _LONG
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    @classmethod
    def read(cls, path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Redactor:
        """Make a redactor with the `names`, `patterns` and `values` of a JSON or TOML file."""
        data = read_mapping(path, "a file that lists what to hide")
        for key, texts in data.items():
            fits = isinstance(texts, list) and all(isinstance(one, str) for one in cast("list[Any]", texts))
            if key not in _FILE_KEYS or not fits:
                raise SetupError(
                    f"{path}: {key!r}: the file may contain only lists of strings named {', '.join(_FILE_KEYS)}"
                )
        try:
            return cls(**data, environ=environ)
        except SetupError as error:
            raise SetupError(f"{path}: {error}") from None

    def adding(
        self, *, names: Iterable[str] = (), patterns: Iterable[str] = (), values: Iterable[str] = ()
    ) -> Redactor:
        """Return a redactor that hides these, too."""
        return Redactor(
            names=(*self._names, *names),
            patterns=(*self._pattern_texts, *patterns),
            values=(*self._own_values, *values),
            environ=self._environ,
        )

    def hide(self, value: Any) -> tuple[Any, list[str]]:
        """Return a JSON value or an event as it may be shown, and the texts that are hidden in it, in order.

        The names of an event's own fields are not taken for names of secrets, only those in the JSON that it holds.
        """
        document = _Document(self)
        shown = document.walk(value)
        return shown, [as_text(one) for one in document.hidden]

    def show(self, value: Any) -> Any:
        """Return a JSON value or an event as it may be shown."""
        return _Document(self).walk(value)

    def text(self, text: str) -> str:
        """Return a text as it may be shown."""
        return _Document(self).text(text)

    def beginning(self, text: str, most: int) -> str:
        """Return the beginning of a text, of at most `most` characters, that does not end inside a secret.

        A part of a secret can't be recognised: whoever shows a part of a long text cuts it with this first.
        """
        if len(text) <= most:
            return text
        spans = self.spans(text[: most + self._longest])
        return text[: next((start for start, end in spans if start < most <= end + _AFTER), most)]

    def shortened(self, value: Any, most: int) -> Any:
        """Return a JSON value with at most `most` values in it, and with the `beginning` of each text.

        It hides nothing: whoever shows a part of a value, however large, shortens it with this first.
        """
        return self._shortened(value, most, iter(range(most)))

    def _shortened(self, value: Any, most: int, left: Iterator[int]) -> Any:
        if isinstance(value, str):
            return self.beginning(value, most)
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value).items()
            return {
                self.beginning(key, most): self._shortened(one, most, left)
                for _, (key, one) in zip(left, fields, strict=False)
            }
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            return [self._shortened(one, most, left) for _, one in zip(left, items, strict=False)]
        return value

    def copy(self, value: StructT, *, numbered: bool = True) -> StructT:
        """Return an event, a message or a callback as it may be shown: a value of the same type.

        Without `numbered`, masks have no numbers, so that equal values of two documents look alike.
        """
        return _Document(self, numbered=numbered).copy(value)

    def restore(self, edited: Any, original: Any) -> Any:
        """Return an edited value with the real values in place of the masks that are left in it.

        `original` is the value that was shown. A mask that was not in it raises ValueError, and so do masks that
        stand for more than 2,000,000 characters together.
        """
        document = _Document(self)
        document.walk(original)
        return Restoring(document.hidden).value(edited)

    def stream(self, *, numbered: bool = True) -> RedactedStream:
        """Return a stream that hides secrets in text that comes in pieces."""
        by_line = bool(self._patterns)
        looks = Looks(self._spans_in, self.tells, self._values, self.words)
        return RedactedStream(looks, by_line=by_line, numbered=numbered)

    def is_secret_name(self, name: str) -> bool:
        """Tell whether the value of a field with this name is hidden."""
        return _is_secret(name) or (bool(self._names) and _folded(name) in self._names)

    def spans(self, text: str) -> list[Span]:
        """Return the places that are hidden in a text, in order and apart from each other.

        Secrets are also found where escape sequences or invisible characters split them.
        """
        found, bare = self._spans_in(text), bare_text(text)
        if bare is None:
            return found
        return merged([*found, *bare.spans(self._spans_in(bare.text))])

    def is_word(self, text: str) -> bool:
        """Tell whether a whole text is a secret value that is hidden only where it stands alone."""
        if not self.words:
            return False
        return text in self.words or ((bare := bare_text(text)) is not None and bare.text in self.words)

    def _spans_in(self, text: str) -> list[Span]:
        """Return the places that are hidden in a text as it stands."""
        found = secret_spans(text)
        if self._known is not None and self._may_hold_known(text):
            found += [one.span() for one in self._known.finditer(text)]
        if self._names:
            found += secret_fields(text, self._is_own_name).spans
        if self._patterns:
            found += self._own_spans(text)
        if "⟦" in text:
            found += [one.span() for one in MASK.finditer(text)]
        return merged(found) if len(found) > 1 else found

    def _may_hold_known(self, text: str) -> bool:
        """Tell whether a known value may be in a text. In a long text each of a few values is looked for faster."""
        return len(text) < _SHORT or len(self._values) > _FEW or any(value in text for value in self._values)

    def _is_own_name(self, name: str) -> bool:
        return _folded(name) in self._names

    def tells(self, name: str) -> bool:
        """Tell whether a name in a text, or in a list of pairs, is one of a secret."""
        return tells(name) or (bool(self._names) and self._is_own_name(name))

    def _own_spans(self, text: str) -> list[Span]:
        """Return what the user's patterns match; all of the text where one of them takes too long."""
        found: list[Span] = []
        for pattern in self._patterns:
            at, pattern.left = 0, pattern.seconds  # a time limit for each text
            try:
                while at <= len(text) and (match := pattern.search(text, at)):
                    if match.end() > match.start():
                        found.append((match.start(), match.end()))
                    at = max(match.end(), at + 1)
            except TooSlow:
                return [(0, len(text))]
        return found


class _Document:
    """One value that is shown; it counts what is hidden in it."""

    def __init__(self, redactor: Redactor, *, numbered: bool = True) -> None:
        self._redactor, self._numbered = redactor, numbered
        self.hidden: list[Any] = []

    def mask(self, value: Any) -> str:
        """Hide a whole value."""
        self.hidden.append(value)
        number = len(self.hidden) if self._numbered else 0
        return mask(len(as_text(value)), number)

    def text(self, text: str) -> str:
        """Hide what is secret in a text."""
        if self._redactor.is_word(text):
            return self.mask(text)
        return self._without(text, self._redactor.spans(text))

    def _without(self, text: str, spans: Sequence[Span]) -> str:
        """Hide these parts of a text."""
        if not spans:
            return text
        out: list[str] = []
        at = 0
        for start, end in spans:
            out += (text[at:start], self.mask(text[start:end]))
            at = end
        return "".join((*out, text[at:]))

    def walk(self, value: Any, depth: int = 0) -> Any:
        """Hide what is secret in a value."""
        if isinstance(value, str):
            return self.text(value) if len(value) >= _LEAST_OWN else value
        if isinstance(value, dict):
            return self._mapping(cast("dict[str, Any]", value), depth)
        if isinstance(value, list | tuple):
            if depth > DEPTH:
                return self.mask(_plain(value))
            return self._items(cast("Sequence[Any]", value), depth + 1)
        if isinstance(value, msgspec.Struct):
            return self._struct(value, depth)
        if value is None or isinstance(value, bool | int | float):
            return value
        return self.walk(_plain(value), depth + 1)

    def _items(self, items: Sequence[Any], depth: int, command: str = "") -> list[Any]:
        """Hide what is secret in a list: also what follows the name of a header, or an option of a command."""
        first = items[0] if items else None
        if isinstance(first, str) and (command or len(items) > 1) and (secret := secret_items(items, command)):
            return [
                self._end(one, secret[index]) if index in secret else self.walk(one, depth)
                for index, one in enumerate(items)
            ]
        if isinstance(first, list | tuple) and has_pairs(items):
            return [[self.walk(name, depth + 1), self._named(name, one, depth + 1)] for name, one in items]
        return [self.walk(one, depth) for one in items]

    def _end(self, text: str, begins: int) -> str:
        """Hide a text from a place in it."""
        return self.text(text[:begins]) + self.mask(text[begins:]) if text[begins:] else text

    def _named(self, name: str, value: Any, depth: int) -> Any:
        """Hide what is secret in the value of a pair."""
        return self._secret(value, depth) if self._redactor.tells(name) else self.walk(value, depth)

    def _mapping(self, value: dict[str, Any], depth: int) -> Any:
        if depth > DEPTH:
            return self.mask(_plain(value))
        paired, command = self._paired_value(value), command_of(value)
        shown: dict[str, Any] = {}
        for key, one in value.items():
            secret = self._redactor.is_secret_name(key) or key == paired
            name = self.text(key) if len(key) >= _LEAST_OWN else key
            if secret:
                shown[name] = self._secret(one, depth + 1)
            elif command and are_arguments(key):
                shown[name] = self._arguments(command, one, depth + 1)
            else:
                shown[name] = self.walk(one, depth + 1)
        return shown

    def _arguments(self, command: str, value: Any, depth: int) -> Any:
        """Hide what is secret in the arguments of a command, which are a list or a text."""
        if isinstance(value, list | tuple) and depth <= DEPTH:
            return self._items(cast("Sequence[Any]", value), depth + 1, command)
        if isinstance(value, str) and not self._redactor.is_word(value):
            before, spans = len(command) + 1, self._redactor.spans(value)
            found = [span for span in self._redactor.spans(f"{command} {value}") if span[0] >= before]
            return self._without(value, merged([*spans, *((start - before, end - before) for start, end in found)]))
        return self.walk(value, depth)

    def _paired_value(self, fields: dict[str, Any]) -> str | None:
        """Return which field holds the value of a pair such as `{"name": "API_KEY", "value": "…"}`."""
        for value in fields:
            if len(value) == len("value") and value.lower() == "value":
                names = [one for key, one in fields.items() if key.lower() in _PAIR_NAMES and isinstance(one, str)]
                return value if any(map(self._redactor.is_secret_name, names)) else None
        return None

    def _secret(self, value: Any, depth: int) -> Any:
        """Hide every text and number of a value whose name is one of a secret."""
        if value is None or isinstance(value, bool) or value == "":
            return value
        if isinstance(value, dict) and depth <= DEPTH:
            fields = cast("dict[str, Any]", value)
            return {self.text(key): self._secret(one, depth + 1) for key, one in fields.items()}
        if isinstance(value, list | tuple) and depth <= DEPTH:
            return [self._secret(one, depth + 1) for one in cast("Sequence[Any]", value)]
        return self.mask(_plain(value))

    def _struct(self, value: msgspec.Struct, depth: int) -> Any:
        """Hide what is secret in an event or another value of ours."""
        shown = msgspec.to_builtins(value)
        if not isinstance(shown, dict):
            return self.walk(shown, depth + 1)
        made = cast("dict[str, Any]", shown)
        for name, written in zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True):
            if written in made:
                special = self._special(value, name, depth + 1)
                made[written] = self.walk(getattr(value, name), depth + 1) if special is _NOT_SPECIAL else special
        return made

    def _special(self, value: msgspec.Struct, name: str, depth: int) -> Any:
        """Return a field that has rules of its own: a schema, or a secret by its key; else _NOT_SPECIAL."""
        kind, one = type(value).__name__, getattr(value, name)
        if (kind, name) in _SCHEMAS:
            return self._schema(one, False, depth)
        if kind == "ContextSet" and name == "value" and self._redactor.is_secret_name(getattr(value, "key", "")):
            return self._secret(one, depth)
        return _NOT_SPECIAL

    def copy(self, value: StructT, depth: int = 0) -> StructT:
        """Hide what is secret in a value of ours, and keep its type."""
        changed: dict[str, Any] = {}
        for name in _open_fields(type(value)):
            special, one = self._special(value, name, depth + 1), getattr(value, name)
            shown = self._same(one, depth + 1) if special is _NOT_SPECIAL else special
            if shown is not one:
                changed[name] = shown
        return msgspec.structs.replace(value, **changed) if changed else value

    def _same(self, value: Any, depth: int) -> Any:
        """Hide what is secret in a field, and keep the types of what it holds."""
        if isinstance(value, msgspec.Struct):
            return self.copy(value, depth)
        if isinstance(value, tuple):
            return tuple([self._same(one, depth + 1) for one in cast("tuple[Any, ...]", value)])
        if isinstance(value, Mapping):
            fields = dict(cast("Mapping[str, Any]", value))
            if any(isinstance(one, tuple) for one in fields.values()):  # of values of ours
                return {self.text(key): self._same(one, depth + 1) for key, one in fields.items()}
            return self._mapping(fields, depth)
        return self.walk(value, depth)

    def _schema(self, value: Any, secret: bool, depth: int) -> Any:
        """Hide what is secret in a JSON schema: of a secret property, its default and its examples."""
        if depth > DEPTH:
            return self.mask(_plain(value))
        if isinstance(value, list | tuple):
            return [self._schema(one, secret, depth + 1) for one in cast("Sequence[Any]", value)]
        if not isinstance(value, dict):
            return self.walk(value, depth)
        shown: dict[str, Any] = {}
        for key, one in cast("dict[str, Any]", value).items():
            if key == "properties" and isinstance(one, dict):
                properties = cast("dict[str, Any]", one)
                shown[key] = {
                    self.text(name): self._schema(sub, self._redactor.is_secret_name(name), depth + 2)
                    for name, sub in properties.items()
                }
            elif secret and key in ("default", "const", "enum", "example", "examples"):
                shown[self.text(key)] = self._secret(one, depth + 1)
            else:
                shown[self.text(key)] = self._schema(one, secret, depth + 1)
        return shown


@lru_cache(256)
def _open_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of the fields in which anything may stand: no numbers, and not one of a few words."""
    hints = get_type_hints(kind)
    return tuple([name for name in kind.__struct_fields__ if not _is_closed(hints.get(name, Any))])


def _is_closed(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return all(_is_closed(one) for one in get_args(hint))
    return get_origin(hint) is Literal or hint in (int, float, bool, type(None))


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    try:
        return msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError):
        return f"a value of type {type(value).__name__} that can't be shown"


@cached_by_name
def _is_secret(name: str) -> bool:
    return is_secret_name(name)


def _folded(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def _compiled(text: str) -> Pattern:
    try:
        return Pattern(text, _PATTERN_SECONDS)
    except BadPattern as error:
        raise SetupError(str(error)) from None


def _secret_values(environ: Mapping[str, str]) -> tuple[set[str], frozenset[str]]:
    """Return the secret values of variables: those that are hidden anywhere, and those only as whole values."""
    found = {value for name, value in environ.items() if is_secret_name(name)}
    found |= {password for value in environ.values() for password in _URL_LOGIN.findall(value)}
    found = {value for value in found if len(value) >= _LEAST_VALUE}
    words = {value for value in found if value.isalpha()}
    return found - words, frozenset(words)


def _forms(value: str) -> set[str]:
    """Return how a value is written on a screen, in Python, JSON, URLs and HTML, in ASCII, and in JSON in JSON."""
    bare = bare_text(value)
    plain = {value, value.strip(), *((bare.text.strip(),) if bare is not None else ())}
    plain |= {made for one in plain for made in _web_forms(one)}
    once = plain | {made for one in plain for made in (_json(one)[1:-1], *_ascii(one), repr(one)[1:-1])}
    once |= {one.replace("/", "\\/") for one in once}  # some programs write JSON so
    twice = once | {made for one in once for made in (_json(one)[1:-1], *_ascii(one))}
    return {one for one in twice if len(one) >= min(SHORTEST, len(value))}


def _web_forms(value: str) -> tuple[str, ...]:
    """Return a text as URLs and HTML have it."""
    try:
        quoted = quote(value, safe="")
    except UnicodeEncodeError:  # half of a character that needs two
        quoted = value
    small = _PERCENT.sub(lambda found: found[0].lower(), quoted)
    return quoted, small, quoted.replace("%20", "+"), html.escape(value), html.escape(value, quote=False)


def _ascii(value: str) -> tuple[str, str]:
    r"""Return a text as JSON in ASCII has it: with `\u00f6`, and with `\u00F6`."""
    written = json.dumps(value)[1:-1]
    return written, _ESCAPE.sub(lambda found: f"\\u{found[1].upper()}", written)
