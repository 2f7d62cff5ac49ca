"""Nothing leads out of a folder: random trees with real links, and links that appear while a path is walked."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from upcall import WorkspaceError
from upcall.workspace import Folder

NAMES = ["a", "b", "c", "d"]
SECRET = b"secret"

inner = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
folders = st.lists(inner, max_size=3)
plain = st.lists(inner, max_size=4)
paths = st.lists(st.sampled_from([*NAMES, "..", ".", ""]), max_size=6).map("/".join)
near = st.tuples(inner, st.lists(st.sampled_from([*NAMES, "..", "."]), min_size=1, max_size=4).map("/".join))
targets = st.tuples(
    inner, st.sampled_from(["{root}/a", "{root}/a/b", "{root}", "{out}", "{out}/secret", "/etc/passwd"])
)
links = st.lists(near | targets, max_size=5)


@contextmanager
def stage() -> Generator[tuple[Path, Path]]:
    """A workspace, and beside it what nobody may see."""
    with tempfile.TemporaryDirectory() as made:
        root, out = Path(made) / "work", Path(made) / "out"
        root.mkdir()
        out.mkdir()
        (out / "secret").write_bytes(SECRET)
        yield root, out


def build(root: Path, out: Path, files: list[str], made: list[str], links: list[tuple[str, str]]) -> None:
    """As much of it as fits together; nothing of it is made through a link."""
    todo = [(f, None) for f in made] + [(f, "") for f in files]
    todo += [(at, target.format(root=root, out=out)) for at, target in links]
    for at, target in todo:
        place = root / at
        if Path(os.path.realpath(place.parent)) != place.parent or os.path.lexists(place):
            continue
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if target is None:
                place.mkdir()
            elif target:
                place.symlink_to(target)
            else:
                place.write_text(f"file {at}")
        except OSError:
            continue


def plainly(root: Path, path: str) -> Path | None:
    """Where the system itself says that a path ends, `..` taken by name first; None where that is outside."""
    found: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not found:
                return None
            found.pop()
        elif part not in ("", "."):
            found.append(part)
    real = Path(os.path.realpath(root.joinpath(*found)))
    return real if real.is_relative_to(root) else None


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
@given(files=plain, made=folders, links=links, path=paths | inner)
@example(files=["a/b"], made=[], links=[("c", "a/../..")], path="c/out/secret")
@example(files=["a/b"], made=[], links=[("c", "{root}/a")], path="c/b")
async def test_what_is_read_is_inside_and_is_what_the_system_has_there(
    files: list[str], made: list[str], links: list[tuple[str, str]], path: str
) -> None:
    with stage() as (root, out):
        build(root, out, files, made, links)
        real = plainly(root, path)
        try:
            body = await Folder(root).read(path)
        except WorkspaceError:
            leaves = any(".." in target or target.startswith(("{out}", "/")) for _, target in links)
            assert leaves or real is None or not real.is_file()
        else:
            assert real is not None
            assert body == real.read_bytes() != SECRET


@pytest.mark.slow
@given(files=plain, made=folders, links=links, path=paths | inner)
@example(files=[], made=[], links=[("a", "{out}/secret")], path="a")
@example(files=[], made=[], links=[("a", "{out}")], path="a/new")
async def test_what_is_written_is_inside_and_nothing_outside_changes(
    files: list[str], made: list[str], links: list[tuple[str, str]], path: str
) -> None:
    with stage() as (root, out):
        build(root, out, files, made, links)
        before, real = snapshot(out), plainly(root, path)
        try:
            await Folder(root).write(path, b"new")
        except WorkspaceError:
            assert b"new" not in snapshot(root).values()
        else:
            assert real is not None
            assert real.read_bytes() == b"new"
        assert snapshot(out) == before
        assert not [name for name in snapshot(root) if "unfinished" in name]


@pytest.mark.slow
@given(files=plain, made=folders, links=links)
async def test_a_listing_follows_no_link_out(
    files: list[str], made: list[str], links: list[tuple[str, str]]
) -> None:
    with stage() as (root, out):
        build(root, out, files, made, links)
        for at, _ in links:
            try:
                listed = await Folder(root).entries(at)
            except WorkspaceError:
                continue
            assert not [entry for entry in listed if "secret" in entry.path]


def swap(spot: Path, link: Path, stop: threading.Event) -> None:
    """Now the real thing, now a link out of the workspace, as fast as can be."""
    aside, new = spot.with_name("aside"), spot.with_name("new")
    steps = [
        lambda: spot.rename(aside),
        lambda: new.symlink_to(link),
        lambda: new.replace(spot),
        spot.unlink,
        lambda: aside.rename(spot),
        lambda: shutil.rmtree(aside),  # only where a write has made the folder anew meanwhile
        new.unlink,
    ]
    while not stop.is_set():
        for step in steps:
            with suppress(OSError):
                step()


@pytest.mark.parametrize("kind", ["a folder on the way", "the file itself"])
async def test_a_link_that_appears_while_a_path_is_walked_is_not_followed(tmp_path: Path, kind: str) -> None:
    root, out = tmp_path / "work", tmp_path / "out"
    for folder, body in ((root / "spot", b"inside"), (out, SECRET)):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(body)
    race = (root / "spot", out) if kind == "a folder on the way" else (root / "spot" / "x", out / "x")
    stop, files = threading.Event(), Folder(root)
    racer = threading.Thread(target=swap, args=(*race, stop))
    racer.start()
    seen, refused = set[bytes](), 0
    try:
        while not seen or refused < 50:
            try:
                await files.write("/spot/x", b"inside")
                seen.add(await files.read("/spot/x"))
            except WorkspaceError as error:
                refused += "leads out" in error.problem
    finally:
        stop.set()
        racer.join()
    assert seen == {b"inside"}
    assert snapshot(out) == {"x": SECRET}


async def test_links_in_a_circle_end_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(WorkspaceError, match="too many links"):
        await Folder(tmp_path).read("/a")


async def test_a_link_out_is_named_by_the_path_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")

    with pytest.raises(WorkspaceError, match=r"^/link/passwd: is, or goes through, a link that leads out"):
        await Folder(tmp_path).read("link/passwd")
