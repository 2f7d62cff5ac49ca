"""What a Redactor hides, and what it leaves as it is."""

from __future__ import annotations

import html
import itertools
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace import untraced, within
from quick import slow_after
from upcall.callbacks import Approve
from upcall.errors import SetupError
from upcall.events import CallbackRaised, ContextSet, ToolEnded, ToolStarted
from upcall.messages import Result, ToolSpec
from upcall.observe.plain import plain
from upcall.observe.redact import Redactor

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\nq1Zz+/==\n-----END RSA PRIVATE KEY-----"
ENVIRON = {
    "SHOP_API_KEY": "zq8-11-ff-09-xy",
    "DB_PASSWORD": "changeme",
    "SHORT_TOKEN": "abc12",
    "DATABASE_URL": "postgres://app:pg-92-secret@db/shop",
    "TWO_WORDS_SECRET": "first 11 second 22",
    "HOME": "/home/ada",
}
SECRETS = {
    "sk-proj-abcDEF0123456789": "the key is {} today",
    "AKIAIOSFODNN7EXAMPLE": "aws {} here",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345": "push with {}.",
    "github_pat_0123456789abcdefghijABCDEFG": "({})",
    "xoxb-1234567890-abcdefghij": "slack {}",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv": "maps: {},",
    "sk_live_0123456789abcdefghij": "stripe {}",
    "glpat-0123456789abcdefghij": "lab {}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl": "jwt {} end",
    "abcdef0123456789abcdef": "Authorization: Bearer {}",
    "dXNlcjpwYXNzd29yZA==": "curl -H 'Authorization: Basic {}' https://shop.example",
    "0123-4567-89": 'curl -H "X-Api-Key: {}" https://shop.example',
    "sid=1; theme=dark": "Cookie: {}\nAccept: */*",
    "hunter2": '{{"user": "ada", "password": "{}"}}',
    "hun\\\\ter2": '{{"user": "ada", "password": "{}"}}',
    "hunter3": '{{"body": "{{\\"password\\": \\"{}\\"}}"}}',
    "hunter4": "export DB_PASSWORD={}; run",
    "hunter5": "user: ada\npassword: {}\nport: 5432",
    "hunter6": 'connect(password="{}", port=5432)',
    "hunter7": "postgres://app:{}@db.example:5432/shop",
    "hunter8": "https://shop.example/?user=ada&access_token={}&page=2",
    "hunter9": '{{"env": [{{"name": "API_KEY", "value": "{}"}}, {{"name": "MODE", "value": "fast"}}]}}',
    "hunter10": "env:\n  - name: DB_PASSWORD\n    value: {}\n  - name: MODE\n    value: faster",
    "hunter11": '{{"text": "{{\\"key\\":\\"AUTH_TOKEN\\",\\"value\\":\\"{}\\"}}"}}',
    "47114711": '{{"password":{}, "port": 5432}}',
    "LISTSECRET1": '{{"secret": [\n  "{}"\n], "list": ["a", 1]}}',
    "PIN4711": '{{"credentials":{{"pin":"{}"}},"user":"ada"}} and "more"',
    "PIN4712": "{{'credentials': {{'pin': '{}', 'on': True}}, 'user': 'ada'}}",
    "hunter12": '{{"text": "{{\\"auth_token\\":[\\"{}\\"],\\"a\\":\\"b\\"}}"}}',
    "hunter13": '{{"env":[{{"NAME":"DB_PASSWORD","VALUE":"{}"}}]}}',
    "hunter14": '{{"a": "{{\\"b\\": \\"{{\\\\\\"password\\\\\\": \\\\\\"{}\\\\\\"}}\\"}}"}}',
    "a(bcdefgh": "DB_PASSWORD={}",
    "p@$$w0rd!x": "DB_PASSWORD={} tail",
    "pa/ss0rd": "see https://user:{}@host/x, http://host:8080/a@b",
    "zq8-11-ff-09-xy": "it echoed {}!",
    "pg-92-secret": "the server said {} is wrong",
    "first 11 second 22": "a value of two words: {} ends",
    "hunter15": "run --password {} --user ada",
    "hunter16": "deploy --token={} prod",
    "hunter17": "deploy --api-key '{}' prod",
    "hunter 18": 'deploy --db-password="{}" prod',
    "hunter19": "java -DapiToken={} -jar shop.jar",
    "hunter20": "curl -u ada:{} https://shop.example",
    "hunter21": "curl -sS \\\n  -X POST \\\n  -u 'ada:{}' \\\n  https://shop.example",
    "hunter22": "curl --user ada:{} -o page https://shop.example",
    "hunter23": "/usr/bin/mysql -h db -p{} shop",
    "hunter24": "sshpass -p {} ssh -p 22 ada@host",
    "hunter25": "docker login -u ada -p {} registry.example && docker run -p 80:80 shop",
    "hunter26": '{{"headers": ["Authorization", "{}"]}}',
    "hunter27": '[["X-Api-Key", "{}"], ["Accept", "*/*"]]',
    "hunter28": '["deploy", "--token", "{}", "--verbose"]',
    "Bearer hunter29": '{{"text": "[\\"Authorization\\",\\"{}\\"]"}}',
    "YWRhOmh1bnRlcjMw": "it sent Basic {} to the server",
    "hunter31": "host=db user=ada password={} dbname=shop",
    "hunter32": "Server=db;User Id=sa;Password={};Encrypt=true",
    "0a1b2c3d4e5f0a1b2c3d": "git clone https://{}@git.example/shop.git",
    "hunter33": "redis-cli -h cache -a {} ping",
    "hunter34": 'it ran ["curl","-u","ada:{}"] twice',
    "hunter35": '{{"argv": ["/usr/bin/curl", "-m", 5, "-sSu", "ada:{}", "https://shop.example"]}}',
    "hunter 36": '{{"text": "[\\"sshpass\\", \\"-p\\", \\"{}\\", \\"ssh\\", \\"-p\\", \\"22\\"]"}}',
    "hunter37": "subprocess.run(['mysql', '-h', 'db', '-p{}', 'shop'])",
    "hunter38": '[\n  "curl",\n  "-H",\n  "Accept: \\"*/*\\"",\n  "--user",\n  "ada:{}",\n  "-v"\n]',
    "hunter39": '["curl", "--proxy-user=ada:{}", "https://shop.example"]',
    "hunter40": '{{"command": "curl", "args": ["-u", "ada:{}", "https://shop.example"]}}',
    "hunter41": '{{\n  "command": "/bin/curl",\n  "type": "stdio",\n  "args": [\n    "-u",\n    "ada:{}"\n  ]\n}}',
    "hunter42": '{{"text": "{{\\"command\\":\\"curl\\",\\"args\\":[\\"-u\\",\\"ada:{}\\"]}}"}}',
}


