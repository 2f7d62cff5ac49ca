"""What tools are called on a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from upcall.errors import SetupError
from upcall.observe import Label, Labels


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("aws_list_resources", "List"),
        ("aws_describe_resource", "Describe"),
        ("aws_find_account", "Find Account"),
        ("create_task", "Task"),
        ("search_logs", "Search Logs"),
        ("read_file", "Read file"),
        ("readFile", "Read file"),
        ("HTTPGet2", "HTTP get 2"),
        ("send-mail", "Send mail"),
        ("läs_fil", "Läs fil"),
        ("__", "Tool"),
        ("", "Tool"),
    ],
)
def test_a_tool_has_the_documents_label_or_a_readable_form_of_its_name(name: str, label: str) -> None:
    assert Labels().of(name) == label


def test_a_tools_own_label_comes_after_the_mapping_and_before_its_name() -> None:
    labels = Labels().adding({"fetch": "Fetch a page"})

    assert labels.of("fetch", "Own") == "Fetch a page"
    assert labels.of("look", "Own") == "Own"
    assert Labels().of("fetch") == "Fetch"


@pytest.mark.parametrize(
    ("name", "args", "shown"),
    [
        ("create_task", {"task_description": "Build", "path": "x"}, "task_description"),
        ("read_file", {"limit": "3", "path": "x"}, "path"),
        ("other", {"colour": "red", "count": 3}, "colour"),
        ("other", {"colour": "red", "size": "big"}, ""),
        ("other", {"count": 3}, ""),
    ],
)
def test_the_argument_that_tells_most_is_shown(name: str, args: dict[str, Any], shown: str) -> None:
    assert Labels().shown_argument(name, args) == shown


@pytest.mark.parametrize(
    ("file", "body"),
    [
        ("labels.json", '{"fetch": "Get", "read_file": {"text": "Read", "shows": "limit"}}'),
        ("labels.toml", 'fetch = "Get"\n[read_file]\ntext = "Read"\nshows = "limit"\n'),
    ],
)
def test_users_add_labels_in_a_file(tmp_path: Path, file: str, body: str) -> None:
    (tmp_path / file).write_text(body)

    labels = Labels.read(tmp_path / file)

    assert (labels.of("fetch"), labels.of("read_file"), labels.of("create_task")) == ("Get", "Read", "Task")
    assert labels.shown_argument("read_file", {"limit": "3", "path": "x"}) == "limit"


@pytest.mark.parametrize(
    "body", ['{"fetch": 3}', '{"fetch": {"shows": "x"}}', '{"fetch": {"text": "x", "y": 1}}', "[]", "{"]
)
def test_a_mistake_in_a_file_of_labels_names_the_file(tmp_path: Path, body: str) -> None:
    (tmp_path / "labels.json").write_text(body)

    with pytest.raises(SetupError, match=r"labels\.json"):
        Labels.read(tmp_path / "labels.json")


def test_a_label_is_one_short_line() -> None:
    assert Labels({"x": Label("a\n\x1b[31mb" + "c" * 100)}).of("x") == "a b" + "c" * 56 + "…"
