"""What every kind of workspace promises of its files, and what is special about each."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.disks import disk
from upcall import SetupError, WorkspaceError
from upcall.contracts import Entry, Files
from upcall.workspace import Folder, InLog, Mounts
from workspace.doubles import files_of

NFD = unicodedata.normalize("NFD", "café.txt")
NFC = unicodedata.normalize("NFC", "café.txt")


# --- on every kind ----------------------------------------------------------------------


async def test_what_was_written_is_read_again_whole_and_in_parts(files: Files) -> None:
    body = os.urandom(600_000)
    for path in ("/a/b/c.bin", "memories/c.bin"):
        await files.write(path, body)
        assert await files.read(path) == body
        assert await files.read(path, 100, 50) == body[100:150]
        assert await files.read(path, 262_000, 300_000) == body[262_000:562_000]
        assert await files.read(path, 599_990, 100) == body[-10:]
        assert await files.read(path, 700_000, 100) == await files.read(path, 700_000) == b""


async def test_a_path_means_the_same_with_and_without_a_leading_slash(files: Files) -> None:
    await files.write("a/./b//c.txt", b"x")

    assert await files.read("/a/b/c.txt") == b"x"
    assert await files.read("/a/d/../b/c.txt/") == b"x"
    assert await files.look("a/b") == Entry("/a/b", "folder")


async def test_a_folder_lists_what_lies_in_it_by_name(files: Files) -> None:
    for path in ("/b.txt", "/a/x.txt", "/a/y/z.txt", "/memories/note.txt"):
        await files.write(path, b"123")

    root = await files.entries("/")
    assert [(e.path, e.kind) for e in root] == [("/a", "folder"), ("/b.txt", "file"), ("/memories", "folder")]
    assert await files.entries("a") == [Entry("/a/x.txt", "file", 3), Entry("/a/y", "folder")]
    assert await files.entries("/memories/") == [Entry("/memories/note.txt", "file", 3)]


async def test_a_file_is_replaced_whole(files: Files) -> None:
    await files.write("/a.txt", b"long" * 1000)
    await files.write("/a.txt", b"")

    assert await files.read("/a.txt") == b""
    assert [e.path for e in await files.entries("/") if e.kind == "file"] == ["/a.txt"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("..", "leads out of the workspace"),
        ("/a/../../etc/passwd", "leads out of the workspace"),
        ("/memories/../../x", "leads out of the workspace"),
        ("a\0b", "must not contain a NUL"),
        ("x" * 256, "too long"),
        ("x/" * 3000, "too long"),
        ("\ud800.txt", "half a character"),
    ],
)
async def test_a_path_that_means_nothing_is_refused_everywhere(files: Files, path: str, problem: str) -> None:
    for attempt in (files.look(path), files.entries(path), files.read(path), files.write(path, b"x")):
        with pytest.raises(WorkspaceError, match=problem):
            await attempt


async def test_what_is_not_there_is_missing_and_a_folder_is_no_file(files: Files) -> None:
    await files.write("/a/b.txt", b"x")

    for attempt in (files.look("/c"), files.read("/c"), files.entries("/c"), files.read("/a/c")):
        with pytest.raises(WorkspaceError, match="no such file") as missing:
            await attempt
        assert missing.value.missing
    for attempt in (files.read("/a"), files.write("/a", b"x"), files.write("/", b"x"), files.read("/")):
        with pytest.raises(WorkspaceError, match="is a folder") as refused:
            await attempt
        assert not refused.value.missing
    for attempt in (files.entries("/a/b.txt"), files.write("/a/b.txt/c", b"x")):
        with pytest.raises(WorkspaceError, match="file"):
            await attempt


async def test_names_that_look_the_same_are_one_file(files: Files) -> None:
    await files.write(f"/{NFD}", b"one")
    await files.write(f"/{NFC}", b"two")

    assert await files.read(f"/{NFD}") == await files.read(f"/{NFC}") == b"two"
    assert len([e for e in await files.entries("/") if e.kind == "file"]) == 1


async def test_names_that_differ_in_case_are_two_files(files: Files) -> None:
    await files.write("/README", b"one")
    await files.write("/readme", b"two")

    assert (await files.read("/README"), await files.read("/readme")) == (b"one", b"two")


# --- a folder ---------------------------------------------------------------------------


async def test_a_folder_keeps_a_files_mode_and_its_link(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("old")
    (tmp_path / "run.sh").chmod(0o750)
    (tmp_path / "link").symlink_to("run.sh")

    await Folder(tmp_path).write("/link", b"new")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "run.sh").read_text() == "new"
    assert (tmp_path / "run.sh").stat().st_mode & 0o777 == 0o750


async def test_a_folder_finds_a_name_that_the_disk_spells_in_another_form(tmp_path: Path) -> None:
    (tmp_path / NFD).write_text("as a Mac writes it")

    assert await Folder(tmp_path).read(f"/{NFC}") == b"as a Mac writes it"
    assert (await Folder(tmp_path).look(NFC)).path == f"/{NFD}"


async def test_a_pipe_is_neither_opened_nor_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for attempt in (Folder(tmp_path).read("/pipe"), Folder(tmp_path).write("/pipe", b"x")):
        with pytest.raises(WorkspaceError, match="not a regular file"):
            await attempt
    assert await Folder(tmp_path).entries("/") == [Entry("/pipe", "other")]


async def test_a_name_that_is_no_text_is_listed(tmp_path: Path) -> None:
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.txt", os.O_CREAT))

    assert [e.path for e in await Folder(tmp_path).entries("/")] == ["/�.txt"]


async def test_a_path_of_the_machine_is_told_how_it_is_written_here(tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=r"do you mean /src/a\.py\?"):
        await Folder(tmp_path).read(f"{tmp_path}/src/a.py")


async def test_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    folder = Folder(tmp_path / "work")
    (tmp_path / "work").rmdir()

    for attempt in (folder.read("/a"), folder.write("/a", b"x"), folder.entries("/"), folder.look("/")):
        with pytest.raises(WorkspaceError, match=r"the workspace's folder .*/work can't be used: No such file"):
            await attempt
    assert not (tmp_path / "work").exists()


async def test_a_full_disk_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    with disk(tmp_path / "small", 64) as small:
        folder = Folder(small.folder)
        await folder.write("/a.txt", b"before")

        with pytest.raises(WorkspaceError, match=r"/a\.txt: the disk is full|too large"):
            await folder.write("/a.txt", b"x" * 200_000)

        assert await folder.read("/a.txt") == b"before"
        assert os.listdir(small.folder) == ["a.txt"]


async def test_a_read_only_disk_is_said_to_be_one(tmp_path: Path) -> None:
    with disk(tmp_path / "small", 64) as small:
        folder = Folder(small.folder)
        await folder.write("/a.txt", b"before")
        small.make_read_only()

        for path in ("/a.txt", "/b.txt", "/new/b.txt"):
            with pytest.raises(WorkspaceError, match=r"read-only|permission denied"):
                await folder.write(path, b"after")

        assert await folder.read("/a.txt") == b"before"


WRITER = """
import asyncio, sys
from upcall.workspace import Folder

