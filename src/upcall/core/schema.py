"""Turn annotations and docstrings into JSON schemas and into functions that convert JSON to the annotated types."""

from __future__ import annotations

import abc
import datetime as dt
import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, cast

import msgspec

from upcall.core.error_texts import shown
from upcall.messages import JsonSchema, Value

Convert = Callable[[Any], Any]

_QUICK: dict[Any, frozenset[type | str]] = {t: frozenset({t}) for t in (str, int, float, bool, type(None))}
_FORMATS = {dt.datetime: "date-time", dt.time: "time"}
_REFS = "#/$defs/"


class Shape(Value, frozen=True):
    """One annotation: its schema, and `convert`, which raises ValueError for JSON that does not fit.

    A value whose exact type is in `quick`, or a text that is itself, fits as it is.
    """

    schema: JsonSchema
    convert: Convert
    quick: frozenset[type | str] = frozenset()


def shapes(annotations: Mapping[str, Any]) -> tuple[dict[str, Shape], JsonSchema]:
    """The shape of each annotation and the `$defs` they share; TypeError or NameError for what can't be JSON."""
    book = _Book([], {})
    plain = {name: _rewrite(annotation, book) for name, annotation in annotations.items()}
    members = [member for stand in book.stands for member in stand.members]
    hoisted: JsonSchema = {}
    # one call names all definitions, so that two classes of one name stay apart
    schemas, defs = msgspec.json.schema_components(
        [*plain.values(), *members],
        schema_hook=lambda cls: _schema_of(cls, hoisted),
        ref_template=_REFS + "{name}",
    )
    member_schemas = iter(schemas[len(plain) :])
    for stand in book.stands:
        stand.choices.extend(next(member_schemas) for _ in stand.members)
    closed = {n: {"additionalProperties": False, **d} if "properties" in d else d for n, d in defs.items()}
    book.defs.update({**closed, **hoisted})
    found = zip(plain.items(), schemas, strict=False)
    return {n: Shape(s, _converter(t, s, book.defs), _quick(t)) for (n, t), s in found}, book.defs


def whole_schema(schema: JsonSchema, defs: JsonSchema) -> JsonSchema:
    """One schema with its `$defs`. Its root is no reference: providers want to see the root's type."""
    if "$ref" in schema:
        root, rest = defs[name := schema["$ref"].removeprefix(_REFS)], defs
        if f'"{_REFS}{name}"' not in json.dumps(defs):  # else it holds itself, and is referred to
            rest = {other: body for other, body in defs.items() if other != name}
        schema, defs = {**root, **{k: v for k, v in schema.items() if k != "$ref"}}, rest
    return {**schema, "$defs": defs} if defs else schema


def read_hints(function: Any) -> dict[str, Any]:
    """The function's annotations, strings and local types too; NameError where one can't be found."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        return typing.get_type_hints(function, localns=_locals_around(function), include_extras=True)


def _locals_around(function: Any) -> dict[str, Any]:
    """Names of the functions that are running in the tool's own module: where local types are defined."""
    space = inspect.unwrap(function).__globals__
    found: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is space:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _quick(annotation: Any) -> frozenset[type | str]:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Union:
        return frozenset[type | str]().union(*(_quick(arg) for arg in args))
    if origin is Annotated:
        only_words = all(m == msgspec.Meta(description=m.description) for m in args[1:])
        return _quick(args[0]) if only_words else frozenset()
    if origin is Literal:
        return frozenset(a for a in args if type(a) is str)
    return _QUICK.get(annotation, frozenset()) if isinstance(annotation, type) else frozenset()


def _converter(annotation: Any, schema: JsonSchema, defs: JsonSchema) -> Convert:
    def convert(value: Any) -> Any:
        out = msgspec.convert(value, annotation, strict=True, str_keys=True, dec_hook=_decode)
        if nested and (stranger := _Strangers(defs).in_value(schema, value)):
            raise ValueError(f"{stranger[1]} - at `${stranger[0]}`")
        return out

    nested = _REFS in str(schema)
    return convert


_ANYTHING: JsonSchema = {}
_HOLDERS = (dict, list)