@pytest.fixture
def redactor() -> Redactor:
    return Redactor(environ=ENVIRON)


@pytest.mark.parametrize("secret", SECRETS, ids=lambda s: s[:12])
def test_a_secret_in_a_text_is_hidden_and_the_text_around_it_stays(redactor: Redactor, secret: str) -> None:
    text = SECRETS[secret].format(secret)

    shown, hidden = redactor.hide(text)

    assert shown == SECRETS[secret].format(f"⟦hidden {len(secret)} #1⟧")
    assert hidden == [secret]


def test_the_two_lines_around_a_private_key_stay_and_one_that_is_cut_off_is_hidden_too(redactor: Redactor) -> None:
    shown = redactor.text(f"here:\n{KEY}\nthat was it")
    cut = redactor.text(f"here:\n{KEY[:50]}")

    assert shown == (
        "here:\n-----BEGIN RSA PRIVATE KEY-----⟦hidden 28 #1⟧-----END RSA PRIVATE KEY-----\nthat was it"
    )
    assert cut == "here:\n-----BEGIN RSA PRIVATE KEY-----⟦hidden 19 #1⟧"


@pytest.mark.parametrize(
    "text",
    [
        "sorted(words, key=len)",
        'sorted(words, key="name")',
        "The token: it is what a reader pays with.",
        "Authentication keys are described in chapter 5.",
        "https://shop.example:8080/a/b?page=2&sort=name",
        "max_tokens=4096 and 12:30:05",
        "password must have eight characters",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "export API_KEY=$(cat key) && echo $API_KEY",
        "the postgres database, changeme later",
        '{"name": "colour", "value": "red and green"}, and its name = value',
        "give it --password to be safe, or --token-file /run/token, or --ask-pass now",
        "deploy --token $TOKEN --password=${PASSWORD} --secret <secret> --api-key @key.txt",
        "docker run -u 1000:1000 -p 8080:80 shop; ssh -p 2222 ada@host; mkdir -p a/b",
        "mysql -u root -p shop",
        "curl -u ada https://shop.example",
        '{"allow_headers": ["Authorization", "Content-Type", "X-Requested-With"]}',
        "Basic information about authentication",
        "git clone https://some-organisation@git.example/shop.git",
        "connect(user, password=password, port=5432)",
        "def connect(password=None):",
    ],
)
def test_ordinary_text_stays_as_it_is(redactor: Redactor, text: str) -> None:
    assert redactor.hide(text) == (text, [])


