"""Secrets reach no command, no log and no screen; one rule says which names are secret."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cli.asking import make_team
from cli.command import upcall
from upcall import Agent, Runtime, tool
from upcall.errors import StoreUnavailable
from upcall.kit import log_calls
from upcall.models import Script, call
from upcall.observe.redact import Redactor
from upcall.workspace import Folder, shell
from workspace.doubles import played

SECRET_NAMES = (
    *(
        "OPENAI_API_KEY",
        "KEY",
        "AWS_SECRET_ACCESS_KEY",
        "SSH_KEYS",
        "APIKEY",
        "apiKey",
        "MyAPIKey",
        "STRIPE_APIKEY",
    ),
    *(
        "GITHUB_TOKEN",
        "githubToken",
        "TOKEN",
        "TOKEN_GITHUB",
        "CLIENT_SECRET",
        "secretSauce",
        "SMTP_PASS",
        "DBPass",
    ),
    *(
        "PGPASSWORD",
        "MYPASSWD",
        "pgpassword",
        "DB_PASSWORD_FILE",
        "GPG_PASSPHRASE",
        "DB_PWD",
        "dbPwd",
        "GITHUB_PAT",
    ),
    *("HTTP_AUTH", "SSH_AUTH_SOCK", "authHeader", "SERVICE_CRED", "AWS_CREDENTIALS", "GCP_CREDENTIAL", "COOKIE"),
    *("SESSION_COOKIE", "SLACK_WEBHOOK_URL"),
)
PLAIN_NAMES = (
    *(
        "MYPATH",
        "PATTERN",
        "AUTHOR",
        "MONKEY",
        "KEYBOARD",
        "OLDPWD",
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "KeyError",
    ),
    *("COMPASS", "PASSENGER", "SECRETARY", "PATCH", "CREDITS", "COOKIES_JAR", "WEBHOOKS"),
)
URLS = {
    "postgresql://ada:hunter2@db.example/shop": "postgresql://db.example/shop",
    "http://ada:hunter2@proxy.example:3128": "http://proxy.example:3128",
    "redis://:hunter2@cache.example/0": "redis://cache.example/0",
    "postgres://ada:hunter2@x@db.example/shop": "postgres://db.example/shop",
    "postgres://ada:x#hunter2@db.example/shop": "postgres://db.example/shop",
    "postgres://ada:x/hunter2@db.example/shop": "postgres://db.example/shop",
    "postgresql://db.example/shop?user=ada&password=hunter2&sslmode=require":
        "postgresql://db.example/shop?user=ada&sslmode=require",
    "https://a:hunter2@one.example/x https://b:hunter2@two.example/y": "https://one.example/x https://two.example/y",
    "ssh://git@github.example/repo": "ssh://git@github.example/repo",
    "https://host.example:443/@scope/name": "https://host.example:443/@scope/name",
    "https://host.example/path?page=2&sort=name": "https://host.example/path?page=2&sort=name",
}  # fmt: skip


async def environment(folder: Path) -> dict[str, str]:
    """The variables that a command gets."""
    (out,) = await played(Folder(folder), shell(), call("shell", command="env"))
    return dict(line.split("=", 1) for line in out.text.splitlines() if "=" in line)


async def test_commands_get_no_variable_that_is_named_like_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SECRET_NAMES, *PLAIN_NAMES):
        monkeypatch.setenv(name, "hunter2")

    given = await environment(tmp_path)

    assert [name for name in SECRET_NAMES if name in given] == []
    assert [name for name in PLAIN_NAMES if given.get(name) != "hunter2"] == []
    assert given["PWD"] == str(tmp_path)


async def test_of_urls_with_passwords_commands_get_all_but_user_and_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, url in enumerate(URLS):
        monkeypatch.setenv(f"ADDRESS_{number}", url)

    given = await environment(tmp_path)

    assert [given[f"ADDRESS_{number}"] for number in range(len(URLS))] == list(URLS.values())


async def test_log_calls_hides_what_everything_else_hides(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "zq8-hunter2-ff")

    @tool
    def connect(url: str, options: dict[str, object]) -> str:
        """Connect to a database."""
        return f"connected to {url}, then ran curl -u ada:hunter2 and printed zq8-hunter2-ff"

    options = {"apiKey": "hunter2", "deep": [{"X-Auth-Token": ["hunter2"]}], "password": "hunter2", "host": "seen"}
    calls = [
        call("connect", url="postgresql://ada:hunter2@db.example/shop", options=options),
        call("connect", url="x", options={"argv": ["curl", "-u", "ada:hunter2"], "note": "one-of-mine"}),
        "it said Authorization: Bearer hunter2-hunter2-hunter2",
    ]
    agent = Agent(
        "a",
        model=Script(calls),
        tools=[connect],
        kit=[log_calls(), log_calls("own", redactor=Redactor(values=["one-of-mine"]))],
    )
    with caplog.at_level(logging.INFO):
        async with Runtime(agents=[agent]) as runtime:
            await (await runtime.start(agent)).prompt("go")

    lines = [record.getMessage() for record in caplog.records if record.name == "upcall.calls"]
    own = [record.getMessage() for record in caplog.records if record.name == "own"]
    assert "hunter2" not in "".join(lines)
    assert any("seen" in line for line in lines)
    assert any("connected to postgresql://ada:⟦hidden 7 #1⟧@db.example/shop" in line for line in lines)
    assert any("one-of-mine" in line for line in lines)
    assert "one-of-mine" not in "".join(own)


async def test_log_calls_shortens_a_large_value_and_shows_no_part_of_a_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    def keep(text: str, items: list[int]) -> str:
        """Keep a text."""
        return "kept"

    long = "x" * 180 + " password=hunter2 " + "word " * 200_000
    agent = Agent(
        "a",
        model=Script([call("keep", text=long, items=[1] * 200_000), "ok"]),
        tools=[keep],
        kit=[log_calls()],
    )
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        with caplog.at_level(logging.INFO, "upcall.calls"):
            await session.prompt("go")

    assert "hunter" not in caplog.text
    assert all(len(record.getMessage()) < 300 for record in caplog.records)


@pytest.mark.slow
def test_the_password_of_a_stores_url_is_in_nothing_that_a_command_prints(tmp_path: Path) -> None:
    make_team(tmp_path)
    store = "./some://ada:hunter2@db.example/log.db"
    (tmp_path / "some:" / "ada:hunter2@db.example").mkdir(parents=True)

    said = [
        upcall("run", "team:manager", "many", "--id", "s1", "--store", store, cwd=tmp_path),
        upcall("inbox", "--store", store, cwd=tmp_path),
        upcall("inbox", "--json", "--store", store, cwd=tmp_path),
        upcall("sessions", "--store", store, cwd=tmp_path),
        upcall("show", "s1", "--store", store, cwd=tmp_path),
        upcall("show", "nothing", "--store", store, cwd=tmp_path),
        upcall("resume", "s1", "--store", store, cwd=tmp_path),
        upcall("sessions", "--store", "other://ada:hunter2@db.example/gone/log.db", cwd=tmp_path),
        upcall("sessions", "--store", "postgresql://ada:hunter2@db.example/shop", cwd=tmp_path),
        upcall("sessions", cwd=tmp_path, UPCALL_STORE="other://ada:hunter2@db.example/gone/log.db"),
    ]

    assert "--store ./some://ada@db.example/log.db" in said[0].stderr
    assert "--store ./some://ada@db.example/log.db" in said[1].stdout
    for one in said:
        assert "hunter2" not in one.stdout + one.stderr, one.args


def test_an_error_of_a_store_names_it_without_its_password() -> None:
    error = StoreUnavailable("postgresql://ada:hunter2@db.example/shop", "no route to postgres://b:hunter2@h")

    assert str(error) == "postgresql://ada@db.example/shop: no route to postgres://b@h"
    assert "hunter2" not in error.where + error.problem