class _Strangers:
    """Looks for fields that no class has, as msgspec would if it could forbid them in all classes.

    A problem is where it is, from the value that was looked at, and what it is. A value that might be of several
    classes is looked at once by each: in a tree of unions there are twice as many ways with each level.
    """

    def __init__(self, defs: JsonSchema) -> None:
        self._defs = defs
        self._seen: dict[tuple[int, int], tuple[str, str] | None] = {}
        self._fitting: dict[tuple[int, type], list[JsonSchema]] = {}  # the same few, for each of many items

    def in_value(self, schema: JsonSchema, value: Any) -> tuple[str, str] | None:
        """The first field that none of the classes here has; None where one of them has all."""
        kind = dict if isinstance(value, dict) else list
        if not isinstance(value, kind):
            return None
        options = self._fitting.get((id(schema), kind))
        if options is None:
            wanted = "object" if kind is dict else "array"
            options = [one for one in _options(schema, self._defs) if one.get("type") == wanted]
            self._fitting[id(schema), kind] = options
        if len(options) == 1:
            return self._in_option(options[0], value)
        return self._in_options(options, value)

    def _in_options(self, options: Sequence[JsonSchema], value: Any) -> tuple[str, str] | None:
        first: tuple[str, str] | None = None
        for option in options:
            at = id(option), id(value)
            if at not in self._seen:
                self._seen[at] = self._in_option(option, value)
            if self._seen[at] is None:
                return None
            first = first or self._seen[at]
        return first

    def _in_option(self, option: JsonSchema, value: Any) -> tuple[str, str] | None:
        if isinstance(value, dict):
            return self._in_object(option, cast("dict[str, Any]", value))
        first = cast("list[JsonSchema]", option.get("prefixItems", []))
        rest = cast("JsonSchema", option.get("items") or _ANYTHING)
        for number, item in enumerate(cast("list[Any]", value)):
            if isinstance(item, _HOLDERS) and (
                stranger := self.in_value(first[number] if number < len(first) else rest, item)
            ):
                return f"[{number}]{stranger[0]}", stranger[1]
        return None

    def _in_object(self, schema: JsonSchema, value: dict[str, Any]) -> tuple[str, str] | None:
        fields = cast("dict[str, JsonSchema]", schema.get("properties", {}))
        others = cast("JsonSchema | bool", schema.get("additionalProperties", True))
        for name, item in value.items():
            if name not in fields and others is False:
                return "", f"Object contains unknown field `{name[:100]}`{closest_or_all(name, fields)}"
            if not isinstance(item, _HOLDERS):
                continue
            deeper = fields.get(name, others)
            if isinstance(deeper, dict) and (stranger := self.in_value(deeper, item)):
                return f".{name[:100]}{stranger[0]}", stranger[1]
        return None


def _options(schema: JsonSchema, defs: JsonSchema) -> Iterator[JsonSchema]:
    if "$ref" in schema:
        yield from _options(defs[schema["$ref"].removeprefix(_REFS)], defs)
    elif "anyOf" in schema:
        for option in schema["anyOf"]:
            yield from _options(option, defs)
    else:
        yield schema


# --- annotations that msgspec does not know -----------------------------------------------


class _StandIn(abc.ABC):
    """A class put into an annotation for what msgspec refuses there: some unions, some enums, pydantic's fields."""

    members: ClassVar[tuple[Any, ...]]
    choices: ClassVar[list[JsonSchema]]
    wire: ClassVar[JsonSchema]
    take: ClassVar[Convert]

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return True  # msgspec wants what the hook returned to be an instance of the annotated class


class _Book(NamedTuple):
    """The definitions collected during one run over annotations."""

    stands: list[type[_StandIn]]
    defs: JsonSchema


def _stand_in(book: _Book, take: Convert, wire: JsonSchema | None, *members: Any) -> Any:
    choices: list[JsonSchema] = []
    body = {"members": members, "choices": choices, "wire": wire or {"anyOf": choices}, "take": staticmethod(take)}
    stand = cast("type[_StandIn]", type("StandIn", (_StandIn,), body))
    book.stands.append(stand)
    return stand


