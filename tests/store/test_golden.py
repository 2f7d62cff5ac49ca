"""Golden logs of each version: what an earlier version wrote always loads and folds to the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from store.factories import open_sqlite, put
from store.golden import make_v1
from upcall.contracts import Claim, Store
from upcall.core.log.load import load_state
from upcall.core.log.state import SessionState
from upcall.events import AnyEvent, SessionStarted, StepEnded, TurnEnded, decode, encode

FOLDER = Path(__file__).parent / "golden"
VERSIONS = ["v1", "v1.callbacks", "v1.teams", "v1.later", "v1.capture", "v1.queue"]
HOW = """\
A new event type needs a golden log: write `tests/store/golden/make_NAME.py` like `make_v1_later.py`, run it once,
and add NAME to `VERSIONS`. Never make an existing log again."""
STAMPS = ("session", "seq", "pos", "time")


def golden(version: str) -> list[AnyEvent]:
    """The events of a golden log, read as a store reads them."""
    events: list[AnyEvent] = []
    for line in (FOLDER / f"{version}.jsonl").read_bytes().splitlines():
        body: dict[str, Any] = msgspec.json.decode(line)
        stamps = [body.pop(name) for name in STAMPS]
        events.append(decode(msgspec.json.encode(body), *stamps))
    return events


def expected(version: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{version}.expected.json").read_text())


async def stored(store: Store, events: list[AnyEvent]) -> None:
    """The same events in a fresh store."""
    claims: dict[str, Claim] = {}
    for event in events:
        root = event.session.split("~")[0]
        fresh = event.replace(session="", seq=0, pos=0, time=0.0)
        await put(store, event.session, fresh, claim=claims.get(root))
        if root not in claims:
            claims[root] = await store.claim(root)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_log_folds_to_what_it_came_to_then(version: str) -> None:
    assert make_v1.summary(golden(version)) == expected(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_log_is_written_again_as_it_was(version: str) -> None:
    lines = (FOLDER / f"{version}.jsonl").read_bytes().splitlines()
    assert [json.loads(encode(e)) for e in golden(version)] == [json.loads(line) for line in lines]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_golden_log_loads_from_its_last_compaction_on(version: str, tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db") as store:
        await stored(store, golden(version))
        for session, come_to in expected(version).items():
            state = await load_state(store, session)
            assert state is not None
            loaded = make_v1.of_state(state)
            if state.header.kind == "side_turn":  # it begins with what its parent's log said then
                loaded["messages"] = loaded["messages"][-len(come_to["messages"]) :]
                asked = await load_state(store, state.header.parent, state.header.reads)
                assert asked is not None
                assert loaded.pop("context") == {**asked.context, **come_to.pop("context")}
            assert loaded == come_to


async def test_an_approval_that_an_adoption_reopened_is_open_in_its_golden_log(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db") as store:
        await stored(store, golden("v1.later"))
        held = await store.callbacks(root="golden")
    assert [(h.message, h.status) for h in held] == [
        ("Which colour has the car?", "answered"),
        ("Which colour has the door?", "declined"),
        ("May painter run paint?", "open"),
    ]


async def test_the_callbacks_of_a_golden_log_come_to_what_they_came_to_then(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "log.db") as store:
        await stored(store, golden("v1.callbacks"))
        held = await store.callbacks(root="golden")
    assert [(h.reworded or h.message, h.status, h.target, h.delivered) for h in held] == [
        ("Which colour?", "answered", "manager", True),
        ("Which size?", "answered", "manager", True),
        ("Whose is the car?", "answered", "user", True),
        ("May developer run deploy?", "answered", "user", True),
        ("Which shape?", "expired", "user", True),
        ("Whose is the car?", "withdrawn", "user", False),
    ]
    assert [(h.answer.by, h.answer.right) for h in held if h.answer is not None] == [
        ("manager", "agent"), ("manager", "hook"), ("ops", "asserted"), ("ops", "asserted"),
    ]  # fmt: skip


def test_every_event_type_is_in_a_golden_log() -> None:
    types = {e.type for version in VERSIONS for e in golden(version)}
    assert {kind.type for kind in get_args(AnyEvent)} - types == set(), HOW


def test_the_golden_logs_have_sessions_of_every_kind() -> None:
    kinds = {e.kind for version in VERSIONS for e in golden(version) if isinstance(e, SessionStarted)}
    assert kinds == {"agent", "side_turn", "coordinator"}


def test_the_steps_of_a_golden_team_are_those_it_had_then() -> None:
    state = SessionState("golden")
    came_to: list[list[str]] = []
    for event in (e for e in golden("v1.teams") if e.session == "golden"):
        state.apply(event)
        if isinstance(event, TurnEnded):
            came_to.append([name for kind, name in state.turn.steps if kind is StepEnded])
    assert came_to == [
        ["plan1.1", "plan1.2", "developer02", "developer01", "plan2.1", "writer02", "reviewer"],
        ["plan1.1", "developer03", "reviewer"],
    ]
    assert state.context["upcall.workers"] == {"developer": 3, "writer": 2}
