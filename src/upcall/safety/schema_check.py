"""Check values against a JSON schema from outside: from a model, a program or a server.

Schemas are interpreted, never turned into code. Nothing is fetched, every step is counted, and patterns have a time
limit, so that no schema and no value takes long. The keywords are those of the drafts from 7 to 2020-12; one that
would narrow a value and is not known here is refused, not left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast
from urllib.parse import unquote

from upcall.safety.bounds import DEPTH, excess
from upcall.safety.formats import FORMATS
from upcall.safety.patterns import BadPattern, Pattern, TooSlow

LARGEST = 1_000_000
"""Bytes of JSON that a schema may have."""

SUBSCHEMAS, PATTERN_CHARS, STEPS = 1_000, 5_000, 30_000
"""Schemas inside a schema, characters of all its patterns, and steps that checking a value may take."""

LONGEST_MATCHED = 10_000
"""Characters of a text that is matched against a pattern or a format."""

_SECONDS, _MOST_LEVELS, _SHOWN = 0.05, 250, 200

Schema = dict[str, Any] | bool
_type_of: Any = type  # pyright keeps nothing of the `Any` that it is given otherwise


class _BadSchema(Exception):
    """A schema can't be used, or checking exceeds its limits; the text says why."""


def misfit_of(schema: Any, *values: Any) -> str:
    """Return why a value does not fit a JSON schema, or what is wrong with the schema; "" if all is right.

    The values are JSON: plain, and nested no deeper than JSON may be here.
    """
    if problem := excess(schema, LARGEST):
        return f"the schema is too large: {problem}"
    try:
        check = _Check(schema, _patterns_of(schema))
        found = next(filter(None, (check.problem(value) for value in values)), "")
    except _BadSchema as error:
        return str(error)
    except RecursionError:
        return "the schema is nested too deeply"
    return f"it{found}".removeprefix("it.") if found else ""


# --- the schema itself --------------------------------------------------------------------

_TYPES: dict[str, tuple[Any, ...]] = {
    "string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "object": (dict,),
}  # fmt: skip
_NAMED_AT_MOST = 10
"""Missing properties that are named."""
_ONE = ("additionalProperties", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains",
    "maxContains",
)  # fmt: skip
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_UNKNOWN = ("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")


def _patterns_of(root: Any) -> dict[str, Pattern]:
    """Check a schema and return its patterns; _BadSchema says what is wrong with it."""
    patterns: dict[str, Pattern] = {}
    chars, seen, todo = 0, set[int](), [root]
    while todo:
        schema = todo.pop()
        if isinstance(schema, bool) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if not isinstance(schema, dict):
            raise _BadSchema(f"a schema must be an object, true or false, not {_brief(schema)}")
        if len(seen) > SUBSCHEMAS:
            raise _BadSchema(f"it contains more than {SUBSCHEMAS} subschemas")
        keywords = cast("dict[str, Any]", schema)
        _check_keywords(keywords)
        own = (keywords["pattern"],) if "pattern" in keywords else ()
        for text in (*own, *keywords.get("patternProperties", ())):
            chars += len(text)
            if chars > PATTERN_CHARS:
                raise _BadSchema(f"its patterns have more than {PATTERN_CHARS} characters")
            patterns[text] = _pattern(text)
        todo += _below(keywords, root)
    return patterns


def _pattern(text: str) -> Pattern:
    try:
        return Pattern(text, _SECONDS, whole=True)
    except BadPattern as error:
        raise _BadSchema(str(error)) from None


def _below(schema: dict[str, Any], root: Any) -> Iterator[Any]:
    yield from (schema[key] for key in _ONE if key in schema)
    yield from (one for key in _MANY for one in schema.get(key, ()))
    yield from (one for key in _NAMED for one in schema.get(key, {}).values())
    yield from (one for one in schema.get("dependencies", {}).values() if not isinstance(one, list))
    items = schema.get("items", ())
    yield from cast("list[Any]", items if isinstance(items, list) else [items] if items != () else [])
    if "$ref" in schema:
        yield resolved(schema["$ref"], root)


