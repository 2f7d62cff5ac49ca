"""`glob` and `grep`: what they find, what git would leave out, and patterns that are meant to hurt."""

from __future__ import annotations

import atexit
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upcall.errors import UpcallError
from upcall.models import call
from upcall.workspace import Folder, InLog, Mounts, file_tools
from upcall.workspace.ignore import Glob
from upcall.workspace.search import LineSearch, walk
from workspace.doubles import files_of, played

TREE = {
    "README.md": "# Hello\n",
    "src/a.py": "import os\nHELLO = 1\n",
    "src/deep/b.ts": "// hello\n",
    "src/deep/c.tsx": "",
    "build/out.py": "hello = 2\n",
    ".gitignore": "build/\n*.log\n!keep.log\n",
    "x.log": "hello\n",
    "keep.log": "hello\n",
    ".git/config": "hello\n",
}


def plant(root: Path, tree: dict[str, str]) -> Folder:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Folder(root)


async def found(folder: Folder | Mounts, tool: str, **args: object) -> list[str]:
    (out,) = await played(folder, file_tools(), call(tool, **args))
    return out.text.split("\n")


@pytest.mark.parametrize(
    ("pattern", "path", "files"),
    [
        ("*.md", "/", ["/README.md"]),
        ("**/*.py", "/", ["/src/a.py"]),
        ("/src/**", "/", ["/src/a.py", "/src/deep/b.ts", "/src/deep/c.tsx"]),
        ("**/*.{ts,tsx}", "/", ["/src/deep/b.ts", "/src/deep/c.tsx"]),
        ("*", "src", ["/src/a.py"]),
        ("d*/?.ts", "/src/", ["/src/deep/b.ts"]),
        ("*.py", "/build", ["/build/out.py"]),
        ("*.log", "/", ["/keep.log"]),
        ("**/config", "/", ["(no file has such a name)"]),
    ],
)
async def test_glob_finds_files_by_name(tmp_path: Path, pattern: str, path: str, files: list[str]) -> None:
    assert await found(plant(tmp_path, TREE), "glob", pattern=pattern, path=path) == files


async def test_glob_finds_what_git_ignores_when_it_is_asked_to(tmp_path: Path) -> None:
    folder = plant(tmp_path, TREE)

    listed = await found(folder, "glob", pattern="**/*.{log,py}", ignored=True)
    assert sorted(listed) == ["/build/out.py", "/keep.log", "/src/a.py", "/x.log"]


async def test_grep_finds_lines_by_a_regular_expression(tmp_path: Path) -> None:
    folder = plant(tmp_path, TREE)

    assert await found(folder, "grep", pattern="^HELLO") == ["/src/a.py:2:HELLO = 1"]
    assert sorted(await found(folder, "grep", pattern="hello", ignore_case=True)) == [
        "/README.md:1:# Hello", "/keep.log:1:hello", "/src/a.py:2:HELLO = 1", "/src/deep/b.ts:1:// hello",
    ]  # fmt: skip
    assert await found(folder, "grep", pattern="hello", glob="*.ts") == ["/src/deep/b.ts:1:// hello"]
    assert await found(folder, "grep", pattern="H", glob="src/*.py") == ["/src/a.py:2:HELLO = 1"]
    assert await found(folder, "grep", pattern="hello", path="build/out.py") == ["/build/out.py:1:hello = 2"]
    assert await found(folder, "grep", pattern="nowhere") == ["(no line matches)"]


async def test_a_match_never_spans_lines(tmp_path: Path) -> None:
    folder = plant(tmp_path, {"a.txt": "one\ntwo\r\nthree\n\nfive"})

    assert await found(folder, "grep", pattern=r"one\s+two") == ["(no line matches)"]
    assert await found(folder, "grep", pattern=r"e[^x]*$") == ["/a.txt:1:one", "/a.txt:3:three", "/a.txt:5:five"]
    assert await found(folder, "grep", pattern=r"\At") == ["/a.txt:2:two", "/a.txt:3:three"]
    assert await found(folder, "grep", pattern=r"(?<!x)e\Z") == ["/a.txt:1:one", "/a.txt:3:three", "/a.txt:5:five"]
    assert await found(folder, "grep", pattern=r"^$") == ["/a.txt:4:"]


