"""Attacks as data: texts that are short to write, and take long or fill the memory when they are worked on."""

from __future__ import annotations

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
