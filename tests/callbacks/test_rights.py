"""Who is asked: by the route of the moment it was raised, and by the rights of the moment it is asked."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callbacks.doubles import Desk, answers, asker, delegates, passes, results
from upcall import Agent, Callback, Context, Hooks, Request, Runtime, SessionAccess, tool
from upcall.callbacks import KINDS, Hints
from upcall.core.routing.policy import Policy
from upcall.core.routing.route import Ancestor, Route, RouteQuery, route
from upcall.events import CallbackAsked
from upcall.models import Script, call

# --- the callback's own hints -------------------------------------------------------------


@pytest.mark.parametrize("hint", [{"resolvable_by": ["manager"]}, {"passthrough_agents": ["lead"]}])
async def test_an_agent_that_only_the_hints_leave_a_hop_for_is_really_asked(hint: dict[str, Any]) -> None:
    developer = asker(intent="blocker", policy={"max_bubble_hops": 1}, use_host=False, **hint)
    manager = delegates("manager", delegates("lead", developer, answers("lead's")), answers("manager's"))

    async with Runtime(agents=[manager]) as runtime:
        reply = await (await runtime.start("manager")).prompt("go")

    assert "manager's" in reply.text
    assert [(s.agent, s.step) for s in reply.callbacks[0].path] == [("lead", "skipped"), ("manager", "asked")]


async def test_another_process_checks_with_the_hints_that_were_given_when_it_was_raised(place: Desk) -> None:
    developer = asker(policy={"max_bubble_hops": 1}, use_host=False, resolvable_by=["manager"])
    asked = asyncio.Event()
    manager = delegates("manager", delegates("lead", developer), thinking(asked))
    await interrupted(place, manager, asked)

    reply = await place.resume(delegates("manager", delegates("lead", developer), answers("green")))

    assert (reply.status, "green" in reply.text) == ("done", True)


# --- rights that changed ------------------------------------------------------------------


async def test_who_may_no_longer_be_asked_is_skipped_and_the_log_never_says_it_was_asked(place: Desk) -> None:
    asked = asyncio.Event()
    await interrupted(place, delegates("manager", delegates("lead", asker(), thinking(asked))), asked)
    through = {"passthrough_child_callbacks": True}
    later = delegates("manager", delegates("lead", asker(), passes()), answers("blue"), callback_policy=through)

    reply = await place.resume(later)

    log = await place.log(later, None)
    assert [e.target for e in log if isinstance(e, CallbackAsked)] == ["lead", "user"]
    path = reply.callbacks[0].path
    assert [(s.agent, s.step) for s in path] == [
        ("lead", "asked"), ("lead", "passed"), ("manager", "skipped"), ("user", "asked"),
    ]  # fmt: skip
    assert "may not be asked now" in path[2].reason


async def test_a_fallback_agent_that_is_gone_is_skipped_and_the_log_never_says_it_was_asked(place: Desk) -> None:
    asked = asyncio.Event()
    developer = asker(policy={"fallback_target": "expert"})
    expert = Agent("expert", model=Script(["nothing"]))
    await interrupted(place, delegates("manager", developer, thinking(asked)), asked, expert)

    await place.resume(later := delegates("manager", developer, passes()))

    log = await place.log(later, None)
    assert [e.target for e in log if isinstance(e, CallbackAsked)] == ["manager"]


def thinking(begun: asyncio.Event) -> Any:
    """A model that thinks without end, once it has been asked."""

    async def think(_: Request) -> Any:
        begun.set()
        await asyncio.Event().wait()

    return think


async def interrupted(place: Desk, agent: Agent, asked: asyncio.Event, *others: Agent) -> None:
    """Run until somebody is asked, and close the runtime then."""
    async with place.runtime(agent, *others) as runtime:
        turn = asyncio.ensure_future((await runtime.start(agent, "s")).prompt("go"))
        await asked.wait()
        await runtime.close()
        await asyncio.wait([turn])
        turn.exception()


# --- every chain --------------------------------------------------------------------------

ABOVE = ("lead", "manager", "controller", "director")
NAMES = (*ABOVE, "expert", "developer")
HOPS = st.sampled_from([None, 0, 1, 1, 1, 2, 3])
SOME = st.lists(st.sampled_from((*ABOVE[:2], *NAMES)), min_size=1, max_size=2, unique=True)
MOSTLY = st.sampled_from([True, True, True, False])  # where most rights are missing, nobody is asked
SELDOM = st.sampled_from([False, False, False, True])
ONE_OF_THE_KINDS = st.sampled_from(["callback_to_caller"] * 3 + [*KINDS])


class Chain(NamedTuple):
    """Agents from the asker's caller to the root: what each sidecar says, and who answers by a hook."""

    asker: dict[str, Any]
    above: list[dict[str, Any]]
    hooked: list[bool]


def sidecars(hops: bool = True) -> st.SearchStrategy[dict[str, Any]]:
    under = st.fixed_dictionaries(
        {"passthrough_child_callbacks": SELDOM, "max_bubble_hops": HOPS if hops else st.none()},
        optional={"fallback_target": st.sampled_from(["user", "fail", *NAMES])},
    )
    return st.fixed_dictionaries(
        {"can_query_caller": MOSTLY, "can_use_host_interaction": MOSTLY, "callback_policy": under}
    )


