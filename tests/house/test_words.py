"""One word for one thing: the documentation, the help and the errors avoid the phrases that docs/words.md lists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from house.measure import ROOT, SOURCE, Source, sources
from upcall.cli import build_commands

WORDS = ROOT / "docs" / "words.md"


def discouraged() -> dict[str, str]:
    """The phrases of the table "Phrases to avoid", each with what to say instead."""
    table = WORDS.read_text(encoding="utf-8").partition("## Phrases to avoid")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {phrase.strip(): instead for phrases, instead in rows[2:] for phrase in phrases.split(", ")}


def found(text: str) -> list[str]:
    """The discouraged phrases in a text, with what to say instead."""
    words = " ".join(text.split()).lower()
    return [
        f"{phrase!r}: say {instead}"
        for phrase, instead in discouraged().items()
        if re.search(rf"\b{re.escape(phrase.lower())}\b", words)
    ]


def documents() -> list[Path]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if page not in (WORDS, ROOT / "docs" / "design.md")]


def prose(text: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def error_texts(source: Source) -> Iterator[tuple[int, str]]:
    """Every text in a raise statement of a file, with its line."""
    for node in source.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def test_the_list_of_words_names_phrases_to_avoid() -> None:
    assert discouraged()["go on with"] == "continue, resume"
    assert found("Now  GO on\nwith it") == ["'go on with': say continue, resume"]
    assert not found("it goes on without it")


def test_the_documentation_avoids_discouraged_phrases() -> None:
    problems = {str(page.relative_to(ROOT)): found(prose(page.read_text(encoding="utf-8"))) for page in documents()}

    assert {page: phrases for page, phrases in problems.items() if phrases} == {}


def test_the_help_of_every_command_avoids_discouraged_phrases() -> None:
    commands = build_commands()
    helps = {command.name: command.parser.format_help() for command in commands.all}
    helps[""] = commands.parser.format_help()

    assert {name: phrases for name, text in helps.items() if (phrases := found(text))} == {}


def test_error_messages_avoid_discouraged_phrases() -> None:
    problems = [
        f"{source.path.relative_to(ROOT)}:{line}: {problem}"
        for source in sources(SOURCE).values()
        for line, text in error_texts(source)
        for problem in found(text)
    ]

    assert problems == []
