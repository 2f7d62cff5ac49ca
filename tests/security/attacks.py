"""Attacks as data: texts that are short to write, and take long or fill the memory when they are worked on."""

from __future__ import annotations

from typing import Any

PATTERNS: dict[str, str] = {
    "nested repetition": "^(a+)+$",
    "nested repetition of alternatives": "(?:a|aa|a?a)+[bc]",
    "repetition over words": r"(\w+\s?)*[!.]$",
    "many stars": ".*.*.*.*.*.*.*.*=[xy]",
    "a backreference": r"(a*)*\1[bc]",
    "recursion": "(?R)",
    "recursion behind a letter": "a(?R)?b",
    "recursion by number": "(a|(?1))+[bc]",
    "recursion by name": "(?P<x>a(?&x)?)[bc]",
    "recursion behind a comment": "(?x)( # here\n?R)",
    "recursion behind a set": "[[:]x](?R)[:]]",
    "repetitions of repetitions": "(?:" * 30 + "ab" + "){2}" * 30,
    "repetitions of at least one, nested": "(?:" * 30 + "ab" + ")+" * 30,
    "optional repetitions of repetitions": "(?:" * 30 + "ab" + "){1,9}" * 30,
    "a large repetition of large repetitions": "(?:(?:abc){1000}){1000}",
    "a number of many digits": "a{99999999999999999999}",
    "hundreds of groups": "(?:" + "()" * 300 + "a)*[bc]",
    "hundreds of groups and a backreference": "(?:" + "()" * 200 + r"\1a)*[bc]",
    "groups within groups": "(" * 499 + ")" * 499,
    "a million letters": "a" * 1_000_000,
    "many alternatives": "|".join(str(number) for number in range(1000, 1190)) + "$",
    "all characters in any case": "(?i)" + "[\\x00-\U0010ffff]" * 60,
    "a fuzzy match": "(?:abcdefgh){e<=8}[xy]",
    "a named list": r"\L<words>",
    "a verb": "(*PRUNE)a|(*SKIP)b",
    "a variable look behind": "(?<=(?:a|aa)*)[bc]",
    "a set that is not closed": "[" * 900,
    "sets in sets": "[[a-z]--[b]]" * 50 + "[bc]",
    "half a character": "\ud800+$",
}
"""Regular expressions: each is refused, or gives up, or ends."""

GLOBS: dict[str, str] = {
    "alternatives thirty times": "{a,b}" * 30,
    "alternatives in alternatives": "{a,b{c,d{e,f{g,h{i,j{k,l{m,n{o,p}}}}}}}}" * 5,
    "commas without an end": "{" + "," * 990,
    "braces without an end": "{" * 999,
    "a million letters": "a" * 1_000_000,
    "many stars": "*a" * 400 + "b",
    "many double stars": "**/a/" * 190 + "b",
    "sets without an end": "[" * 999,
    "named sets without an end": "[[:" * 300,
    "twenty alternatives of stars": "{" + ",".join("*a" * 20 for _ in range(20)) + "}",
}
"""Patterns of file names."""

IGNORES: dict[str, str] = {
    "450,000 rules": "a\n" * 450_000,
    "as many rules as are read": "".join(f"*{number}*a\n" for number in range(4_990)),
    "more rules than are read": "a\n" * 6_000,
    "one line of 90,000 characters": "*a" * 45_000,
    "blanks at the end of a line": "a" + " " * 90_000 + "b",
    "sets without an end": ("[" * 900 + "\n") * 100,
    "double stars": ("**/a" * 200 + "\n") * 110,
}
"""Contents of a .gitignore."""

_NAMES = 3_000

PROGRAMS: dict[str, str] = {
    "names that stand for names": "\n".join(f"a{n} = a{n + 1}" for n in range(_NAMES)) + "\nlook(1)\nawait a0",
    "functions of one name": "def f(a): return a\n" * 1_200 + "f(1)\n" * 4_000 + "look(1)\nawait f(2)",
    "parameters of many names": "".join(f"def f(a{n}): pass\n" for n in range(800)) + "f(1)\n" * 4_000
    + "look(1)\n" + "\n".join(f"await a{n}" for n in range(800)),
    "many targets": "a, b, c, d = look(1), 2, 3, 4\n" * 1_600 + "await a",
    "many assignments in one": "a = " * 10_000 + "look(1)",
}  # fmt: skip
"""Programs that take long to read; `look` is a tool."""