@given(
    lines=st.lists(st.text(st.sampled_from("ab"), max_size=5), max_size=30),
    pattern=st.sampled_from(["a", "ab", "^b", "a$", "^$", "a.*b", "(?=b)b", "[^a]", r"\s*b"]),
)
@example(lines=["a" * 1_048_570, "ab", "b"], pattern="ab")
async def test_grep_finds_what_a_plain_loop_finds(lines: list[str], pattern: str) -> None:
    files = files_of(InLog())
    body = "\n".join(lines)
    await files.write("/x", body.encode())
    out: list[str] = []
    await LineSearch(pattern, False).search(files, "/x", out)

    whole = body.split("\n")
    if whole[-1] == "":
        whole.pop()
    expected = [number for number, line in enumerate(whole, 1) if re.search(pattern, line)]
    assert [int(line.split(":")[1]) for line in out] == expected


async def test_long_lines_are_shown_around_their_match_and_many_are_cut(tmp_path: Path) -> None:
    folder = plant(tmp_path, {"long.txt": "x" * 5000 + "here" + "y" * 5000, "many.txt": "z\n" * 500})

    (line,) = await found(folder, "grep", pattern="here")
    assert line.startswith("/long.txt:1:…xxx")
    assert "here" in line
    assert len(line) < 450
    many = await found(folder, "grep", pattern="z")
    assert len(many) == 201
    assert many[-1] == "… stopped at 200 lines; give a narrower pattern, path or glob"


async def test_binary_files_and_links_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret.txt").write_text("needle")
    (tmp_path / "work" / "a.bin").write_bytes(b"needle\0needle")
    (tmp_path / "work" / "link.txt").symlink_to("../secret.txt")
    (tmp_path / "work" / "up").symlink_to("..")

    assert await found(Folder(tmp_path / "work"), "grep", pattern="needle") == ["(no line matches)"]
    assert await found(Folder(tmp_path / "work"), "glob", pattern="**") == ["/a.bin", "/link.txt", "/up"]


async def test_a_pattern_that_is_wrong_or_never_ends_is_an_error(tmp_path: Path) -> None:
    folder = plant(tmp_path, {"a.txt": "a" * 40 + "!\n"})

    (wrong,) = await played(folder, file_tools(), call("grep", pattern="(a"))
    assert wrong.is_error
    assert "the pattern '(a' can't be used: a ( is not closed" in wrong.text
    endless = LineSearch(r"(?:(?:a|aa|a?a)+)+\1?$|(.*a){25}b", False, seconds=0.2)
    with pytest.raises(UpcallError, match=r"takes longer than 0\.2 s; make it simpler, or search less"):
        await endless.search(folder, "/a.txt", [])


def test_no_glob_takes_long_however_it_is_written() -> None:
    assert not Glob("*a" * 60 + "b").matches(["a" * 250])
    assert not Glob("**/a/" * 30 + "b").matches(["a"] * 1000)
    assert Glob("**/a/" * 30 + "*").matches(["a"] * 1000)


async def test_mounted_files_are_found_with_the_rest(tmp_path: Path) -> None:
    mounts = Mounts(plant(tmp_path, {"a.md": "needle"}), {"/memories": InLog()})
    calls = [
        call("write_file", path="/memories/b.md", content="a needle"),
        call("glob", pattern="**/*.md"),
        call("grep", pattern="needle", glob="*.md"),
    ]
    _, names, lines = await played(mounts, file_tools(), *calls)

    assert names.text == "/a.md\n/memories/b.md"
    assert lines.text == "/a.md:1:needle\n/memories/b.md:1:a needle"


# --- as git has it ----------------------------------------------------------------------