def _check_keywords(schema: dict[str, Any]) -> None:
    """Raise _BadSchema if a keyword has a wrong value."""
    for key, value in schema.items():
        if key in _MANY or key == "enum":
            fits, expected = isinstance(value, list), "a list"
        elif key in _NAMED or key == "dependencies":
            fits, expected = isinstance(value, dict), "an object"
        elif key in _COUNTS:
            fits, expected = type(value) is int and value >= 0, "a whole number of 0 or more"
        elif key in _NUMBERS:
            fits, expected = type(value) in (int, float) and (key != "multipleOf" or value > 0), "a number"
        elif key in ("pattern", "$ref", "format"):
            fits, expected = isinstance(value, str), "text"
        elif key == "required":
            fits = isinstance(value, list) and all(isinstance(one, str) for one in cast("list[Any]", value))
            expected = "a list of texts"
        elif key == "type":
            named = cast("list[Any]", value if isinstance(value, list) else [value])
            fits = all(isinstance(one, str) and one in _TYPES for one in named)
            expected = f"one of {', '.join(_TYPES)}"
        elif key in _UNKNOWN:
            raise _BadSchema(f"{key} is not supported in a schema")
        else:
            continue
        if not fits:
            raise _BadSchema(f"{key} of a schema must be {expected}, not {_brief(value)}")


def resolved(ref: str, root: Any) -> Any:
    """Return the part of a schema that a reference names. Nothing is ever fetched."""
    if ref != "#" and not ref.startswith("#/"):
        raise _BadSchema(f"a schema may not refer to {_brief(ref)}: other schemas are not fetched")
    found = root
    for part in ref.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = cast("dict[str, Any]", found)[name]
        elif isinstance(found, list) and name.isdecimal() and int(name[:6]) < len(cast("list[Any]", found)):
            found = cast("list[Any]", found)[int(name[:6])]
        else:
            raise _BadSchema(f"a schema refers to {_brief(ref)}, which it does not define")
    return found


def _brief(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:_SHOWN])
    return repr(value) if not excess(value, _SHOWN) else f"a {type(value).__name__} of {len(value)}"


# --- a value ------------------------------------------------------------------------------

Rule = Callable[["_Check", Any, Any, dict[str, Any]], str]