def test_a_value_of_letters_alone_is_hidden_only_as_a_whole_value_or_as_the_password_of_a_url(
    redactor: Redactor,
) -> None:
    assert redactor.show(["changeme", "please changeme", "pg://u:changeme@db"]) == [
        "⟦hidden 8 #1⟧",
        "please changeme",
        "pg://u:⟦hidden 8 #2⟧@db",
    ]


def test_fields_with_the_name_of_a_secret_are_hidden_with_all_that_they_hold(redactor: Redactor) -> None:
    value = {
        "user": "ada",
        "password": "pa",
        "pin_token": 1234,
        "credentials": {"id": "i-1", "flags": [True, None, ""]},
        "env": [{"name": "API_KEY", "value": "v"}, {"name": "HOME", "value": "/home"}],
        "max_tokens": 100,
    }

    shown, hidden = redactor.hide(value)

    assert shown == {
        "user": "ada",
        "password": "⟦hidden 2 #1⟧",
        "pin_token": "⟦hidden 4 #2⟧",
        "credentials": {"id": "⟦hidden 3 #3⟧", "flags": [True, None, ""]},
        "env": [{"name": "API_KEY", "value": "⟦hidden 1 #4⟧"}, {"name": "HOME", "value": "/home"}],
        "max_tokens": 100,
    }
    assert hidden == ["pa", "1234", "i-1", "v"]
    assert redactor.restore(shown, value) == value


def test_the_fields_of_an_event_are_shown_and_the_json_in_them_is_redacted(redactor: Redactor) -> None:
    started = ToolStarted("r1c0", "login", {"password": "hunter2", "user": "ada"})
    ended = ToolEnded("r1c0", Result("r1c0", "token=abc\nAPI_TOKEN=abcdef", json={"auth": "x"}))

    assert redactor.show(started)["args"] == {"password": "⟦hidden 7 #1⟧", "user": "ada"}
    assert redactor.show(ended)["result"]["text"] == "token=abc\nAPI_TOKEN=⟦hidden 6 #1⟧"
    assert redactor.show(ended)["result"]["json"] == {"auth": "⟦hidden 1 #2⟧"}
    assert redactor.show(ContextSet("todos", ["buy milk"])) == {
        "type": "context_set", "key": "todos", "value": ["buy milk"]
    }  # fmt: skip
    assert redactor.show(ContextSet("api_token", "t1"))["value"] == "⟦hidden 2 #1⟧"