def _rewrite(annotation: Any, book: _Book) -> Any:
    """The annotation with what msgspec refuses replaced, and plain strings in Annotated made descriptions."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _rewrite_annotated(annotation, args, book)
    if origin is Union or isinstance(annotation, types.UnionType):
        return _rewrite_union(tuple(_rewrite(arg, book) for arg in args), book)
    if origin in (typing.Literal, None):
        return _rewrite_leaf(annotation, book)
    kept = tuple(arg if arg is ... else _rewrite(arg, book) for arg in args)
    return annotation if kept == args else origin[kept]


def _rewrite_leaf(leaf: Any, book: _Book) -> Any:
    if leaf is object:
        return Any
    if leaf in _FORMATS:
        return Annotated[leaf, msgspec.Meta(extra_json_schema={"format": _FORMATS[leaf]})]
    if isinstance(leaf, enum.EnumMeta) and not _known(leaf):
        cls = cast("type[enum.Enum]", leaf)
        wire = {"title": cls.__name__, "enum": [member.value for member in cls]}
        return _stand_in(book, lambda value: _member(cls, value), wire)
    return cast("Any", leaf)


def _rewrite_union(members: tuple[Any, ...], book: _Book) -> Any:
    whole = Union[members]  # noqa: UP007 - the members are known at run time only
    if _known(whole):
        return whole

    def take(value: Any) -> Any:
        return _first(members, stand.choices, book.defs, value)

    stand = _stand_in(book, take, None, *members)
    return stand


def _rewrite_annotated(annotation: Any, args: tuple[Any, ...], book: _Book) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic and any(type(m).__module__.split(".")[0] in ("pydantic", "annotated_types") for m in args[1:]):
        adapter = pydantic.TypeAdapter(annotation)
        return _stand_in(book, lambda value: _by_pydantic(adapter.validate_json, value), adapter.json_schema())
    out = _rewrite(args[0], book)
    for extra in args[1:]:
        if isinstance(extra, str):
            out = Annotated[out, msgspec.Meta(description=extra)]
        elif isinstance(extra, msgspec.Meta):
            out = Annotated[out, extra]
    return out


def _known(annotation: Any) -> bool:
    try:
        msgspec.json.Decoder(annotation)
    except TypeError:
        return False
    return True


def _first(members: tuple[Any, ...], schemas: list[JsonSchema], defs: JsonSchema, value: Any) -> Any:
    problems: list[str] = []
    for member, schema in zip(members, schemas, strict=True):
        try:
            return _converter(member, schema, defs)(value)
        except ValueError as error:
            problems.append(str(error).replace(" - at `$", " at `"))
    raise ValueError("no member of the union fits: " + "; ".join(dict.fromkeys(problems)))


def _member(cls: type[enum.Enum], value: Any) -> enum.Enum:
    for member in cls:
        if member.value == value and type(member.value) is type(value):
            return member
    raise ValueError(f"Invalid enum value {value!r}")


# --- hooks for classes of others ----------------------------------------------------------


def is_pydantic(cls: Any) -> bool:
    """Tell whether a class is a pydantic model."""
    pydantic = sys.modules.get("pydantic")  # a model can't be here unless its library was imported
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def _schema_of(cls: Any, hoisted: JsonSchema) -> JsonSchema:
    if _is_stand_in(cls):
        wire = cls.wire
        return _hoist(wire, f"field{len(hoisted)}", hoisted) if "$defs" in wire else wire
    if is_pydantic(cls):
        return _hoist(cls.model_json_schema(), cls.__qualname__, hoisted)
    if _is_path(cls):
        return {"type": "string", "format": "path"}
    raise NotImplementedError


def _is_path(cls: Any) -> bool:
    return hasattr(cls, "__fspath__")  # pathlib itself need not be imported for that


def _is_stand_in(cls: Any) -> bool:
    return _StandIn in getattr(cls, "__mro__", ())  # issubclass says yes to everything


def _hoist(schema: JsonSchema, prefix: str, hoisted: JsonSchema) -> JsonSchema:
    """The schema with its own `$defs` moved out under names that nothing else has."""
    moved = json.loads(json.dumps(schema).replace(f'"{_REFS}', f'"{_REFS}{prefix}.'))
    hoisted.update({f"{prefix}.{name}": body for name, body in moved.pop("$defs", {}).items()})
    return moved


def _decode(cls: Any, value: Any) -> Any:
    if _is_stand_in(cls):
        return cls.take(value)
    if is_pydantic(cls):
        return _by_pydantic(cls.model_validate_json, value)
    if _is_path(cls):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return cls(value)
    raise ValueError(f"no JSON value can be converted to {cls.__name__}")


def _by_pydantic(validate: Callable[..., Any], value: Any) -> Any:
    """Through JSON, because only there pydantic's strictness still takes dates and enums from strings."""
    try:
        return validate(json.dumps(value).encode(), strict=True)
    except sys.modules["pydantic"].ValidationError as error:
        found = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in error.errors())
        raise ValueError("; ".join(found)) from None


# --- words for people and models ----------------------------------------------------------