class _Check:
    """Checks values against one schema. A problem begins with where it is, as in `.size must be integer`."""

    def __init__(self, root: Any, patterns: dict[str, Pattern]) -> None:
        self._root, self._patterns = root, patterns
        self._steps, self._levels, self._seconds = 0, 0, _SECONDS
        self._enums: dict[int, frozenset[Any]] = {}
        self._resolved: dict[str, Any] = {}

    def problem(self, value: Any) -> str:
        return self.fit(self._root, value)

    def step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > STEPS:
            raise _BadSchema(f"checking it takes more than {STEPS} steps; make the value or the schema smaller")

    def fit(self, schema: Any, value: Any) -> str:
        """Return why a value does not fit, or ""."""
        if schema is True or schema is False:
            return "" if schema else " must not be there"
        self.step(1 + len(schema))
        self._levels += 1
        if self._levels > _MOST_LEVELS:
            raise _BadSchema("the schema is nested too deeply, or refers to itself")
        problem = self._type(schema["type"], value) if "type" in schema else ""
        if not problem:
            for key in schema:
                rule = _RULES.get(key)
                if rule is not None and (problem := rule(self, schema[key], value, schema)):
                    break
        self._levels -= 1
        return problem

    def _type(self, allowed: Any, value: Any) -> str:
        names = cast("list[str]", allowed if isinstance(allowed, list) else [allowed])
        kind = _type_of(value)
        for name in names:
            if kind in _TYPES[name] or (name == "integer" and kind is float and value.is_integer()):
                return ""
        return f" must be {' or '.join(names)}"

    # --- any value

    def ref(self, rule: str, value: Any, schema: Any) -> str:
        if rule not in self._resolved:
            self._resolved[rule] = resolved(rule, self._root)
        return self.fit(self._resolved[rule], value)

    def enum(self, rule: list[Any], value: Any, schema: Any) -> str:
        if id(rule) not in self._enums:
            self._enums[id(rule)] = frozenset(self.key(one) for one in rule)
        return "" if self.key(value) in self._enums[id(rule)] else f" must be one of {_shown(rule)}"

    def const(self, rule: Any, value: Any, schema: Any) -> str:
        return "" if self.key(rule) == self.key(value) else f" must be {_shown(rule)}"

    def key(self, value: Any) -> Any:
        """Return a key that is equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
        self.step()
        kind = _type_of(value)
        if kind is list:
            return ("[", *map(self.key, value))
        if kind is dict:
            return ("{", frozenset((name, self.key(one)) for name, one in value.items()))
        return (kind is bool, value)

    def all_of(self, rule: list[Any], value: Any, schema: Any) -> str:
        return next(filter(None, (self.fit(one, value) for one in rule)), "")

    def any_of(self, rule: list[Any], value: Any, schema: Any) -> str:
        fits = any(not self.fit(one, value) for one in rule)
        return "" if fits else " fits none of the schemas of anyOf"

    def one_of(self, rule: list[Any], value: Any, schema: Any) -> str:
        count = sum(not self.fit(one, value) for one in rule)
        return "" if count == 1 else f" must fit exactly one of the schemas of oneOf, and fits {count}"

    def no(self, rule: Any, value: Any, schema: Any) -> str:
        return " must not fit the schema under `not`" if not self.fit(rule, value) else ""

    def when(self, rule: Any, value: Any, schema: dict[str, Any]) -> str:
        return self.fit(schema.get("else" if self.fit(rule, value) else "then", True), value)

    # --- texts and numbers

    def min_length(self, rule: int, value: Any, schema: Any) -> str:
        wrong = isinstance(value, str) and len(value) < rule
        return f" must have at least {rule} characters" if wrong else ""

    def max_length(self, rule: int, value: Any, schema: Any) -> str:
        wrong = isinstance(value, str) and len(value) > rule
        return f" must have at most {rule} characters" if wrong else ""

    def pattern(self, rule: str, value: Any, schema: Any) -> str:
        wrong = isinstance(value, str) and not self._matches(rule, value)
        return f" must match pattern {rule}" if wrong else ""

    def format(self, rule: str, value: Any, schema: Any) -> str:
        known = FORMATS.get(rule)
        if known is None or not isinstance(value, str):
            return ""
        return "" if len(value) <= LONGEST_MATCHED and known(value) else f" must be {rule}"

    def _matches(self, rule: str, text: str) -> bool:
        if len(text) > LONGEST_MATCHED:
            raise _BadSchema(f"a string that must match a pattern may have at most {LONGEST_MATCHED} characters")
        self.step(1 + len(text) // 100)
        pattern = self._patterns[rule]
        pattern.left = self._seconds
        try:
            return pattern.search(text) is not None
        except TooSlow:
            raise _BadSchema(f"matching the pattern {rule[:_SHOWN]} takes too long; make it simpler") from None
        finally:
            self._seconds = pattern.left

    def minimum(self, rule: float, value: Any, schema: Any) -> str:
        return f" must be bigger than or equal to {rule}" if _is_number(value) and value < rule else ""

    def maximum(self, rule: float, value: Any, schema: Any) -> str:
        return f" must be smaller than or equal to {rule}" if _is_number(value) and value > rule else ""

    def above(self, rule: float, value: Any, schema: Any) -> str:
        return f" must be bigger than {rule}" if _is_number(value) and value <= rule else ""

    def below(self, rule: float, value: Any, schema: Any) -> str:
        return f" must be smaller than {rule}" if _is_number(value) and value >= rule else ""

    def multiple_of(self, rule: float, value: Any, schema: Any) -> str:
        return f" must be a multiple of {rule}" if _is_number(value) and not _is_multiple(value, rule) else ""

    # --- lists

    def min_items(self, rule: int, value: Any, schema: Any) -> str:
        return f" must contain at least {rule} items" if isinstance(value, list) and _size(value) < rule else ""

    def max_items(self, rule: int, value: Any, schema: Any) -> str:
        wrong = isinstance(value, list) and _size(value) > rule
        return f" must contain at most {rule} items" if wrong else ""

    def unique_items(self, rule: Any, value: Any, schema: Any) -> str:
        if rule is not True or not isinstance(value, list):
            return ""
        items = cast("list[Any]", value)
        return "" if len({self.key(one) for one in items}) == len(items) else " must contain unique items"

    def items(self, rule: Any, value: Any, schema: dict[str, Any]) -> str:
        if isinstance(rule, list):  # as it was written before prefixItems
            return self._each(cast("list[Any]", rule), schema.get("additionalItems", True), value)
        return self._each(schema.get("prefixItems", []), rule, value)

    def prefix_items(self, rule: list[Any], value: Any, schema: dict[str, Any]) -> str:
        return self._each(rule, True, value) if "items" not in schema else ""

    def _each(self, first: list[Any], rest: Any, value: Any) -> str:
        for number, one in enumerate(cast("list[Any]", value) if isinstance(value, list) else ()):
            if problem := self.fit(first[number] if number < len(first) else rest, one):
                return f"[{number}]{problem}"
        return ""

    def contains(self, rule: Any, value: Any, schema: dict[str, Any]) -> str:
        if not isinstance(value, list):
            return ""
        count = sum(not self.fit(rule, one) for one in cast("list[Any]", value))
        least, most = schema.get("minContains", 1), schema.get("maxContains")
        enough = least <= count and (most is None or count <= most)
        return "" if enough else f" contains {count} items that fit the schema under `contains`"

    # --- objects

    def min_properties(self, rule: int, value: Any, schema: Any) -> str:
        return (
            f" must contain at least {rule} properties" if isinstance(value, dict) and _size(value) < rule else ""
        )

    def max_properties(self, rule: int, value: Any, schema: Any) -> str:
        wrong = isinstance(value, dict) and _size(value) > rule
        return f" must contain at most {rule} properties" if wrong else ""

    def required(self, rule: list[str], value: Any, schema: Any) -> str:
        if not isinstance(value, dict):
            return ""
        self.step(len(rule))
        missing = [name for name in rule if name not in value]
        more = ["…"] if len(missing) > _NAMED_AT_MOST else []
        names = ", ".join([*(f"{name!r:.80}" for name in missing[:_NAMED_AT_MOST]), *more])
        return f" is missing {names}" if missing else ""

    def properties(self, rule: dict[str, Any], value: Any, schema: Any) -> str:
        if not isinstance(value, dict):
            return ""
        for name, one in cast("dict[str, Any]", value).items():
            if name in rule and (problem := self.fit(rule[name], one)):
                return f".{name[:_SHOWN]}{problem}"
        return ""

    def pattern_properties(self, rule: dict[str, Any], value: Any, schema: Any) -> str:
        if not isinstance(value, dict):
            return ""
        for pattern, below in rule.items():
            for name, one in cast("dict[str, Any]", value).items():
                if self._matches(pattern, name) and (problem := self.fit(below, one)):
                    return f".{name[:_SHOWN]}{problem}"
        return ""

    def additional_properties(self, rule: Any, value: Any, schema: dict[str, Any]) -> str:
        if not isinstance(value, dict):
            return ""
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", ())
        given = cast("dict[str, Any]", value)
        self.step(len(given))
        others = [n for n in given if n not in known and not any(self._matches(p, n) for p in patterns)]
        if rule is False:
            return f" must not contain {_shown(others)} properties" if others else ""
        for name in others:
            if problem := self.fit(rule, given[name]):
                return f".{name[:_SHOWN]}{problem}"
        return ""

    def property_names(self, rule: Any, value: Any, schema: Any) -> str:
        if not isinstance(value, dict):
            return ""
        wrong = [name for name in cast("dict[str, Any]", value) if self.fit(rule, name)]
        return f" must not contain {_shown(wrong)} properties" if wrong else ""

    def dependencies(self, rule: dict[str, Any], value: Any, schema: Any) -> str:
        if not isinstance(value, dict):
            return ""
        for name, needs in rule.items():
            if name not in value:
                continue
            problem = self.required(cast("Any", needs), value, schema) if isinstance(needs, list) else ""
            if problem := problem or ("" if isinstance(needs, list) else self.fit(needs, cast("Any", value))):
                return problem
        return ""


def _size(value: Any) -> int:
    return len(value)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _is_multiple(value: float, of: float) -> bool:
    try:
        if type(value) is int and type(of) is int:
            return value % of == 0
        quotient = value / of
        return abs(quotient - round(quotient)) < 1e-9 * max(1.0, abs(quotient))
    except (OverflowError, ValueError):
        return False


def _shown(value: Any) -> str:
    """A value as problems show it."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if len(items) > 20:
        return f"{_shown(items[:20])[:-1]}, …]"
    text = repr(cast("Any", value)) if not excess(value, 10_000, depth=DEPTH) else _brief(value)
    return text if len(text) <= 2_000 else f"{text[:2_000]}…"


_RULES: dict[str, Rule] = {
    "$ref": _Check.ref, "enum": _Check.enum, "const": _Check.const, "allOf": _Check.all_of, "anyOf": _Check.any_of,
    "oneOf": _Check.one_of, "not": _Check.no, "if": _Check.when, "minLength": _Check.min_length,
    "maxLength": _Check.max_length, "pattern": _Check.pattern, "format": _Check.format, "minimum": _Check.minimum,
    "maximum": _Check.maximum, "exclusiveMinimum": _Check.above, "exclusiveMaximum": _Check.below,
    "multipleOf": _Check.multiple_of, "minItems": _Check.min_items, "maxItems": _Check.max_items,
    "uniqueItems": _Check.unique_items, "items": _Check.items, "prefixItems": _Check.prefix_items,
    "contains": _Check.contains, "minProperties": _Check.min_properties, "maxProperties": _Check.max_properties,
    "required": _Check.required, "properties": _Check.properties, "patternProperties": _Check.pattern_properties,
    "additionalProperties": _Check.additional_properties, "propertyNames": _Check.property_names,
    "dependencies": _Check.dependencies, "dependentRequired": _Check.dependencies,
    "dependentSchemas": _Check.dependencies,
}  # fmt: skip
