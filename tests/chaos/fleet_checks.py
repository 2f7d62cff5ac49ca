"""What the log and the effects outside it must agree on after workers were killed, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from upcall.events import (
    SETTLING,
    AnyEvent,
    CallbackAnswered,
    ModelStarted,
    Responded,
    SessionStarted,
    ToolEnded,
    ToolStarted,
    ToolTriedAgain,
    TurnEnded,
    TurnResumed,
    TurnStarted,
)

UNKNOWN = "interrupted, outcome unknown"
KINDS = ("lead", "member", "side_turn")


class Charge(NamedTuple):
    """An effect that happened: what for, and in which call."""

    key: str
    session: str
    call_id: str


class Outside:
    """The effects and model calls that processes noted outside the store."""

    def __init__(self, lines: Iterable[str]) -> None:
        words = [line.split() for line in lines]
        self.charges = [Charge(*line[1:]) for line in words if line[0] == "charged"]
        self.model_calls = Counter((line[1], line[2]) for line in words if line[0] == "model")


class Log:
    """Every event of a store."""

    def __init__(self, events: Sequence[AnyEvent]) -> None:
        self.events = events
        self.headers = {e.session: e for e in events if isinstance(e, SessionStarted)}
        self._prompts = {e.session: e.message.text for e in events if isinstance(e, TurnStarted)}

    def root(self, session: str) -> str:
        return self.headers[session].root or session

    def asked_in(self, session: str) -> tuple[str, str]:
        """Whom the model of a session speaks for, and what for: as the model calls are noted outside."""
        header = self.headers[session]
        if header.agent == "hand":
            return "member", self._prompts[session]
        return "side_turn" if header.parent else "lead", self.root(session)

    def check_order(self) -> None:
        """No event is missing or doubled: sequence numbers have no gap, positions rise."""
        numbers: dict[str, list[int]] = {}
        for event in self.events:
            numbers.setdefault(event.session, []).append(event.seq)
        assert all(found == [*range(1, len(found) + 1)] for found in numbers.values())
        assert [e.pos for e in self.events] == sorted({e.pos for e in self.events})

    def check_replies(self, wanted: Mapping[str, str]) -> None:
        """Each run's last response is this one."""
        last = {e.session: e.message.text for e in self.events if isinstance(e, Responded)}
        assert {run: last[run] for run in wanted} == wanted

    def check_nothing_is_done_twice(self) -> None:
        """Nothing that can happen once in its session is there twice, as it would be if two workers ran it."""
        seen = Counter(_happens_once(event) for event in self.events)
        del seen[()]
        assert [what for what, times in seen.items() if times > 1] == []

    def check_answers(self, said: Mapping[str, Sequence[str]]) -> None:
        """Every answer was sent by both processes; one of them was first, and the log says which one."""
        answered = {e.callback_id: e.by for e in self.events if isinstance(e, CallbackAnswered) and e.by in said}
        first = {
            name: {line.split()[0] for line in lines if line.endswith(" first")} for name, lines in said.items()
        }
        for name, lines in said.items():
            assert {line.split()[0] for line in lines} == set(answered)
            assert first[name] == {callback for callback, by in answered.items() if by == name}

    def check_charges(self, charges: Sequence[Charge], wanted: set[str]) -> Counter[str]:
        """Each call's effect happened exactly once, or the log says of this very call that nobody knows.

        Returns how many of the calls ended in which way.
        """
        times = Counter(charges)
        started = {(e.session, e.call_id) for e in self.events if isinstance(e, ToolStarted) and e.name == "charge"}
        assert {(one.session, one.call_id) for one in charges} <= started
        assert sorted(self._prompts[session] for session, _ in started) == sorted(wanted)
        outcomes = Counter[str]()
        for event in self.events:
            if not isinstance(event, ToolEnded) or (event.session, event.call_id) not in started:
                continue
            key = self._prompts[event.session]
            happened = times[Charge(key, event.session, event.call_id)]
            if event.how == "ran":
                assert (happened, event.result.text) == (1, f"charged {key}"), (key, happened, event)
            else:
                assert (event.how, event.result.text[: len(UNKNOWN)]) == ("interrupted", UNKNOWN), event
                assert happened <= 1, key
            outcomes[event.how if event.how == "ran" else f"unknown, happened {happened} times"] += 1
        assert outcomes.total() == len(wanted)
        return outcomes

    def interrupted(self) -> set[str]:
        """What the calls were for that the log says were interrupted."""
        return {
            self._prompts[e.session] for e in self.events if isinstance(e, ToolEnded) and e.how == "interrupted"
        }

    def check_model_calls(self, called: Counter[tuple[str, str]]) -> str:
        """Models are asked again only in run trees whose worker died or lost its store. Returns a table of them."""
        answered = Counter(self.asked_in(e.session) for e in self.events if isinstance(e, Responded))
        redone = called - answered
        assert not answered - called
        disturbed = {e.session for e in self.events if isinstance(e, TurnResumed) and e.died}
        disturbed |= {self.root(e.session) for e in self.events if isinstance(e, TurnEnded) and e.retry}
        assert {name.partition("-")[0] for _, name in redone} <= disturbed
        rows = [f"{'model calls of':<14} {'made':>6} {'logged':>6} {'redone':>6} {'most for one':>12}"]
        for kind in (*KINDS, "all"):
            made, logged, again = (_of(kind, count) for count in (called, answered, redone))
            most = max(again.values(), default=0)
            rows.append(f"{kind:<14} {made.total():>6} {logged.total():>6} {again.total():>6} {most:>12}")
        return "\n".join(rows)


def stuck(log: Log) -> set[str]:
    """The runs that were taken over, with nothing new in their log since."""
    found: set[str] = set()
    for event in log.events:
        if isinstance(event, TurnResumed) and event.died:
            found.add(event.session)
        elif not isinstance(event, (TurnResumed, ToolTriedAgain, ModelStarted)):
            found.discard(log.root(event.session))
    return found


def _of(kind: str, counts: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    return Counter({key: count for key, count in counts.items() if kind in (key[0], "all")})


def _happens_once(event: AnyEvent) -> tuple[object, ...]:
    """What may happen once in a session; () for events that may be repeated."""
    match event:
        case SessionStarted():
            return event.session, "started"
        case TurnStarted():
            return event.session, event.type, event.turn
        case Responded():
            return event.session, event.type, event.ordinal
        case ToolStarted() | ToolEnded():
            return event.session, event.type, event.call_id
        case TurnEnded() if not event.retry:
            return event.session, event.type, event.turn
        case _ if isinstance(event, SETTLING):
            return "settled", event.callback_id
        case _:
            return ()