def test_the_names_of_properties_in_a_schema_are_not_names_of_secrets_but_its_defaults_are_hidden(
    redactor: Redactor,
) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"key": {"type": "string", "default": "k-1"}, "page": {"type": "integer", "default": 1}},
    }
    raised = CallbackRaised("c1", "r1c0", "desk", "log in?", "query", "callback_to_caller", {}, "d", schema=schema)

    for shown in (redactor.show(raised)["schema"], redactor.show(ToolSpec("login", "", schema))["schema"]):
        assert shown["properties"]["key"] == {"type": "string", "default": "⟦hidden 3 #1⟧"}
        assert shown["properties"]["page"] == {"type": "integer", "default": 1}


def test_edited_arguments_get_the_real_value_back_where_a_mask_is_left(redactor: Redactor) -> None:
    original = {"password": "hunter2", "count": 3, "note": "use sk-proj-abcDEF0123456789 twice"}
    shown, _ = redactor.hide(original)
    edited = {**shown, "count": 4, "note": shown["note"].replace("twice", "once")}

    assert redactor.restore(edited, original) == {
        "password": "hunter2",
        "count": 4,
        "note": "use sk-proj-abcDEF0123456789 once",
    }


WRITERS: dict[str, Callable[[Any], str]] = {
    "json": json.dumps,
    "json with all letters": lambda value: json.dumps(value, ensure_ascii=False),
    "capitals": lambda value: json.dumps(value).replace("\\u00f6", "\\u00F6"),
    "json in json": lambda value: json.dumps(json.dumps(value)),
    "json in json with all letters": lambda value: json.dumps(
        json.dumps(value, ensure_ascii=False), ensure_ascii=False
    ),
    "python": repr,
    "url": lambda value: quote(value["note"], safe=" "),
    "url with small letters": lambda value: re.sub("%..", lambda one: one[0].lower(), quote(value["note"], " ")),
    "html": lambda value: html.escape(value["note"]),
    "html without quotes": lambda value: html.escape(value["note"], quote=False),
    "json of php": lambda value: json.dumps(value).replace("/", "\\/"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("where", ["environ", "values"])
def test_a_known_value_is_hidden_in_every_form_in_which_a_program_writes_it(
    write: Callable[[Any], str], where: str
) -> None:
    value = 'pa"ss/\\<wörd-12'
    redactor = Redactor(environ={"DB_PASSWORD": value}) if where == "environ" else Redactor(values=[value])

    shown = redactor.text(write({"note": f"x {value} y"}))

    assert "ss" not in shown
    assert "rd-12" not in shown
    assert " y" in shown


def test_headers_and_pairs_are_hidden_in_any_case(redactor: Redactor) -> None:
    headers = {"Authorization": "Basic dXNl", "proxy-authorization": "x", "Cookie": "a=1", "Set-Cookie": "b=2"}
    pairs = [{"Name": "DB_PASSWORD", "Value": "v1"}, {"NAME": "ApiToken", "VALUE": "v2"}]

    shown, hidden = redactor.hide({"headers": {**headers, "Accept": "*/*"}, "env": pairs})

    assert hidden == [*headers.values(), "v1", "v2"]
    assert shown["headers"]["Accept"] == "*/*"


LISTS: list[tuple[list[Any], list[str]]] = [
    (["Authorization", "Bearer x"], ["Bearer x"]),
    ([["X-Api-Key", "k"], ["Accept", "*/*"]], ["k"]),
    ([("DB_PASSWORD", "p"), ("HOME", "/home")], ["p"]),
    ([["token", "47"], ["port", 5432]], ["47"]),
    (["Accept", "*/*", "Cookie", "id=1", "Host", "shop.example"], ["id=1"]),
    (["deploy", "--password", "p", "--user", "ada"], ["p"]),
    (["deploy", "--token=t1", "-v"], ["t1"]),
    (["/usr/bin/curl", "-u", "ada:p", "https://shop.example"], ["p"]),
    (["curl", "-s", "--user", "ada:p2"], ["p2"]),
    (["curl", "--user=ada:p3"], ["p3"]),
    (["curl", "-sSu", "ada:p4", "-U", "bob:p5"], ["p4", "p5"]),
    (["mysql", "-pp6", "shop"], ["p6"]),
    (["sshpass", "-p", "p", "ssh", "-p", "2222", "host"], ["p"]),
]


@pytest.mark.parametrize(("items", "secrets"), LISTS, ids=lambda one: str(one)[:30])
def test_in_a_list_what_follows_a_header_or_an_option_is_hidden(
    redactor: Redactor, items: list[Any], secrets: list[str]
) -> None:
    shown, hidden = redactor.hide({"items": items})

    assert hidden == secrets
    assert redactor.restore(shown, {"items": items})["items"] == json.loads(json.dumps(items))
    assert redactor.hide(json.dumps(items))[1] == secrets
    if isinstance(items[0], str):
        assert redactor.hide(json.dumps(items, indent=2))[1] == secrets
        assert redactor.hide(json.dumps({"items": json.dumps(items)}))[1] == secrets


@pytest.mark.parametrize(
    ("fields", "secrets"),
    [
        ({"command": "curl", "args": ["-u", "ada:p1", "https://shop.example"]}, ["p1"]),
        ({"args": ["-sSu", "ada:p2"], "command": "/usr/bin/curl"}, ["p2"]),
        ({"Program": "mysql", "argv": ["-pp3"]}, ["p3"]),
        ({"cmd": "docker login", "arguments": ("-u", "ada", "-p", "p4")}, ["p4"]),
        ({"command": "curl", "args": "-u ada:p5 https://shop.example"}, ["p5"]),
        ({"command": "env", "args": ["curl", "-u", "ada:p6"]}, ["p6"]),
        ({"command": "curl", "args": ["-u", "ada"]}, []),
        ({"command": "curl", "args": "-v"}, []),
        ({"command": "docker run", "args": ["-u", "1000:1000"]}, []),
        ({"command": "   ", "args": ["-u", "a:b"]}, []),
        ({"about": "curl", "args": ["-u", "a:b"]}, []),
        ({"command": "curl", "args": None}, []),
    ],
    ids=str,
)
def test_the_arguments_of_a_command_may_stand_beside_its_program(
    redactor: Redactor, fields: dict[str, Any], secrets: list[str]
) -> None:
    shown, hidden = redactor.hide({"call": fields})

    assert hidden == secrets
    assert redactor.restore(shown, {"call": fields}) == json.loads(json.dumps({"call": fields}))


@pytest.mark.parametrize(
    "items",
    [
        ["Authorization", "Content-Type", "Cookie", "Set-Cookie", "Accept"],
        ["mkdir", "-p", "a/b"],
        ["docker", "run", "-u", "1000:1000", "-p", "80:80"],
        ["mysql", "-p", "shop"],
        ["curl", "-u", "ada", "-o", "a:b"],
        ["curl", "-v"],
        ["password", "username"],
        ["deploy", "--password", "--verbose"],
        [["name", "port"], ["shop", "5432"]],
        [[], ["token"], ["token", "a", "b"]],
    ],
    ids=str,
)
def test_an_ordinary_list_stays_as_it_is(redactor: Redactor, items: list[Any]) -> None:
    assert redactor.hide(items) == (items, [])
    if isinstance(items[0], str):
        assert redactor.hide(json.dumps(items)) == (json.dumps(items), [])


def test_a_users_own_names_are_hidden_in_json_that_is_a_text() -> None:
    redactor = Redactor(names=["customer ref"])

    assert redactor.text('{"customerRef": "c-1", "customer_ref": [2], "customer": "c"}') == (
        '{"customerRef": "⟦hidden 3 #1⟧", "customer_ref": [⟦hidden 1 #2⟧], "customer": "c"}'
    )


@pytest.mark.slow
def test_a_field_of_any_length_needs_little_memory_in_a_stream(redactor: Redactor) -> None:
    stream = redactor.stream()
    body = '"a]\\\\", 47, {"b": "\\"]"}, ' * 10_000
    text = f'{{"credentials": [{body}0], "user": "ada"}} end'

    shown = "".join(stream.feed(text[at : at + 997]) for at in range(0, len(text), 997)) + stream.close()

    assert shown == f'{{"credentials": ⟦hidden {len(body) + 3} #1⟧, "user": "ada"}} end'


@pytest.mark.parametrize("unknown", ["⟦hidden 7 #2⟧", "⟦hidden 8 #1⟧", "⟦hidden 7 #0⟧"])
def test_a_mask_that_was_not_shown_is_an_error(redactor: Redactor, unknown: str) -> None:
    with pytest.raises(ValueError, match="is not a placeholder of a value that was hidden here"):
        redactor.restore({"password": unknown}, {"password": "hunter2"})


def test_a_text_that_looks_like_a_mask_is_hidden_and_comes_back(redactor: Redactor) -> None:
    value = {"a": "⟦hidden 7 #1⟧ and ⟦hidden ⟦hidden 4 #1⟧", "password": "hunter2"}

    shown, _ = redactor.hide(value)

    assert shown["a"] == "⟦hidden 13 #1⟧ and ⟦hidden ⟦hidden 13 #2⟧"
    assert redactor.restore(shown, value) == value


SPLITS = {
    "a space without width": "\u200b",
    "a joiner": "\u200d",
    "a selector": "\ufe0f",
    "a colour": "\x1b[01;31m\x1b[K",
    "a title": "\x1b]0;my title\x07",
    "a null": "\x00",
    "a return": "\r",
    "tags": "\U000e0041\U000e0042",
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("secret", slow_after(6, [*SECRETS]), ids=lambda s: s[:12])
def test_a_secret_that_is_split_by_what_a_screen_does_not_draw_is_hidden_whole(
    redactor: Redactor, secret: str, split: str
) -> None:
    written = split.join((secret[:3], secret[3:6], secret[6:]))
    text = SECRETS[secret].format(written)

    whole = plain(redactor.text(text))
    stream = redactor.stream()
    pieces = "".join([*map(stream.feed, text), stream.close()])

    assert whole == SECRETS[secret].format(f"⟦hidden {len(written)} #1⟧")
    assert plain(pieces) == whole
    assert plain(redactor.show([text])[0]) == whole


def test_a_known_value_of_letters_alone_is_hidden_although_a_colour_splits_it(redactor: Redactor) -> None:
    assert redactor.text("change\x1b[0mme") == "⟦hidden 12 #1⟧"


PIECES = st.one_of(
    st.sampled_from(sorted(SPLITS.values())),
    st.sampled_from(
        ["\x1b", "\x1b[", "\x1b]", "\x9b3", "1;31m", "\x07", *(s[:4] for s in SECRETS), *(s[4:] for s in SECRETS)]
    ),
    st.sampled_from([template.format(secret) for secret, template in SECRETS.items()]),
    st.sampled_from([KEY, KEY[:60], "-----BEGIN PRIVATE KEY-----", "-----END", "⟦hidden 3 #1⟧", "⟦", "⟧"]),
    st.sampled_from(
        [
            *SECRETS,
            "Authorization: ",
            '"Authorization", ',
            "curl ",
            " -u ada:",
            '"curl", ',
            '["curl",',
            '"command": "curl", "args": [',
            '"args": [\n',
            '"-u", "ada:',
            '"-u",\n  ',
            ",",
            " --token ",
            " --token=",
            "sshpass -p ",
            "Basic ",
            " password=",
            "\\\n",
            '"token": ["',
            '"pin_token": {',
            "]",
            "}",
            "47",
            "bearer ",
            'password = "',
            "password: ",
            "\\",
            '"',
            "'",
            "\r\n",
            "\n",
        ]
    ),
    st.text(max_size=12),
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)
NAMES = st.one_of(st.sampled_from(["password", "key", "name", "value", "user", *SECRETS]), st.text(max_size=8))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), TEXTS)
VALUES = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4))
)