def words(schema: JsonSchema, defs: JsonSchema, depth: int = 3) -> str:
    """A short description of the values that a schema accepts."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFS)
        return words(defs.get(name, {}), defs, depth - 1) if depth else "object"
    if "enum" in schema:
        return "one of " + ", ".join([*map(json.dumps, schema["enum"][:_FEW]), *_more(schema["enum"])])
    if "anyOf" in schema:
        each = dict.fromkeys(words(s, defs, depth - 1) for s in schema["anyOf"][:_FEW]) if depth else ["value"]
        return " or ".join([*each, *_more(schema["anyOf"])])
    kind = schema.get("type", "any value")
    if kind == "array" and isinstance(schema.get("items"), dict) and depth:
        return f"array of {words(schema['items'], defs, depth - 1)}"
    if kind == "object" and "properties" in schema:
        names = [*schema["properties"]]
        return f"object with {', '.join([*names[:_FEW], *_more(names)])}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


_FEW, _MOST_PROBLEMS = 50, 20
"""Choices and fields of one schema that are named, and problems that are told."""


def _more(all_of_them: list[Any]) -> list[str]:
    return ["…"] if len(all_of_them) > _FEW else []


def check_each(
    known: Mapping[str, Shape], required: Collection[str], defs: JsonSchema, args: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The arguments converted, and everything that is wrong with them, in words for a model."""
    out: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in args.items():
        shape = known.get(name)
        if len(problems) >= _MOST_PROBLEMS:
            problems.append("…")
            return out, problems
        if shape is None:
            problems.append(f"{name[:100]}: unknown argument{closest_or_all(name, known)}")
            continue
        try:
            out[name] = value if type(value) in shape.quick else shape.convert(value)
        except (ValueError, TypeError, RecursionError) as error:
            problems.append(_problem(name, words(shape.schema, defs), value, str(error)))
    for name, shape in known.items():
        if name not in args and name in required:
            problems.append(f"{name}: missing; expected {words(shape.schema, defs)}")
    return out, problems


def _problem(name: str, expected: str, value: Any, message: str) -> str:
    what, _, where = message.rpartition(" - at `$") if " - at `$" in message else (message, "", "")
    where = where.rstrip("`")
    if where:
        return f"{name}{where}: {what[:1].lower()}{what[1:]}, in {shown(value)}"
    mere = what.startswith("Expected `") and ", got `" in what
    return f"{name}: expected {expected}, got {shown(value)}" + ("" if mere else f" ({what})")


def closest_or_all(name: str, known: Collection[str]) -> str:
    """The closest of the known names, or all of them."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5) if len(name) <= 100 else []
    return f"; did you mean {close[0]!r}?" if close else f"; it takes: {', '.join(known) or 'none'}"


# --- docstrings ----------------------------------------

_SECTION = re.compile(r"(args|arguments|parameters|params)\s*:?\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"\s*(?::param\s+(?:[^:]+\s)?(?=\w+:))?\*{0,2}(\w+)\s*(?:\([^)]*\)\s*)?:(?:\s+(.*)|$)")
_NUMPY = re.compile(r"(\w+)\s*(?::.*)?($)")


def read_docstring(doc: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The text before the parameters, and what is said about each of `names`.

    Parameters are lines `path: where it is`, after `Args:` or not, Sphinx's `:param path: …`, or numpy's section.
    """
    lines = doc.split("\n")
    for number, line in enumerate(lines):
        following = "".join(lines[number + 1 : number + 2])
        section, entry = _SECTION.match(line), _ENTRY.match(line)
        if section and _is_rule(following):
            head, rest = _NUMPY, lines[number + 2 :]
        elif section and following[:1].isspace():
            head, rest = _ENTRY, lines[number + 1 :]
        elif entry and not line[:1].isspace() and entry[1] in names:
            head, rest = _ENTRY, lines[number:]
        else:
            continue
        return "\n".join(lines[:number]).strip(), _entries(rest, head, names)
    return doc.strip(), {}


def _entries(lines: list[str], head: re.Pattern[str], names: Collection[str]) -> dict[str, str]:
    """Entries with their indented continuations, until a line that stands further out than the first, or a rule."""
    margin = _indent("".join(lines[:1]))
    found: dict[str, str] = {}
    current = ""
    for line in filter(str.strip, lines):
        if _indent(line) < margin or _is_rule(line):
            break
        if _indent(line) == margin:
            entry = head.match(line)
            current = entry[1] if entry and entry[1] in names else ""
            if entry and current:
                found[current] = (entry[2] or "").strip()
        elif current:
            found[current] = f"{found[current]} {line.strip()}".strip()
    return found


def _is_rule(line: str) -> bool:
    return set(line.strip()) == {"-"}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