NAMES = ["a", "b", "ab", "a.py", "b.py", "x y", "c-d", "A", "!b", "#c", "a]", "a\\b", ".d"]
PIECES = [
    "a", "b", "c", "*", "?", "[ab]", "[!a]", "[a-c]", "[^b]", "[[:alpha:]]", "[]a]", "[]-a]", ".py", "/", "**/",
    "/**", "/**/", "\\", "\\*", "\\!", " ", "x", "!", "#", "-", "[", "[a", "[!", "[\\]]", "A", "[a-", "[/a]", "\\/",
]  # fmt: skip


def line_of(start: str, pieces: list[str]) -> str:
    """Join a line of an ignore file; stars in the middle of a name get a slash before them.

    Git reads `a**` at the beginning of a path as if that slash were there, against its own manual.
    """
    line = start + "".join(pieces)
    before, stars, after = line.partition("**")
    return line if not stars or before[-1:] in ("", "/", "!") else f"{before}/{stars}{after}"


lines = st.builds(
    line_of, st.sampled_from(["", "", "!", "/"]), st.lists(st.sampled_from(PIECES), min_size=1, max_size=4)
)
spots = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


@cache
def repository() -> str:
    """An empty one, for as many folders as there are."""
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    subprocess.run(["git", "init", "-q", "--bare", made.name], check=True)
    subprocess.run(["git", "-C", made.name, "config", "core.bare", "false"], check=True)
    return made.name


@pytest.mark.slow
@given(
    places=st.lists(spots, min_size=3, max_size=10),
    rules=st.dictionaries(st.just("") | spots, st.lists(lines, min_size=1, max_size=4), min_size=1, max_size=2),
    end=st.sampled_from(["", "\n", "\r\n"]),
)
@example(places=["a/b", "b/a"], rules={"": ["/*", "!/a"], "a": ["*"]}, end="\n")
async def test_what_is_ignored_is_what_git_ignores(
    places: list[str], rules: dict[str, list[str]], end: str
) -> None:
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        for place in places:
            try:
                (root / place).parent.mkdir(parents=True, exist_ok=True)
                (root / place).touch()
            except (FileExistsError, NotADirectoryError):
                continue
        for folder, text in rules.items():
            if (root / folder).is_dir():
                (root / folder / ".gitignore").write_text("\n".join(text) + end)
        asked = ["git", f"--git-dir={repository()}", f"--work-tree={made}", "-c", "core.excludesFile=/dev/null"]
        asked += ["ls-files", "--others", "--exclude-standard", "-z"]
        listed = subprocess.run(asked, check=True, capture_output=True, cwd=made).stdout.decode()

        ours = [entry.path async for entry in walk(Folder(root), "/")]

        assert sorted(ours) == sorted(f"/{name}" for name in listed.split("\0") if name)


# --- size -------------------------------------------------------------------------------

LARGE = """
import asyncio, resource, sys
sys.path.insert(0, {tests!r})
from upcall.models import call
from upcall.workspace import Folder, file_tools
from workspace.doubles import played

async def main():
    folder = Folder({folder!r})
    await played(folder, file_tools(), call("grep", pattern="line 7$", path="small.txt"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = await played(
        folder, file_tools(),
        call("grep", pattern="line 3141592$"),
        call("read_file", path="large.txt", offset=3000000, limit=1),
        call("grep", pattern="xy", path="one-line.txt"),
        call("read_file", path="one-line.txt"),
    )
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    for one in out:
        print(one.text[:100].replace(chr(10), "|"))

asyncio.run(main())
"""


@pytest.mark.slow
async def test_200_megabytes_are_searched_and_read_in_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "large.txt").open("w") as large:
        for start in range(0, 4_000_000, 100_000):
            large.write("".join(f"{n:>44} line {n}\n" for n in range(start, start + 100_000)))
    (tmp_path / "one-line.txt").write_text("x" * 60_000_000)
    (tmp_path / "small.txt").write_text("line 7\n")
    assert (tmp_path / "large.txt").stat().st_size > 200_000_000

    program = LARGE.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    kilobytes, line, part, none, cut = done.stdout.splitlines()
    assert int(kilobytes) < 40_000
    assert line.endswith("line 3141592")
    assert part.startswith("3000001\t")
    assert none == "(no line matches)"
    assert cut.startswith("     1\txxx")
