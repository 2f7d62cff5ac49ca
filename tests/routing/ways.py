"""Short words for building sidecars, chains and callbacks."""

from __future__ import annotations

from typing import Any

from upcall.callbacks import Hints
from upcall.core.routing.policy import KEYS, Policy
from upcall.core.routing.route import Ancestor, Route, RouteQuery, route

RIGHTS = ("can_query_caller", "can_use_host_interaction")


def sidecar(**keys: Any) -> Policy:
    """A policy from keys of either level; both rights are given unless said otherwise."""
    rights = {key: keys.pop(key, True) for key in RIGHTS}
    assert all(f"callback_policy.{key}" in KEYS for key in keys)
    return Policy.build(**rights, callback_policy=keys)


def above(name: str, **keys: Any) -> Ancestor:
    """An ancestor whose session is called after it."""
    return Ancestor(name, sidecar(**keys), f"session-of-{name}")


def way(
    chain: list[Ancestor] | None = None,
    *,
    policy: Policy | None = None,
    hints: dict[str, Any] | None = None,
    **fields: Any,
) -> Route:
    """The route of a developer's callback."""
    callback = RouteQuery("developer", policy or sidecar(), hints=Hints.build(**(hints or {})), **fields)
    return route(callback, chain or [])


def asked(route: Route) -> list[str]:
    """The names of those who are asked, in order."""
    return [station.agent for station in route.asks]


def reason(route: Route, agent: str) -> str:
    """Why one agent is skipped."""
    return next(s.reason for s in route.stations if s.agent == agent and s.step == "skip")
