"""The examples that do by hand what pieces of the kit do are short; that they run is tested with all examples."""

from __future__ import annotations

import pytest

from house.measure import ROOT


@pytest.mark.parametrize("name", ["log_calls", "augment_prompt", "rate_limit", "skills", "compact"])
def test_an_example_of_a_piece_has_fewer_than_thirty_lines(name: str) -> None:
    assert len((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 30
