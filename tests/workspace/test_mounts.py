"""What a mount hides can't be reached by links of the workspace below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from upcall import WorkspaceError
from upcall.contracts import Files
from upcall.workspace import Folder, InLog, Mounts
from workspace.doubles import files_of

HIDDEN = "where another workspace is mounted; use a path below"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A folder with something below a mounted path, and links that lead there."""
    base = tmp_path / "base"
    (base / "memories" / "deep").mkdir(parents=True)
    (base / "memories" / "secret.txt").write_text("hidden")
    (base / "link").symlink_to("memories")
    (base / "absolute").symlink_to(base / "memories")
    (base / "file").symlink_to("memories/secret.txt")
    (base / "here").symlink_to(".")
    (base / "deeper").symlink_to("memories/deep")
    (base / "chain").symlink_to("link")
    return base


@pytest.fixture
def files(base: Path, tmp_path: Path) -> Files:
    (tmp_path / "notes").mkdir()
    return files_of(Mounts(Folder(base), {"/memories/": Folder(tmp_path / "notes")}))


WAYS = ("/link", "/absolute", "/here/memories", "/deeper/..//link", "/chain", "/here/here/link")


async def refused(files: Files, path: str) -> None:
    for use in (files.look(path), files.entries(path), files.read(path), files.write(path, b"broken")):
        with pytest.raises(WorkspaceError, match=HIDDEN):
            await use


@pytest.mark.parametrize("way", WAYS)
async def test_no_link_of_the_base_leads_below_a_mount(way: str, files: Files, base: Path) -> None:
    for path in (way, f"{way}/secret.txt", f"{way}/new.txt", f"{way}/deep/new.txt"):
        await refused(files, path)
    await refused(files, "/file")
    await refused(files, "/deeper")

    assert (base / "memories" / "secret.txt").read_text() == "hidden"
    assert sorted(one.name for one in (base / "memories").iterdir()) == ["deep", "secret.txt"]


async def test_links_of_a_mounted_workspace_do_not_lead_below_a_mount_inside_it(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    (outer / "link").symlink_to("inner")
    files = files_of(Mounts(InLog(), {"/a": Folder(outer), "/a/inner": InLog("other")}))

    with pytest.raises(WorkspaceError, match=HIDDEN) as caught:
        await files.write("/a/link/x", b"broken")
    assert caught.value.path == "/a/link/x"
    await files.write("/a/inner/x", b"fine")
    assert list((outer / "inner").iterdir()) == []


async def test_mounts_inside_mounts_hide_what_both_of_them_hide(base: Path) -> None:
    inside = Mounts(Folder(base), {"/memories": InLog("one")})
    files = files_of(Mounts(inside, {"/other": InLog("two")}))
    (base / "other").mkdir()
    (base / "to other").symlink_to("other")

    await refused(files, "/link/secret.txt")
    await refused(files, "/to other/x")


async def test_no_file_takes_the_place_of_a_folder_that_a_mount_lies_in(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a")
    files = files_of(Mounts(Folder(tmp_path), {"/a/b": InLog()}))

    with pytest.raises(WorkspaceError, match="is a folder, not a file"):
        await files.write("/link", b"broken")
    assert not (tmp_path / "a").exists()


async def test_links_that_lead_elsewhere_work_beside_a_mount(files: Files, base: Path) -> None:
    (base / "src").mkdir()
    (base / "code").symlink_to("src")

    await files.write("/code/x.py", b"1")
    await files.write("/memories/x", b"2")

    assert (base / "src" / "x.py").read_bytes() == b"1"
    assert [entry.path for entry in await files.entries("/memories")] == ["/memories/x"]
    assert [entry.kind for entry in await files.entries("/") if entry.path == "/memories"] == ["folder"]
