"""The command `worker`: run queued turns and continue what became ready, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upcall.cli.options import Commands, json_option, port_number, positive_number, seconds_between
from upcall.cli.output import dump, say, tell
from upcall.cli.places import redactor, runtime_for
from upcall.cli.stopping import stopping_of
from upcall.contracts import Row, TakeLimit
from upcall.engines import Local, Segment, WorkerOptions
from upcall.errors import BadAgent, RuntimeClosed, SetupError, StoreError
from upcall.observe.plain import one_line, visible

if TYPE_CHECKING:
    from upcall.agent import Agent
    from upcall.app import Runtime
    from upcall.engines.metrics import WorkerMetrics

_LIMITS = ("agent", "model", "tenant")
_LONGEST = 86_400.0
"""Seconds of a lease or of draining, at most."""

_LOOKED_AT = 1000
"""Ready sessions whose agents are looked at when a worker starts."""

_NAMED = 5
"""Agents that are named as missing."""


def add(commands: Commands) -> None:
    """Add the command `worker`."""
    parser = commands.add(
        "worker",
        "run queued sessions and sessions that are ready to continue",
        _worker,
        about="Takes sessions of its agents that are queued or interrupted, or whose question was\n"
        "answered or expired, the highest priority first. It skips all others. Any number of\n"
        "workers may share a log.\n"
        "A session that asks a question is parked at once. After the answer, any worker can\n"
        "resume it. On SIGTERM, a worker takes no more sessions, lets running calls end, and\n"
        "exits with code 0. A second signal ends it at once. After a temporary failure, such as\n"
        "an overloaded provider, a turn is tried again up to three times.",
        examples=[
            "upcall worker --agents agents/",
            "upcall worker --agents agents/ --once",
            "upcall worker --agents agents/ --concurrency 50 --at-most model:openai:gpt-6=20/min",
            "upcall worker --agents agents/ --at-most tenant:acme=5 --metrics-port 9100",
        ],
    )
    parser.add_argument(
        "--agents", metavar="AGENT", nargs="+", required=True, help="where the agents are; several may be given"
    )
    most = "run at most N sessions at the same time (default: 10)"
    parser.add_argument("--concurrency", metavar="N", type=positive_number, default=10, help=most)
    drain = "seconds to wait for running calls after SIGTERM (default: 20)"
    parser.add_argument("--drain", metavar="SECONDS", type=seconds_between(0, _LONGEST), default=20.0, help=drain)
    lease = "seconds without a heartbeat after which other workers may take over (default: 5)"
    parser.add_argument("--lease", metavar="SECONDS", type=seconds_between(1, _LONGEST), default=5.0, help=lease)
    parser.add_argument("--once", action="store_true", help="exit when no session is left that it may take")
    changed = "run or leave turns whose agent has changed since they began (default: run)"
    parser.add_argument("--changed", choices=("run", "leave"), default="run", metavar="run|leave", help=changed)
    limit = "run at most N sessions at once, or N/min, over all workers: agent:NAME=N, model:NAME=N, tenant:NAME=N"
    parser.add_argument("--at-most", metavar="LIMIT", action="append", default=[], type=_limit, help=limit)
    metrics = "serve /healthz, /readyz and /metrics on this port; 0 chooses one"
    parser.add_argument("--metrics-port", metavar="PORT", type=port_number, help=metrics)
    host = "the address for --metrics-port (default: 127.0.0.1)"
    parser.add_argument("--metrics-host", metavar="HOST", default="127.0.0.1", help=host)
    json_option(parser)


def _limit(text: str) -> tuple[str, str, TakeLimit]:
    """Parse `agent:writer=5` or `model:openai:gpt-6=20/min`: its kind, its name and the number."""
    what, _, number = text.rpartition("=")
    kind, _, name = what.partition(":")
    per_minute = number.endswith("/min")
    count = number.removesuffix("/min")
    if count.isdecimal() and len(count) <= 9 and not int(count):
        why = "nothing would ever be taken; use 1 or more, or leave the agent out of --agents"
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid limit: {why}")
    if kind not in _LIMITS or not name or not count.isdecimal() or len(count) > 9:
        example = "agent:NAME=N, model:NAME=N or tenant:NAME=N, with N or N/min, such as model:openai:gpt-6=20/min"
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid limit; use {example}")
    return kind, name, TakeLimit(per_minute=int(count)) if per_minute else TakeLimit(running=int(count))


def _limits(given: Sequence[tuple[str, str, TakeLimit]], agents: Mapping[str, frozenset[str]]) -> list[TakeLimit]:
    """Return the limits, each for the agents that it concerns; SetupError for an agent or a model not here."""
    made: list[TakeLimit] = []
    models = {model for used in agents.values() for model in used}
    for kind, name, limit in given:
        if kind == "tenant":
            made.append(limit.replace(tenant=name))
            continue
        known = agents if kind == "agent" else models
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise SetupError(f"--at-most {kind}:{name}: this worker has no such {kind}; it has: {there}")
        chosen = [name] if kind == "agent" else [agent for agent, used in agents.items() if name in used]
        made.append(limit.replace(agents=tuple(chosen)))
    return made


async def _worker(args: argparse.Namespace) -> int:
    try:
        await _run(args)
    except (RuntimeClosed, asyncio.CancelledError):
        if not stopping_of(args).requested.is_set():
            raise
    return 0  # also if it was told to stop while it started


async def _run(args: argparse.Namespace) -> None:
    agents = await asyncio.to_thread(_load, args.agents)
    runtime = runtime_for(args, agents)
    runtime.hold = 0.0  # a question parks its session at once
    runtime.store.lease = args.lease
    limits = _limits(args.at_most, runtime.models_of_agents())
    async with contextlib.AsyncExitStack() as stack:
        if args.json:
            stack.enter_context(_json_logs())
        await stack.enter_async_context(runtime)
        metrics = await stack.enter_async_context(_metrics(args, runtime))
        stopping = stopping_of(args)
        stopping.drain_seconds = args.drain
        stack.enter_context(stopping.on_drained())
        stack.enter_context(_stop_on_ctrl_c(stopping.stop))

        def ended(segment: Segment) -> None:
            metrics.segment(segment)
            _report(args, segment)

        if not args.json:
            await _tell_what_it_takes(runtime, agents)
        metrics.is_ready = True
        options = WorkerOptions(args.concurrency, args.drain, args.once, args.changed, limits, on_segment=ended)
        await Local().run(runtime, asyncio.Event(), options)
        metrics.is_ready = False


async def _tell_what_it_takes(runtime: Runtime, agents: Sequence[Agent]) -> None:
    """Say which log and which agents the worker has, and what is ready now that it has no agent for."""
    names = ", ".join(visible(agent.name) for agent in agents)
    tell(f"worker on {visible(runtime.store.where)} with the agents {names}")
    has, ready = runtime.models_of_agents(), list[Row]()
    with contextlib.suppress(StoreError):  # the worker waits for the log, and says so
        ready = await runtime.store.unfinished(_LOOKED_AT)
    others = sorted({row.agent for row in ready} - has.keys())
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        named = ", ".join(one_line(name, 60) for name in others[:_NAMED])
        tell(f"ready sessions need agents that it does not have: {named}{more}")


def _load(specs: Sequence[str]) -> list[Agent]:
    """Load the agents of all places; the same agent may be named twice, two of the same name may not."""
    from upcall.agent import all_agents
    from upcall.agentfiles.load import load_all

    chosen = dict.fromkeys(specs)
    agents = [agent for spec in chosen for agent in load_all(spec)]
    try:
        all_agents(agents)
    except BadAgent as error:
        if len(chosen) > 1:  # each may be right, but not both together
            raise SetupError(f"--agents {visible(' '.join(chosen))}: {error}") from None
        raise
    return agents


@contextlib.contextmanager
def _stop_on_ctrl_c(stop: Any) -> Generator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextlib.asynccontextmanager
async def _metrics(args: argparse.Namespace, runtime: Runtime) -> AsyncGenerator[WorkerMetrics]:
    """Count what the worker does, and serve the counts if a port was given."""
    from upcall.engines.metrics import WorkerMetrics

    metrics = WorkerMetrics(runtime.store, lambda: len(runtime.turns))
    if args.metrics_port is None:
        yield metrics
        return
    runtime.broadcast.sinks.append(metrics.event)
    try:
        async with metrics.served(args.metrics_host, args.metrics_port) as port:
            tell(f"metrics on http://{args.metrics_host}:{port}/metrics")
            yield metrics
    except OSError as error:
        raise SetupError(f"--metrics-port {args.metrics_port}: {error.strerror or error}") from None


# --- what it reports --------------------------------------------------------------------


def _report(args: argparse.Namespace, segment: Segment) -> None:
    error = redactor().text(segment.error)
    if args.json:
        dump(
            {
                "event": "segment", "session": segment.root, "agent": segment.agent, "outcome": segment.outcome,
                "seconds": round(segment.seconds, 3), "taken_over": segment.taken_over, "error": error or None,
            },
            lines=True,
        )  # fmt: skip
    else:
        why = f": {one_line(error, 200)}" if error else ""
        say(f"{visible(segment.root)} {segment.outcome}{why}")
    sys.stdout.flush()


class _JsonLines(logging.Formatter):
    """Log records as JSON, one on each line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        text = record.getMessage()
        return json.dumps({"event": "log", "time": record.created, "level": record.levelname, "message": text})


@contextlib.contextmanager
def _json_logs() -> Generator[None]:
    """Write what the package logs as JSON lines on stderr, until the end of the block."""
    log, handler = logging.getLogger("upcall"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    log.addHandler(handler)
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before