SHARED: dict[str, str] = {
    "one text 400 times": "a = 'x' * 1_000_000\n{use}([a] * 400)",
    "one list of texts many times": "a = ['x' * 1000] * 1000\n{use}([a] * 1000)",
    "a list doubled 60 times": "a = ['x']\nfor _ in range(60): a = [a, a]\n{use}(a)",
    "one text under 400 keys": "a = 'x' * 1_000_000\n{use}({{str(n): a for n in range(400)}})",
    "one text in a tuple in a set of tuples": "a = 'x' * 1_000_000\n{use}([(a, a, a, a)] * 100)",
    "a number of a million digits": "{use}([10 ** 100_000] * 1000)",
    "bytes 400 times": "a = b'x' * 1_000_000\n{use}([a] * 400)",
}
"""Programs whose values share their parts; `{use}` is what the value is handed to."""


def _nested_schema(keyword: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {keyword: [schema, schema]} if keyword != "not" else {"not": schema}
    return schema


_LONG = ["a" * 40 + "!", "a" * 9_999 + "!", {"a" * 200 + str(n): "a" * 40 for n in range(300)}, list(range(40_000))]

SCHEMAS: dict[str, tuple[Any, Any]] = {
    "a pattern that backtracks": ({"type": "string", "pattern": "^(a+)+$"}, _LONG[0]),
    "a pattern that backtracks over a long text": ({"pattern": "(?:a|aa|a?a)+[bc]"}, _LONG[1]),
    "a pattern against a megabyte": ({"pattern": "^(a+)+$"}, "a" * 900_000 + "!"),
    "patterns of names that backtrack": ({"patternProperties": {"^(a+)+$": {}, "(a|aa)+$": {}}}, _LONG[2]),
    "forty patterns": ({"allOf": [{"pattern": f"^(a+)+{n}$"} for n in range(40)]}, _LONG[0]),
    "patterns in alternatives": ({"anyOf": [{"pattern": f"(a|aa)+[{n}b]"} for n in range(40)]}, _LONG[1]),
    "a pattern of a hundred thousand characters": ({"pattern": "(a|b)?" * 16_000}, "a"),
    "a pattern that recurses": ({"pattern": "a(?R)?b"}, "a"),
    "a pattern of repeated repetitions": ({"pattern": "(?:" * 30 + "ab" + ")+" * 30}, "a"),
    "a format that backtracks": ({"format": "email"}, "a." * 4_000),
    "a format over a megabyte": ({"format": "hostname"}, "a" * 900_000),
    "a format of hosts": ({"format": "hostname"}, ("a" * 62 + "-.") * 150),
    "12,000 properties": ({"properties": {f"p{n}": {"type": "string"} for n in range(12_000)}}, {}),
    "30,000 required names": ({"required": [f"p{n}" for n in range(30_000)]}, {}),
    "100,000 choices": ({"enum": list(range(99_000))}, "x"),
    "choices for each item": ({"items": {"enum": [f"c{n}" for n in range(20_000)]}}, ["x"] * 20_000),
    "choices that are large values": ({"items": {"enum": [[0] * 1_000] * 20}}, [[0] * 1_000] * 20),
    "unique items": ({"uniqueItems": True}, [[n, {"a": n}] for n in range(20_000)]),
    "unique items in unique items": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"uniqueItems": True, "items": {"$ref": "#/$defs/a"}}}},
        [[[[n] * 10] * 10] * 10 for n in range(40)],
    ),
    "a multiple of a tiny number": ({"multipleOf": 1e-300}, 1e300),
    "a multiple of a huge number": ({"multipleOf": 10**4_000}, 10**4_200),
    "a multiple of nothing": ({"multipleOf": 0}, 1),
    "a reference to itself": ({"$ref": "#"}, 1),
    "references in a circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, 1),
    "references that double": (
        {
            "$ref": "#/$defs/a0",
            "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)} | {"a60": {}},
        },
        1,
    ),
    "a reference to a web page": ({"$ref": "http://127.0.0.1:9/schema.json"}, 1),
    "a reference to a file": ({"$ref": "file:///etc/passwd"}, 1),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, 1),
    "a reference to no schema": ({"$ref": "#/enum", "enum": [1, 2]}, 1),
    "a reference of a megabyte": ({"$ref": "#" + "/a" * 400_000}, 1),
    "all of all of all": (_nested_schema("allOf", 16), "x"),
    "any of any of any": (_nested_schema("anyOf", 16), 5),
    "one of one of one": (_nested_schema("oneOf", 16), 5),
    "not not not": (_nested_schema("not", 95), "x"),
    "not not not too deep": (_nested_schema("not", 5_000), "x"),
    "each item by a thousand schemas": ({"items": {"allOf": [{"minimum": 0}] * 900}}, _LONG[3]),
    "names by a thousand schemas": ({"propertyNames": {"allOf": [{"maxLength": 500}] * 900}}, _LONG[2]),
    "items and contains": ({"contains": {"items": {"contains": {"const": 1}}}}, [[[0] * 200] * 30] * 200),
    "a tree that refers to itself": (
        {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
        [[[[[[[[[[[[["x"]]]]]]]]]]]]],
    ),
    "code in a name": ({"properties": {"a\"]; raise SystemExit('out') #": {"type": "string"}}}, {"a": 1}),
    "code in a choice": ({"enum": ["'+__import__('os').system('exit 1')+'"]}, "x"),
    "code in a type": ({"type": "string') or __import__('os').abort() or ('"}, "x"),
    "code in a number": ({"minimum": "0) or __import__('os').abort() or (0"}, 1),
    "code in a reference": ({"$ref": "#/$defs/a:\n    import os\n    os.abort()\ndef b"}, 1),
    "code in a format": ({"format": '"](x)) or __import__("os").abort() or ("'}, "x"),
    "code in a pattern": ({"pattern": '"); __import__("os").abort(); ("'}, "x"),
    "braces in a name": (
        {"properties": {"{variable}{0}{name.__class__}": {"type": "string"}}, "required": ["{x}"]},
        {},
    ),
    "a schema that is a list": ([{"type": "string"}], "x"),
    "schemas of the wrong kind": ({"properties": {"a": 5}, "allOf": {}, "items": "x"}, {"a": 1}),
}
"""JSON schemas, each with a value to check."""

