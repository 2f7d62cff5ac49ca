"""The shape of the code: small functions, files that hold one idea, no import cycles."""

from __future__ import annotations

import ast
import re
import tomllib

from house.measure import ROOT, SOURCE, Function, cycle, imports, sources


def functions() -> list[Function]:
    return [f for source in sources(SOURCE).values() for f in source.functions()]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not cycle(imports(sources(SOURCE)))


def test_every_module_belongs_to_a_layer() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    named = {module.strip().removeprefix("upcall.") for layer in layers for module in layer.split("|")}
    rooms = {"", "__main__", "core"}  # the package's own front, and a folder that holds nothing but rooms
    left_out = [
        name
        for name in sources(SOURCE)
        if name not in rooms and not any(name == layer or name.startswith(f"{layer}.") for layer in named)
    ]
    assert not left_out, f"add to a layer of the import contract in pyproject.toml: {', '.join(left_out)}"


def test_functions_fit_on_a_screen() -> None:
    by_length = sorted(functions(), key=lambda f: f.lines)
    too_long = [f"{f.lines} lines: {f.where}" for f in by_length if f.lines > 60]
    assert not too_long, "\n".join(["a function has at most 60 code lines", *too_long])
    index = min(len(by_length) - 1, int(0.95 * len(by_length)))
    assert by_length[index].lines <= 30, "only one function in twenty may have more than 30 code lines"


def test_files_have_at_most_500_lines_of_code() -> None:
    sizes = {str(s.path.relative_to(ROOT)): len(s.code) for s in sources(SOURCE).values()}
    assert not {path: size for path, size in sizes.items() if size > 500}


def test_arguments_and_edited_values_are_compared_as_json() -> None:
    found = [
        f"{source.path.relative_to(ROOT)}:{node.lineno}"
        for source in sources(SOURCE).values()
        for node in source.nodes
        if isinstance(node, ast.Compare) and any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops)
        if any(map(_holds_json, (node.left, *node.comparators)))
    ]
    assert not found, "\n".join(["`==` treats 1 as equal to true and 1.0; use same_json", *found])


def _holds_json(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="args" | "arguments" | "output" | "edited"):
            return True
        case ast.Name(id="edited" | "edited_args" | "edited_arguments"):
            return True
        case _:
            return False


def test_a_test_is_named_by_a_sentence() -> None:
    names = [
        (source.path.relative_to(ROOT), name)
        for source in sources(ROOT / "tests").values()
        if source.path.name.startswith("test_")
        for name in re.findall(r"^ *(?:async )?def (test_\w*)", source.text, re.MULTILINE)
    ]
    assert names
    short = [f"{path}: {name}" for path, name in names if name.count("_") < 4]
    assert not short, "\n".join(["a test's name says what is true, in four words or more", *short])


def test_tests_use_the_real_thing_and_none_is_skipped() -> None:
    kinds = r"unittest\.mock|\bMagicMock\b|pytest\.(mark\.)?(skip|skipif|xfail|importorskip)\b"
    found = [
        f"{source.path.relative_to(ROOT)}: {hit[0]}"
        for source in sources(ROOT / "tests").values()
        for hit in re.finditer(kinds, source.text)
        if source.path.name != "test_shape.py"
    ]
    assert not found, "\n".join(["a scripted double or the real thing, never a mock, never skipped", *found])