async def main():
    folder = Folder(sys.argv[1])
    while True:
        for byte in (b"a", b"b"):
            await folder.write("/x", byte * 3_000_000)
            print("written", flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    for times in range(1, 11):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(times):
                writer.stdout.readline()
            writer.kill()
        body = (tmp_path / "x").read_bytes()
        assert body in (b"a" * 3_000_000, b"b" * 3_000_000)
        assert [entry.path for entry in await Folder(tmp_path).entries("/")] == ["/x"]


async def known(folder: Folder, path: str) -> None:
    """Read a file until it is given from memory: not while it is so new that its next change might not show."""
    one, two = b"", b"-"
    while one is not two:
        one, two = await folder.read(path), await folder.read(path)


async def test_a_file_that_is_known_is_read_anew_once_anything_of_it_has_changed(tmp_path: Path) -> None:
    file, folder = tmp_path / "a.txt", Folder(tmp_path)
    file.write_text("before")
    times = file.stat()
    await known(folder, "/a.txt")

    assert await folder.read("/a.txt", 2, 3) == b"for"
    file.write_text("behind")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert await folder.read("/a.txt") == b"behind"
    await known(folder, "/a.txt")
    file.unlink()
    with pytest.raises(WorkspaceError, match="no such file"):
        await folder.read("/a.txt")


async def test_a_file_that_is_known_is_refused_where_a_link_that_leads_out_has_taken_its_place(
    tmp_path: Path,
) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    for path in ("a.txt", "sub/a.txt"):
        (tmp_path / "work" / path).write_text("inside")
    folder = Folder(tmp_path / "work")
    await known(folder, "a.txt")
    assert await folder.read("sub/a.txt") == b"inside"

    for path in ("a.txt", "sub"):
        (tmp_path / "work" / path).rename(tmp_path / path)
        (tmp_path / "work" / path).symlink_to(tmp_path / path)

    for path in ("a.txt", "sub/a.txt"):
        with pytest.raises(WorkspaceError, match="leads out"):
            await folder.read(path)


# --- in the log -------------------------------------------------------------------------


@given(bodies=st.lists(st.tuples(st.sampled_from(["/a", "/b/c", "/b/d"]), st.binary(max_size=50)), max_size=8))
async def test_files_in_a_log_are_what_was_written_last(bodies: list[tuple[str, bytes]]) -> None:
    files = files_of(InLog())
    for path, body in bodies:
        await files.write(path, body)

    for path, body in dict(bodies).items():
        assert await files.read(path) == body
        assert await files.look(path) == Entry(path, "file", len(body))


async def test_two_workspaces_in_one_log_are_told_apart_by_name() -> None:
    files = files_of(Mounts(InLog(), {"/memories/": InLog("memories")}))
    await files.write("/a.txt", b"base")
    await files.write("/memories/a.txt", b"other")

    assert await files.read("/a.txt") == b"base"


# --- mounts -----------------------------------------------------------------------------


async def test_what_looks_like_a_mount_is_refused(tmp_path: Path) -> None:
    files = files_of(Mounts(Folder(tmp_path), {"/Memories/é": InLog()}))

    for path in ("/memories/é/x", "/MEMORIES/É", "/Ｍemories/é/x"):
        with pytest.raises(WorkspaceError, match="looks like /Memories/é"):
            await files.write(path, b"x")
    await files.write(f"/Memories/{unicodedata.normalize('NFD', 'é')}/x", b"x")
    assert list(tmp_path.iterdir()) == []


async def test_a_mount_hides_what_the_base_has_there_and_of_two_the_longer_counts(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "hidden.txt").touch()
    (tmp_path / "a" / "seen.txt").touch()
    files = files_of(Mounts(Folder(tmp_path), {"/a/b": InLog("b"), "/a/b/c": InLog("c")}))
    await files.write("/a/b/c/x.txt", b"x")

    assert [e.path for e in await files.entries("/a")] == ["/a/b", "/a/seen.txt"]
    assert [e.path for e in await files.entries("/a/b")] == ["/a/b/c"]
    assert (await files.look("/a/b/c/x.txt")).path == "/a/b/c/x.txt"
    with pytest.raises(WorkspaceError, match=r"^/a/b/hidden\.txt: there is no such file"):
        await files.read("/a/b/hidden.txt")


def test_mounts_that_can_not_work_are_refused_when_they_are_made(tmp_path: Path) -> None:
    for others in ({"/": InLog()}, {"/a": InLog(), "/A/": InLog("x")}, {"/a": "work"}):
        with pytest.raises(SetupError, match="Mounts"):
            Mounts(Folder(tmp_path), others)  # pyright: ignore[reportArgumentType]