FRONT_MATTER: dict[str, str] = {
    "merged keys that double": "a0: &a0 {x: 1}\n"
    + "".join(f"a{n + 1}: &a{n + 1}\n  <<: [*a{n}, *a{n}]\n" for n in range(25)),
    "aliases that double": "a0: &a0 [x, x]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40)),
    "lists inside each other": "a: " + "[" * 4_900 + "]" * 4_900,
    "objects inside each other": "a: " + "{b: " * 1_500 + "1" + "}" * 1_500,
    "a megabyte of keys": "".join(f"key{n}: value\n" for n in range(60_000)),
    "as many keys as are read": "".join(f"k{n}: v\n" for n in range(1_000)),
    "a number of many digits": "a: " + "9" * 9_000,
    "a date that is none": "a: 9999-99-99",
    "a long text": "a: " + "x " * 4_900,
    "tags": "a: !!python/object/apply:os.abort []",
}
"""What stands between the two lines --- of an agent file or a skill."""

_BRACKETS = "[" * 400

REPLIES: dict[str, str] = {
    "brackets before a text of escapes": _BRACKETS + '"' + "\\n" * 990_000,
    "brackets before a text without an end": _BRACKETS + '"' + "a" * 1_990_000,
    "brackets before a number": _BRACKETS + "1" * 1_990_000,
    "keys before a text without an end": '{"a":' * 400 + '"' + "a" * 1_990_000,
    "objects of one key": "[" + ",".join(['{"a":1}'] * 248_000) + "]",
    "objects of an empty key": "[" + ",".join(['{"":0}'] * 284_000) + "]",
    "empty objects": "[" + ",".join(["{}"] * 660_000) + "]",
    "texts": "[" + ",".join(['"ab"'] * 398_000) + "]",
    "lists inside each other": "[" * 900 + "]" * 900,
    "code fences": "```\n" * 480_000,
}
"""Replies of a model whose output has a type, and of a team's manager."""

FRAMED: dict[str, str] = {
    "a bracket before line breaks": "<" + "\n" * 900_000,
    "a bracket before blanks, again and again": ("<" + " " * 3_000) * 300,
    "a bracket and a slash before blanks": "</" + " " * 900_000,
    "brackets": "<" * 900_000,
    "marks": "</question-" * 80_000,
    "marks of files": "<memory" * 120_000,
    "brackets and line separators": "<\u2028" * 150_000,
}
"""Texts that are put into a frame: questions, results, AGENTS.md."""

RUNS: dict[str, str] = {
    "escaped quotes": '\\"',
    "quotes and escaped quotes": '"""\\"',
    "single quotes": "'''\\",
    "brackets and escaped quotes": '["\\"',
    "question marks": "?",
    "question marks and parameters": "?token=a?&",
    "urls that do not end": "a://b:",
    "urls in urls": ":/:0",
    "urls with passwords": "a://b:c/d",
    "variables that do not end": "${a:-",
    "tildes": "~",
    "calls and ids": "tool call id ",
    "options": " --token",
    "commands": " curl -u",
    "blanks": " ",
    "blank lines": " \n",
    "dashes": "---\n",
    "brackets": "[{",
    "angle brackets": "<a",
    "comments": "(?#",
    "words": "a",
    "dots": ".",
    "escape sequences": "\x1b[",
    "names": "name: a\t",
}
"""Beginnings that an expression tries again and again; repeated, they are a text of any length."""