@given(VALUES)
def test_what_was_hidden_comes_back_unchanged(value: Any) -> None:
    redactor = Redactor(environ=ENVIRON, names=["user"], values=["-22-"])

    shown, hidden = redactor.hide(value)

    assert redactor.restore(shown, value) == value
    if not hidden:
        assert shown == value


@given(TEXTS, TEXTS, st.sampled_from(sorted(SECRETS)))
def test_a_known_value_is_never_shown_whatever_is_around_it(before: str, after: str, secret: str) -> None:
    redactor = Redactor(environ=ENVIRON, values=[*SECRETS])

    assert secret not in redactor.text(before + secret + after)


@given(TEXTS, st.lists(st.integers(0, 400), max_size=12))
def test_a_secret_that_is_split_between_pieces_of_a_stream_is_hidden_as_in_the_whole_text(
    text: str, cuts: list[int]
) -> None:
    redactor = Redactor(environ=ENVIRON)
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    stream = redactor.stream()

    shown = "".join([*map(stream.feed, pieces), stream.close()])

    assert shown == redactor.text(text)


@given(TEXTS)
def test_a_stream_of_single_characters_shows_the_same_as_the_whole_text(text: str) -> None:
    redactor = Redactor(environ=ENVIRON, patterns=[r"\bcase \d+"])
    stream = redactor.stream()

    assert "".join([*map(stream.feed, text), stream.close()]) == redactor.text(text)