CHAINS = st.sampled_from([1, 2, 2, 3, 4]).flatmap(
    lambda depth: st.builds(
        Chain,
        sidecars(),
        st.lists(sidecars(), min_size=depth, max_size=depth),
        st.lists(st.booleans(), min_size=depth, max_size=depth),
    )
)
EACH_HINT = {
    "max_bubble_hops": HOPS,
    "fallback_target": st.sampled_from(["user", "fail", *NAMES]),
    "passthrough_agents": SOME,
    "resolvable_by": SOME,
    "passthrough_child_callbacks": SELDOM,
}
ONE_HINT = st.sampled_from([*EACH_HINT]).flatmap(lambda name: st.fixed_dictionaries({name: EACH_HINT[name]}))
HINTS = ONE_HINT | st.fixed_dictionaries({}, optional=EACH_HINT)


class Witness:
    """Who really was asked, by model or by hook; `stop_at_first` makes the first one think without end."""

    def __init__(self, stop_at_first: bool = False) -> None:
        self.saw: list[str] = []
        self.asked = asyncio.Event()
        self._stop = stop_at_first

    async def _sees(self, name: str) -> None:
        self.saw.append(name)
        self.asked.set()
        if self._stop:
            await asyncio.Event().wait()

    def agents(self, chain: Chain, kind: str, intent: str, hints: dict[str, Any]) -> list[Agent]:
        @tool
        async def work(ctx: Context) -> str:
            """Ask."""
            return repr(await ctx.raise_callback("Which port?", intent, kind=kind, **hints))

        def working(request: Request) -> Any:
            return "done" if results(request.messages) else call("work")

        one = Agent("developer", model=Script(working), tools=[work], **chain.asker)
        for name, keys, hooked in zip(ABOVE, chain.above, chain.hooked, strict=False):
            one = self._above(name, keys, hooked, one)
        return [one, Agent("expert", model=self._model("expert", None))]

    def _above(self, name: str, keys: dict[str, Any], hooked: bool, below: Agent) -> Agent:
        async def on_callback(session: SessionAccess, callback: Callback) -> None:
            await self._sees(name)

        hooks = Hooks(on_callback=[on_callback] if hooked else [])
        return Agent(name, model=self._model(name, below, quiet=hooked), agents=[below], hooks=hooks, **keys)

    def _model(self, name: str, below: Agent | None, quiet: bool = False) -> Script:
        async def decide(request: Request) -> Any:
            if request.purpose == "side_turn":
                if not quiet:
                    await self._sees(name)
                return call("pass_up_callback", reason="not mine")
            assert below is not None
            return "done" if results(request.messages) else call("task", agent=below.name, prompt="do it")

        return Script(decide)


def reference(chain: Chain, kind: Any, intent: str, hints: dict[str, Any]) -> Route:
    """Where it goes by the pure function, in sessions as a run tree names them."""
    depth, chained = len(chain.above), [*zip(ABOVE, chain.above, strict=False)]
    known = (*[name for name, _ in reversed(chained)], "developer", "expert")
    above = [
        Ancestor(name, Policy.build(**keys), "s" + "~r1c0" * (depth - 1 - place))
        for place, (name, keys) in enumerate(chained)
    ]
    raised = RouteQuery("developer", Policy.build(**chain.asker), intent, kind, Hints.build(**hints), known=known)
    return route(raised, above)


def walked(callback: Callback) -> list[tuple[str, str]]:
    return [(s.agent, s.step) for s in callback.path if s.agent != "user" and s.step != "passed"]


@given(CHAINS, ONE_OF_THE_KINDS, st.sampled_from(["query", "blocker"]), HINTS)
def test_whoever_the_route_asks_really_is_asked_in_every_chain(
    chain: Chain, kind: str, intent: str, hints: dict[str, Any]
) -> None:
    async def run() -> None:
        witness = Witness()
        agents = witness.agents(chain, kind, intent, hints)
        async with Desk().runtime(*agents) as runtime:
            reply = await (await runtime.start(agents[0], "s")).prompt("go")
        found = reference(chain, kind, intent, hints)
        assert witness.saw == [station.agent for station in found.asks]
        plan = [(s.agent, "asked" if s.step == "ask" else "skipped") for s in found.stations]
        assert walked(reply.callbacks[0]) == plan
        assert (reply.status == "waiting") == (found.end == "person")

    asyncio.run(run())


@pytest.mark.slow
@given(CHAINS, HINTS, st.data())
def test_whoever_the_route_asks_and_still_may_be_asked_is_asked_by_the_next_process(
    chain: Chain, hints: dict[str, Any], data: st.DataObject
) -> None:
    then = reference(chain, "callback_to_caller", "query", hints)
    if not then.asks:
        return
    changed = [data.draw(st.just(keys) | sidecars(hops=False)) for keys in chain.above]
    own = data.draw(st.just(chain.asker) | sidecars())
    later = Chain(own, changed, chain.hooked)

    async def run() -> None:
        desk, first, witness = Desk(), Witness(stop_at_first=True), Witness()
        agents = first.agents(chain, "callback_to_caller", "query", hints)
        await interrupted(desk, agents[0], first.asked, agents[1])
        agents = witness.agents(later, "callback_to_caller", "query", hints)
        async with desk.runtime(*agents) as runtime:
            reply = await runtime.resume("s")
        now = reference(later, "callback_to_caller", "query", hints)
        asked_now = {(s.agent, s.session_id) for s in now.asks}
        may = [s.agent for s in then.asks if (s.agent, s.session_id) in asked_now]
        assert witness.saw == may
        by_right = all(at.end == "person" and at.right in ("developer", *may) for at in (then, now))
        assert (reply.status == "waiting") == by_right
        said_asked = [agent for agent, step in walked(reply.callbacks[0]) if step == "asked"]
        assert said_asked == [s.agent for s in then.asks if s is then.asks[0] or s.agent in may]

    asyncio.run(run())
