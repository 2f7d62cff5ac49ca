"""What models, programs and repositories write is bounded before the file tools and interpreters work on it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callbacks.doubles import Desk
from programs.doubles import outcome, programmer, told
from quick import examples
from security.attacks import GLOBS, IGNORES, PATTERNS, PROGRAMS, SHARED
from security.measuring import measured
from upcall import Agent, Result, tool
from upcall.errors import UpcallError
from upcall.models import call
from upcall.safety.patterns import BadPattern, Pattern, TooSlow
from upcall.workspace import Folder, file_tools, run_python
from upcall.workspace.search import LineSearch
from upcall.workspace.sites import awaited
from workspace.doubles import played

TEXTS = ["a" * 60_000 + "!", "ab" * 30_000, "word " * 10_000, "é" * 20_000]


@pytest.mark.slow
@pytest.mark.parametrize("attack", PATTERNS)
async def test_no_pattern_of_grep_holds_the_event_loop_or_fills_the_memory(tmp_path: Path, attack: str) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(f"{text}\n")
    folder = Folder(tmp_path)

    async with measured() as cost:
        with suppress(UpcallError):  # it is refused, or gives up
            lines = LineSearch(PATTERNS[attack], False, seconds=0.5)
            for number in range(len(TEXTS)):
                await lines.search(folder, f"/{number}.txt", [])

    cost.check()


@pytest.mark.slow
async def test_a_pattern_of_a_thousand_characters_is_searched_for_and_a_longer_one_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 1000 + "\n")

    found, refused, recursive = await played(
        Folder(tmp_path), file_tools(), call("grep", pattern="x" * 1000), call("grep", pattern="x" * 1001),
        call("grep", pattern="x(?R)?"),
    )  # fmt: skip

    assert found.text.startswith("/a.txt:1:xxx")
    assert refused.is_error
    assert "the pattern has 1001 characters; at most 1000 are allowed" in refused.text
    assert recursive.is_error
    assert "'(?R)?' is not supported" in recursive.text


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"(\w)\1", "abba", True),
        (r"(?P<x>a)b(?P=x)", "aba", True),
        (r"[[:alpha:]]+\d", "abc1", True),
        (r"[[]x", "[x", True),
        (r"a{e}", "a{e}", True),
        (r"a{2,3}?b{,2}", "aab", True),
        (r"\p{Lu}\N{LATIN SMALL LETTER A}", "Aa", True),
        (r"(?i:A)b", "ab", True),
        (r"(?i)AB", "ab", True),
        (r"[]a]{2}[^]b]", "]ac", True),
        (r"[a--]", "-", True),
        (r"(?<!a)b(?!c)", "ab", False),
        (r"a(?#note)b", "ab", True),
        (r"(?<year>\d{4})", "2026", True),
        (r"(?>a+)a", "aaa", False),
    ],
)
def test_patterns_mean_what_they_mean_everywhere(pattern: str, text: str, found: bool) -> None:
    assert bool(Pattern(pattern, 1.0).search(text)) is found


def test_the_time_of_a_pattern_is_that_of_all_its_searches() -> None:
    pattern = Pattern("(?:a|aa)+[bc]", 0.05)

    with pytest.raises(TooSlow):
        pattern.search("a" * 60_000 + "!")
    with pytest.raises(TooSlow):
        pattern.search("a" * 24 + "!")
    with pytest.raises(BadPattern, match="repeats more than 1000 times"):
        Pattern("a{1001}", 1.0)
    assert Pattern("a{1000}", 1.0).search("a" * 1000)


@pytest.mark.parametrize("attack", GLOBS)
async def test_no_glob_holds_the_event_loop_or_fills_the_memory(tmp_path: Path, attack: str) -> None:
    for number in range(200):
        (tmp_path / ("a" * 200 + str(number))).touch()
    deep = tmp_path.joinpath(*["a"] * 60)
    deep.mkdir(parents=True)
    (deep / "b").touch()

    async with measured() as cost:
        results = await played(
            Folder(tmp_path), file_tools(), call("glob", pattern=GLOBS[attack]),
            call("grep", pattern="x", glob=GLOBS[attack]),
        )  # fmt: skip

    assert all(len(result.text) < 100_000 for result in results)
    cost.check()


async def test_a_glob_stands_for_a_hundred_patterns_and_not_for_more(tmp_path: Path) -> None:
    (tmp_path / "b9").touch()
    letters, digits = "{" + ",".join("abcdefghij") + "}", "{" + ",".join("0123456789") + "}"

    found, refused, long = await played(
        Folder(tmp_path), file_tools(), call("glob", pattern=letters + digits),
        call("glob", pattern=letters + "{0,1,2,3,4,5,6,7,8,9,x}"), call("glob", pattern="a" * 1001),
    )  # fmt: skip

    assert found.text == "/b9"
    assert "expands to more than 100 patterns" in refused.text
    assert "the glob has 1001 characters; at most 1000 are allowed" in long.text


@pytest.mark.slow
@pytest.mark.parametrize("attack", IGNORES)
async def test_no_gitignore_holds_the_event_loop_or_fills_the_memory(tmp_path: Path, attack: str) -> None:
    (tmp_path / ".gitignore").write_text(IGNORES[attack])
    for number in range(50):
        (tmp_path / ("a" * 100 + f"{number}.txt")).touch()

    async with measured() as cost:
        (result,) = await played(Folder(tmp_path), file_tools(), call("glob", pattern="**/*.txt"))

    assert "0.txt" in result.text or result.text.startswith("(no file has such a name)")
    cost.check()


@pytest.mark.slow
async def test_no_gitignore_above_a_deep_folder_holds_the_event_loop(tmp_path: Path) -> None:
    rules = [f"**/{'a/' * 100}{end}\n" for number in range(49) for end in (f"b{number}", "**/b")]
    (tmp_path / ".gitignore").write_text("".join(rules))
    deep = tmp_path.joinpath(*["a"] * 240)
    deep.mkdir(parents=True)
    (deep / "x").touch()

    async with measured() as cost:
        (result,) = await played(Folder(tmp_path), file_tools(), call("glob", pattern="**/x"))

    assert result.text == "/" + "a/" * 240 + "x"
    cost.check()


@pytest.mark.slow
async def test_no_glob_holds_the_event_loop_at_a_deep_folder(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a"] * 240)
    deep.mkdir(parents=True)
    for name in "0123456789uvwxyz":
        (deep / name).touch()
    letters = "{b,c,d,e,f,g,h,i,j,k}"

    async with measured() as cost:
        found = await played(
            Folder(tmp_path),
            file_tools(),
            call("glob", pattern=f"**/{'a/' * 120}{letters}{letters}"),
            call("glob", pattern=f"**/{'a/' * 120}{letters}/**/x"),
        )

    assert [one.text for one in found] == ["(no file has such a name)"] * 2
    cost.check()


async def test_a_gitignore_at_the_bound_is_applied_and_a_larger_one_is_named_as_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / ".gitignore").write_text("a.txt\n" + "#" * 99_990)
    (applied,) = await played(Folder(tmp_path), file_tools(), call("glob", pattern="*.txt"))
    (tmp_path / ".gitignore").write_text("a.txt\n" + "#" * 100_000)
    (larger,) = await played(Folder(tmp_path), file_tools(), call("glob", pattern="*.txt"))
    (tmp_path / ".gitignore").write_text("a.txt\n" * 5_000)
    (longer,) = await played(Folder(tmp_path), file_tools(), call("grep", pattern="x", glob="*.txt"))

    assert applied.text == "(no file has such a name)"
    assert larger.text.startswith("/a.txt\n(/.gitignore is not applied: it has more than 100000 bytes")
    assert longer.text.startswith("(no line matches)\n(/.gitignore is not applied")


async def test_a_gitignore_that_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".gitignore")
    (tmp_path / "a.txt").touch()

    (result,) = await played(Folder(tmp_path), file_tools(), call("glob", pattern="*.txt"))

    assert result.text == "/a.txt"


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
async def test_file_tools_refuse_what_is_no_regular_file_without_opening_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    if kind == "pipe":
        os.mkfifo(other)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            monkeypatch.chdir(tmp_path)  # a socket's path is short
            bound.bind("other")
    else:
        other.symlink_to("/dev/zero")

    read, edited, found = await played(
        Folder(tmp_path), file_tools(), call("read_file", path="other"),
        call("edit_file", path="other", old_string="a", new_string="b"), call("grep", pattern="a"),
    )  # fmt: skip

    assert read.is_error
    assert edited.is_error
    assert "no line matches" in found.text


async def test_replacing_everywhere_makes_no_file_larger_than_can_be_edited(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 8_000)
    calls = [
        call("read_file", path="a.txt"),
        call("edit_file", path="a.txt", old_string="a", new_string="b" * 40_000, replace_all=True),
        call("edit_file", path="a.txt", old_string="a", new_string="b" * 500, replace_all=True),
    ]

    async with measured() as cost:
        _, refused, edited = await played(Folder(tmp_path), file_tools(), *calls)

    assert "would have 320000000 bytes; an edited file may have at most 4000000" in refused.text
    assert not edited.is_error
    assert (tmp_path / "a.txt").stat().st_size == 4_000_000
    cost.check()


async def test_a_text_that_is_there_a_million_times_is_told_with_its_first_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n" * 1_000_000)
    calls = [call("read_file", path="a.txt"), call("edit_file", path="a.txt", old_string="a", new_string="b")]

    async with measured() as cost:
        _, refused = await played(Folder(tmp_path), file_tools(), *calls)

    assert "old_string occurs in the file 1000000 times, on lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10;" in refused.text
    cost.check()


async def test_lines_far_behind_are_read_without_counting_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n" * 3_000_000 + "end\n")

    async with measured() as cost:
        (result,) = await played(Folder(tmp_path), file_tools(), call("read_file", path="a.txt", offset=2_999_999))

    assert result.text == "3000000\t\n3000001\tend"
    cost.check()


async def test_a_file_too_large_to_be_read_is_refused_before_it_is(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(10**12)

    (result,) = await played(Folder(tmp_path), file_tools(), call("read_file", path="a.txt"))

    assert "has 1000000000000 bytes; at most 500000000 can be read" in result.text


async def test_a_folder_of_too_many_files_is_not_listed_and_a_search_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upcall.workspace.folder.MAX_ENTRIES", 20)
    (tmp_path / "many").mkdir()
    for number in range(21):
        (tmp_path / "many" / f"{number}.txt").touch()

    listed, found = await played(
        Folder(tmp_path), file_tools(), call("ls", path="many"), call("glob", pattern="**")
    )

    assert "/many: holds more than 100000 files and folders, too many to list" in listed.text
    assert "(/many: holds more than" in found.text
    (tmp_path / "many" / "20.txt").unlink()
    assert len((await played(Folder(tmp_path), file_tools(), call("ls", path="many")))[0].text.splitlines()) == 20


# --- programs ---------------------------------------------------------------------------


@tool(read_only=True)
async def look(at: Any) -> str:
    """Look at something."""
    return "seen"


@pytest.mark.slow
@pytest.mark.parametrize("attack", PROGRAMS)
async def test_no_program_takes_long_to_read(attack: str) -> None:
    async with measured() as cost:
        result = await outcome(PROGRAMS[attack], tools=[look])

    assert isinstance(result, Result)
    cost.check()


USES = {
    "its last value": "",
    "a tool's argument": "look",
    "a question's context": "ask",
    "what it prints": "print",
    "a question's default": "default",
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("attack", SHARED)
async def test_values_that_share_their_parts_do_not_grow_the_process(attack: str, use: str) -> None:
    program = SHARED[attack].format(use=USES[use])
    program = program.replace("ask(", "raise_callback('q', context=dict(a=").replace(
        "default(", "raise_callback('q', default=("
    )
    program += ")" if "raise_callback" in program else ""

    async with measured() as cost:
        result = await outcome(program, tools=[look], python=run_python(memory=20_000_000))

    assert len(result.text) < 25_000
    cost.check()


async def test_the_last_value_is_shown_up_to_the_bound_and_then_cut() -> None:
    short = await outcome("['ab'] * 3")
    mixed = await outcome("[('a' * 5, {'k': b'b', 'n': None}), {1}] + ['x' * 30_000]")
    long = await outcome("['x' * 30_000]")

    assert short.text == "['ab', 'ab', 'ab']"
    assert mixed.text.startswith("[('aaaaa', {'k': b'b', 'n': None}), {1}, 'xxx")
    assert long.text.endswith("characters left out …")
    assert len(long.text) < 20_100


async def test_what_a_program_adds_to_the_log_is_bounded_by_its_calls_arguments(desk: Desk) -> None:
    program = "for n in range(6):\n    try: print(look('x' * 20_000))\n    except RuntimeError as e: print(e)"
    agent = programmer(program, tools=[look], python=run_python(stored=100_000))

    assert (await desk.prompt(agent)).status == "done"

    (result,) = await told(desk, agent)
    assert result.text.count("seen") == 4
    assert "a program may add 100000 bytes to the log, and its calls would exceed that" in result.text


@pytest.mark.slow
async def test_a_program_with_large_variables_asks_ten_times_and_the_log_stays_small(tmp_path: Path) -> None:
    place = Desk(tmp_path / "log.db")
    program = (
        "a = [str(n) * 100 for n in range(20_000)]\nfor n in range(10): print(raise_callback(f'q{n}'), len(a))"
    )
    agent: Agent = programmer(program, python=run_python(stored=3_000_000))

    reply = await place.prompt(agent)
    for number in range(10):
        assert reply.status == "waiting"
        await place.settle(agent, f"a{number}")
        reply = await place.resume(agent)

    assert reply.status == "done"
    (result,) = await told(place, agent)
    assert result.text.startswith("".join(f"a{number} 20000\n" for number in range(10)))
    assert "The variables are not kept for later programs" in result.text
    assert sum(path.stat().st_size for path in tmp_path.glob("log.db*") if path.is_file()) < 12_000_000


# --- anything ---------------------------------------------------------------------------

_PIECES = st.sampled_from(
    [
        *"a()+*?|.$^{},/!#- ",
        "ab",
        "(?:",
        "(?R)",
        "(?1)",
        "{2}",
        "{1,9}",
        "{a,b}",
        "[ab]",
        "[^a]",
        "[[:",
        "**/",
        r"\1",
    ]
)


def _written(pieces: list[str], times: int) -> str:
    return "".join(pieces) * times


_WRITTEN: st.SearchStrategy[str] = st.builds(_written, st.lists(_PIECES, max_size=12), st.integers(1, 400))


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pattern=_WRITTEN, glob=_WRITTEN, rules=_WRITTEN, old=_WRITTEN)
async def test_nothing_that_file_tools_are_given_holds_the_event_loop_or_fills_the_memory(
    tmp_path: Path, pattern: str, glob: str, rules: str, old: str
) -> None:
    (tmp_path / "a").mkdir(exist_ok=True)
    (tmp_path / "a" / "ab").write_text(("a" * 5_000 + "!\n" + "ab " * 2_000 + "\n") * 3)
    (tmp_path / ".gitignore").write_text(rules)
    folder = Folder(tmp_path)

    async with measured() as cost:
        with suppress(UpcallError):
            await LineSearch(pattern, False, seconds=0.2).search(folder, "/a/ab", [])
        await played(
            folder, file_tools(), call("glob", pattern=glob), call("read_file", path="a/ab"),
            call("edit_file", path="a/ab", old_string=old, new_string=rules, replace_all=True),
        )  # fmt: skip

    cost.check()


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(100))
@given(
    st.lists(
        st.sampled_from(
            ["a = b\n", "def f(a): return a\n", "await f(a)\n", "f(b, *a)\n", "a.append(b)\n", "b, a = a, b\n"]
        ),
        max_size=20,
    ),
    st.integers(1, 100),
)
async def test_no_program_takes_long_to_be_searched_for_what_it_awaits(lines: list[str], times: int) -> None:
    async with measured() as cost:
        awaited(("".join(lines) * times)[:50_000])

    cost.check(stall=1.0)  # it is done in a thread
