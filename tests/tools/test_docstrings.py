"""What a docstring says about a tool and its parameters, in each of the usual styles."""

from __future__ import annotations

import inspect

import pytest

from upcall.core.schema import read_docstring
from upcall.tools import as_tool

OURS = """Copy a file.

    Fails if it exists.

    source: where it is,
        in the workspace
    target: where to put it
    """
GOOGLE = """Copy a file.

    Fails if it exists.

    Args:
        source (str): where it is,
            in the workspace
        target: where to put it

    Returns:
        target: nothing
    """
SPHINX = """Copy a file.

    Fails if it exists.

    :param source: where it is,
        in the workspace
    :param str target: where to put it
    :returns: nothing
    """
NUMPY = """Copy a file.

    Fails if it exists.

    Parameters
    ----------
    source : str
        where it is,
        in the workspace
    target
        where to put it

    Returns
    -------
    target
        nothing
    """


@pytest.mark.parametrize("doc", [OURS, GOOGLE, SPHINX, NUMPY], ids=["ours", "google", "sphinx", "numpy"])
def test_a_docstring_describes_the_tool_and_its_parameters(doc: str) -> None:
    description, about = read_docstring(inspect.cleandoc(doc), ["source", "target"])
    assert description == "Copy a file.\n\nFails if it exists."
    assert about == {"source": "where it is, in the workspace", "target": "where to put it"}


def test_lines_that_name_no_parameter_stay_in_the_description() -> None:
    text = "Copy.\n\nnote: it is slow\nArgs:"
    assert read_docstring(text, ["source"]) == (text, {})


def test_names_that_are_no_parameters_are_left_out() -> None:
    doc = "Copy.\n\nArgs:\n    old: gone\n        long ago\n    source: here"
    assert read_docstring(doc, ["source"]) == ("Copy.", {"source": "here"})


def test_a_tool_without_a_docstring_is_described_by_its_name() -> None:
    def copy_file(source: str) -> None:
        del source

    made = as_tool(copy_file)
    assert made.description == "copy file"
    assert made.schema["properties"]["source"] == {"type": "string"}
