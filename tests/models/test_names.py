"""resolve_model: names, environment and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from upcall.errors import ModelRefused
from upcall.models import resolve_model

from .history import HELLO
from .server import plain, serving

VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_a_misspelt_provider_is_told_with_the_one_that_may_be_meant() -> None:
    with pytest.raises(ModelRefused, match=r"unknown provider 'opneai'; did you mean openai:gpt-6\?"):
        resolve_model("opneai:gpt-6")


@pytest.mark.parametrize(
    ("name", "variable"), [("openai:gpt-6", "OPENAI_API_KEY"), ("anthropic:c", "ANTHROPIC_API_KEY")]
)
async def test_a_missing_key_is_named_when_the_model_is_first_asked(name: str, variable: str):
    model = resolve_model(name)
    assert model.name == name
    with pytest.raises(ModelRefused, match=f"set {variable}"):
        await model.respond(HELLO, None)


@pytest.mark.parametrize(
    ("name", "prefix", "body"),
    [
        ("openai:gpt-6", "OPENAI", '{"choices":[{"message":{"content":"x"}}]}'),
        ("anthropic:c", "ANTHROPIC", '{"type":"message","content":[{"type":"text","text":"x"}]}'),
    ],
)
async def test_key_and_base_url_are_read_when_first_asked(
    name: str, prefix: str, body: str, monkeypatch: pytest.MonkeyPatch
):
    model = resolve_model(name)
    async with serving(plain(200, body)) as server:
        monkeypatch.setenv(f"{prefix}_BASE_URL", server.url)
        assert (await model.respond(HELLO, None)).text == "x"
        monkeypatch.setenv(f"{prefix}_API_KEY", "k1\n")
        again = resolve_model(name)
        await again.respond(HELLO, None)
        for opened in (model, again):
            await getattr(opened, "close")()  # noqa: B009 (a Model need not have it)
    keys = [a.headers.get("authorization") or a.headers.get("x-api-key") for a in server.asked]
    assert [key and key.removeprefix("Bearer ") for key in keys] == [None, "k1"]


@pytest.mark.parametrize("name", ["gpt-6", ":x", "openai:", ""])
def test_what_is_no_name_is_refused_with_the_form_of_one(name: str):
    with pytest.raises(ModelRefused, match="provider:model"):
        resolve_model(name)


@pytest.mark.parametrize(
    "source", ["script = Script(['from file'])", "script = ['from file']", "def script(r): return 'from file'"]
)
async def test_a_script_is_found_beside_the_agent_file(source: str, tmp_path: Path):
    (tmp_path / "plays.py").write_text(f"from upcall.models import Script\n{source}\n")
    model = resolve_model("script:plays.py", tmp_path)
    assert (await model.respond(HELLO, None)).text == "from file"


async def test_a_script_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "plays.py").write_text("script = ['here']\n")
    monkeypatch.chdir(tmp_path)
    assert (await resolve_model("script:plays.py").respond(HELLO, None)).text == "here"


@pytest.mark.parametrize(
    ("source", "problem"),
    [(None, "file not found"), ("1/0", "ZeroDivisionError"), ("x = 1", "no attribute `script`")],
)
async def test_a_script_file_that_can_not_be_used_says_why(source: str | None, problem: str, tmp_path: Path):
    if source is not None:
        (tmp_path / "plays.py").write_text(source)
    with pytest.raises(ModelRefused, match=problem):
        await resolve_model("script:plays.py", tmp_path).respond(HELLO, None)


async def test_a_missing_local_file_is_named(tmp_path: Path):
    with pytest.raises(ModelRefused, match="file not found"):
        await resolve_model("local:no.gguf", tmp_path).respond(HELLO, None)


@pytest.mark.slow
async def test_an_unknown_provider_is_refused():
    with pytest.raises(ModelRefused, match="nosuch"):
        await resolve_model("nosuch:model").respond(HELLO, None)