@given(TEXTS, TEXTS, st.sampled_from(sorted(SECRETS)), st.integers(0, 200))
def test_the_beginning_of_a_text_never_ends_inside_a_secret(
    before: str, after: str, secret: str, most: int
) -> None:
    redactor = Redactor(environ=ENVIRON, values=[*SECRETS])
    text = before + secret + after

    start = redactor.beginning(text, most)

    assert text.startswith(start)
    assert len(start) <= most
    assert not len(before) < len(start) < len(before) + len(secret)
    assert len(start) == most or len(start) == len(text) or redactor.spans(text[: most + 4096])


def test_the_beginning_of_a_url_does_not_end_between_its_password_and_what_marks_it() -> None:
    redactor, text = Redactor(), "see https://ada:hunter2@shop.example"

    starts = {redactor.text(redactor.beginning(text, most)) for most in range(len(text))}

    assert not [start for start in starts if "hun" in start]
    assert "see https://ada:" in starts


def test_a_stream_shows_each_word_once_it_is_complete(redactor: Redactor) -> None:
    stream = redactor.stream()

    pieces = ("Hello ", "wor", "ld, the", " key sk-proj-abcDEF01", "23456789", " ok ")
    shown = [stream.feed(piece) for piece in pieces]

    assert shown == ["Hello ", "", "world, ", "the key ", "", "⟦hidden 24 #1⟧ ok "]
    assert stream.close() == ""


