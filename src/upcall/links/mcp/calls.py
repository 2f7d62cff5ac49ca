"""One call of a server's tool.

In the 2026 era a call consists of legs: what the server asks is the result of a leg, and the answers go with the
next one. Each leg runs once and its outcome is in the log, so any process continues the call. In the legacy era the
whole call is one effect; its questions are held in memory, and the connection's life bounds them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from upcall.contracts import Context
from upcall.errors import UpcallError
from upcall.links.mcp.connection import Connection
from upcall.links.mcp.failures import AnswerLost, RequestRefused, ServerFailed, SessionForgotten
from upcall.links.mcp.questions import Asked, InFlight, Pending, elicit, refusal
from upcall.links.mcp.results import result_of
from upcall.mcp_wire.eras import INVALID_PARAMS, URL_REQUIRED
from upcall.mcp_wire.forms import BadForm
from upcall.mcp_wire.names import clean_line
from upcall.mcp_wire.reading import as_object, objects
from upcall.messages import Result

if TYPE_CHECKING:
    from upcall.links.mcp.live import Json, Live

log = logging.getLogger("upcall")

LEGS, ATTEMPTS, EMPTY_ROUNDS, REQUESTS = 40, 3, 10, 20
"""Legs of one call, times that it begins anew, rounds in which a server asks nothing, and requests of one leg."""

STATE = 1_000_000
"""Characters of the state that a server gives with its questions."""

Sample = Callable[[Context, "Json"], Awaitable["Json"]]
"""Answers a server's request for a model call, which is one of the agent's own."""

_SHOWN = 0.2
"""Seconds between two lines of progress."""


class Answers:
    """The answers that a call was given, for questions that are equal when the call begins anew."""

    def __init__(self) -> None:
        self._given: dict[str, list[Json]] = {}
        self._used: dict[str, int] = {}

    def rewind(self) -> None:
        """Begin anew: equal questions get the same answers, in their order."""
        self._used = {}

    def next(self, key: str) -> Json | None:
        """Return the next answer to a question that was asked before the call began anew, or None."""
        used = self._used.get(key, 0)
        given = self._given.get(key, [])
        if used < len(given):
            self._used[key] = used + 1
            return given[used]
        return None

    def add(self, key: str, answer: Json) -> None:
        """Note an answer."""
        self._given.setdefault(key, []).append(answer)
        self._used[key] = self._used.get(key, 0) + 1


class ToolCall:
    """One call of a tool, from its first leg, or from wherever the log says it is, to its result."""

    def __init__(
        self, connection: Connection, tool: Json, args: Mapping[str, Any], ctx: Context, sample: Sample | None
    ) -> None:
        self._connection, self._tool, self._args, self._ctx = connection, tool, dict(args), ctx
        self._name, self._server = str(tool["name"]), connection.config.name
        self._sample, self._result = sample, None
        self._shown = 0.0

    async def run(self) -> Result:
        """Return the result; what goes wrong is an error result that says whether the tool may have run."""
        try:
            live = await self._connection.live()
            given = await (self._modern() if live.era == "2026" else self._legacy(live))
        except ServerFailed as error:
            return self._error(f"MCP server {self._server!r} can't be used: {error}. The tool did not run.")
        except AnswerLost as error:
            unknown = "Whether the tool ran is unknown, and it was not called again by itself"
            return self._error(f"the answer of MCP server {self._server!r} was lost: {error}. {unknown}.")
        except RequestRefused as error:
            return self._error(f"MCP server {self._server!r} refused the call: {error}")
        return result_of(self._ctx.call_id, given, self._tool.get("outputSchema"))

    def _error(self, text: str) -> Result:
        return Result(self._ctx.call_id, text, is_error=True)

    # --- 2026 -------------------------------------------------------------------------------

    async def _modern(self) -> Json:
        answers, attempts, empty, last = Answers(), 1, 0, ""
        responses: Json | None = None
        state: str | None = None
        for number in range(1, LEGS + 1):
            leg = await self._leg(number, responses, state)
            if self._result is not None:
                return self._result
            if "refused" in leg:
                stale = leg["refused"] == INVALID_PARAMS and (state is not None or responses is not None)
                if not stale or attempts >= ATTEMPTS:
                    raise RequestRefused(leg["refused"], leg["text"])
                attempts, responses, state, last = attempts + 1, None, None, ""
                answers.rewind()
                continue
            if last and leg["at"] != last:  # another process of the server: it may not know the answers
                answers.rewind()
            last, state = leg["at"], leg.get("state")
            empty = 0 if leg["requests"] else empty + 1
            if empty > EMPTY_ROUNDS:
                raise RequestRefused(0, f"it asked {EMPTY_ROUNDS} times to be called again, without a reason")
            if leg["requests"]:
                responses = await self._answers(leg["requests"], answers)
            else:
                responses = None
                await asyncio.sleep(min(0.05 * 2**empty, 1.0))
        raise RequestRefused(0, f"the call was not finished after {LEGS} rounds of questions and answers")

    async def _leg(self, number: int, responses: Json | None, state: str | None) -> Json:
        """Run one leg once. A complete result is kept in `_result`: the log gets it as the call's own."""

        async def send() -> Json:
            live = await self._connection.live()
            try:
                given = await live.call(
                    self._name, self._args, responses=responses, state=state, progress=self._show_progress
                )
            except RequestRefused as error:
                return {"refused": error.code, "text": error.text}
            if given.get("resultType") != "input_required" and "inputRequests" not in given:
                self._result = given
                return {"done": True}
            return _asking(given, live.id)

        leg = await self._ctx.once(f"leg {number}", send)
        if leg.get("done") and self._result is None:
            raise AnswerLost("the process ended before the result was stored")
        return leg

    async def _answers(self, requests: Json, answers: Answers) -> Json:
        if len(requests) == 1:
            key, request = next(iter(requests.items()))
            return {key: await self._answer(request, answers)}
        async with asyncio.TaskGroup() as group:
            tasks = {key: group.create_task(self._answer(one, answers)) for key, one in requests.items()}
        return {key: task.result() for key, task in tasks.items()}

    async def _answer(self, request: Json, answers: Answers) -> Json:
        """Answer one request of a leg."""
        method, params = request.get("method"), as_object(request.get("params"))
        if method == "sampling/createMessage":
            return await self._sampled(params)
        if method != "elicitation/create":
            raise RequestRefused(0, f"it asks for {clean_line(str(method), 50)!r}, which is not supported")
        try:
            asked = Asked(self._server, self._name, params)
        except BadForm as error:
            raise RequestRefused(0, f"its question can't be asked: {refusal(error)}") from None
        known = answers.next(asked.key)
        if known is not None:
            return known
        answer = await elicit(self._ctx, asked)
        answers.add(asked.key, answer)
        return answer

    async def _sampled(self, params: Json) -> Json:
        if self._sample is None:
            raise RequestRefused(0, "it asks for a model call, which the agent's file does not allow")
        return await self._sample(self._ctx, params)

    # --- legacy -----------------------------------------------------------------------------

    async def _legacy(self, live: Live) -> Json:
        async def whole() -> Json:
            self._result = await self._held(live)
            return {"done": True}

        await self._ctx.once("call", whole)
        if self._result is None:
            raise AnswerLost("the process ended before the result was stored")
        return self._result

    async def _held(self, live: Live) -> Json:
        """Call the tool, and call it again once a person has opened the page that the server asked for."""
        try:
            return await self._known_there(live)
        except RequestRefused as error:
            if error.code != URL_REQUIRED:
                raise
            for params in objects(as_object(error.data).get("elicitations"))[:REQUESTS]:
                answer = await elicit(self._ctx, _link(self._server, self._name, params))
                if answer["action"] != "accept":
                    raise RequestRefused(
                        0, f"a person was asked to open a page, but did not: {answer['action']}"
                    ) from None
        return await self._known_there(live)

    async def _known_there(self, live: Live) -> Json:
        """Call the tool; over a new connection where the server has forgotten this one, and so did not call it."""
        try:
            return await self._with_questions(live)
        except SessionForgotten:
            live = await self._connection.live()
            if live.era != "legacy":  # it was replaced by another server
                raise
            return await self._with_questions(live)

    async def _with_questions(self, live: Live) -> Json:
        """Wait for the result, and answer what the server asks meanwhile."""
        call = InFlight(self._ctx.id)
        self._connection.in_flight.append(call)
        running = asyncio.ensure_future(live.call(self._name, self._args, progress=self._show_progress))
        tasks: set[asyncio.Task[Any]] = set()
        try:
            while not running.done():
                request = asyncio.ensure_future(call.requests.get())
                tasks.add(request)
                await asyncio.wait({running, request}, return_when="FIRST_COMPLETED")
                if request.done():
                    tasks.add(asyncio.ensure_future(self._answer_legacy(request.result())))
            return running.result()
        finally:
            call.end()
            self._connection.in_flight.remove(call)
            for task in (running, *tasks):
                task.cancel()
            await asyncio.wait({running, *tasks})

    async def _answer_legacy(self, request: Pending) -> None:
        """Answer a request of the server, unless the server takes it back first."""
        work = asyncio.ensure_future(self._legacy_answer(request.method, request.params))
        try:
            await asyncio.wait({work, request.answer}, return_when="FIRST_COMPLETED")
            if work.done() and not request.answer.done():
                request.answer.set_result(work.result())
        except asyncio.CancelledError:
            raise
        except UpcallError as error:
            log.warning("MCP server %s: its question was not asked: %s", self._server, refusal(error))
            if not request.answer.done():
                request.answer.set_result({"action": "cancel", "error": refusal(error)})
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})

    async def _legacy_answer(self, method: str, params: Json) -> Json:
        if method == "sampling/createMessage":
            return await self._sampled(params)
        try:
            return await elicit(self._ctx, Asked(self._server, self._name, params, held=True))
        except BadForm as error:
            raise UpcallError(refusal(error)) from None

    # --- progress ---------------------------------------------------------------------------

    async def _show_progress(self, progress: float, total: float | None, message: str | None) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._shown < _SHOWN:
            return
        self._shown = now
        of = f"{progress:g} of {total:g}" if total else f"{progress:g}"
        self._ctx.show(f"{of} {clean_line(message or '', 200)}".rstrip() + "\n")


def _asking(given: Json, at: str) -> Json:
    """Return what the log keeps of a leg in which the server asks something."""
    requests, state = as_object(given.get("inputRequests")), given.get("requestState")
    if len(requests) > REQUESTS:
        raise RequestRefused(0, f"it asks more than {REQUESTS} questions at once")
    if isinstance(state, str) and len(state) > STATE:
        raise RequestRefused(0, f"its state has more than {STATE} characters")
    return {"requests": requests, "at": at, **({"state": state} if state is not None else {})}


def _link(server: str, tool: str, params: Json) -> Asked:
    try:
        return Asked(server, tool, params, held=True)
    except BadForm as error:
        raise RequestRefused(0, f"its link can't be shown: {error}") from None