@pytest.mark.slow
def test_secrets_and_words_of_any_length_need_little_memory_in_a_stream(redactor: Redactor) -> None:
    stream = redactor.stream()
    shown = (
        stream.feed("data:") + "".join(stream.feed("abcdefgh" * 100) for _ in range(1000)) + stream.feed(" end ")
    )
    assert shown == "data:" + "abcdefgh" * 100_000 + " end "

    body = "".join(["-----BEGIN PRIVATE KEY-----", *["MIIE0123\n" * 100] * 1000])
    shown = "".join(stream.feed(body[at : at + 1000]) for at in range(0, len(body), 1000))
    shown += stream.feed("--") + stream.feed("---END PRIVATE KEY----- after") + stream.close()
    assert shown == "-----BEGIN PRIVATE KEY-----⟦hidden 900000 #1⟧-----END PRIVATE KEY----- after"


HOSTILE = {
    "tokens": "eyJ-",
    "keys": "sk-",
    "begin": "-----BEGIN PRIVATE KEY-----",
    "urls": "a://b:",
    "names": "password=",
    "quotes": 'password="',
    "escapes": 'token="' + "\\\\" * 200,
    "colons": "api_key: ",
    "headers": "x-key-",
    "words": "Authorization: bearer ",
    "lines": "\n  token : abcdef;",
    "masks": "⟦hidden 1 #",
    "one": "A",
    "parameters": "?token=a&",
    "passwords": "a://b:c/",
    "fields": '"token":[',
    "objects": '"token":{"a":',
    "backslashes": '"token":"' + "\\" * 300,
    "assigned": "A_TOKEN=;;;",
    "invisible": "p\u200bassword=",
    "colours": "\x1b[0mtoken: abcdefgh ",
    "titles": "\x1b]0;token=",
    "options": " --token --token=",
    "dashes": "-",
    "commands": "curl -u ",
    "flags": " -u a",
    "logins": "curl -u a:b ",
    "listed": '"Authorization", ',
    "lists": '"--token", "',
    "programs": '"curl","-u",',
    "arguments": '"curl",' + '"-u","a:b",' * 300,
    "paths": '"/a/b/c/curl"' + "/" * 300,
    "open items": '"curl", "-u',
    "beside": '"curl","args":["-u',
    "never beside": '"curl",' + "a" * 300,
    "basic": "basic YWRhOmg",
    "users": "token://a1-",
    "databases": "; password=a,",
    "telling lines": "key\n",
    "short lines": "a\n=",
    "letters that grow": "\u0130key=",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_of_anything_takes_linear_time(redactor: Redactor, text: str) -> None:
    small = _seconds(redactor, text * (125_000 // len(text)))
    large = _seconds(redactor, text * (1_000_000 // len(text)))

    assert large < max(24 * small, 0.5)  # eight times the text; a quadratic pattern would take 64 times as long


@pytest.mark.slow
def test_ten_megabytes_of_one_text_take_seconds(redactor: Redactor) -> None:
    with within(10):
        redactor.text("The password of the shop is not here. " * 270_000)


def _seconds(redactor: Redactor, text: str) -> float:
    with untraced():
        began = time.process_time()
        redactor.text(text)
        return time.process_time() - began


def test_values_that_are_nested_too_deeply_are_hidden_whole(redactor: Redactor) -> None:
    deep: Any = "leaf"
    for _ in range(150):
        deep = {"a": [deep]}

    shown, hidden = redactor.hide(deep)

    assert len(hidden) == 1
    assert redactor.restore(shown, deep) == deep


def test_users_add_names_patterns_and_values(tmp_path: Path) -> None:
    file = tmp_path / "hide.toml"
    file.write_text("names = ['customer ref']\npatterns = ['CASE-\\d{6}']\nvalues = ['Project Falcon']\n")
    value = {"customer_ref": "c-1", "text": "CASE-123456 is Project Falcon's, not CASE-12"}

    shown = Redactor.read(file).show(value)
    added = (
        Redactor().adding(names=["customerRef"], patterns=[r"CASE-\d{6}"], values=["Project Falcon"]).show(value)
    )

    assert shown == added == {
        "customer_ref": "⟦hidden 3 #1⟧",
        "text": "⟦hidden 11 #2⟧ is ⟦hidden 14 #3⟧'s, not CASE-12",
    }  # fmt: skip


@pytest.mark.slow
def test_a_text_in_which_a_users_pattern_takes_too_long_is_hidden_whole() -> None:
    redactor = Redactor(patterns=[r"(a|aa)+$"])
    text = "a" * 60 + "b"

    assert redactor.text(text) == f"⟦hidden {len(text)} #1⟧"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("names = 'x'", "'names': the file may contain only lists of strings"),
        ("colours = ['x']", "'colours': the file may contain only lists of strings"),
        ("patterns = ['(']", "a \\( is not closed"),
        ("values = ['abc']", "at least 4 characters"),
        ("names = [", "can't be read"),
    ],
)
def test_a_mistake_in_a_file_of_what_to_hide_names_the_file(tmp_path: Path, body: str, problem: str) -> None:
    file = tmp_path / "hide.toml"
    file.write_text(body)

    with pytest.raises(SetupError, match=f"(?s)hide.toml.*{problem}"):
        Redactor.read(file)


def test_values_of_other_classes_are_shown_as_json_has_them(redactor: Redactor) -> None:
    assert redactor.show({"answer": Approve(args={"password": "hunter2"})})["answer"]["args"] == {
        "password": "⟦hidden 7 #1⟧"
    }
