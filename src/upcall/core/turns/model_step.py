"""One model call: before_model → model → post_response, and what its failures lead to."""

from __future__ import annotations

from collections.abc import Awaitable

from upcall.contracts import Delta
from upcall.core.log.model_calls import settings_for_side_turn
from upcall.core.log.request_diff import apply_change, response_of
from upcall.core.turns.compaction import compact_now
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.request_log import log_request
from upcall.core.turns.response_bounds import bounded
from upcall.core.turns.toolsets import ensure_tools, update_tools, with_logged_tools
from upcall.core.turns.turn import Turn
from upcall.core.turns.wire_log import ask_and_capture
from upcall.errors import (
    ContextTooLong,
    LimitReached,
    ModelError,
    ModelRefused,
    ModelUnavailable,
    ResponseTooLarge,
    ScriptExhausted,
    UnknownSetting,
)
from upcall.events import HooksPassed, ModelFailed, ModelStarted, Responded
from upcall.messages import (
    NO_USAGE,
    Request,
    Response,
    close_dangling_calls,
)

KINDS_OF_FAILURE = (
    ContextTooLong,
    UnknownSetting,
    ModelRefused,
    ModelUnavailable,
    ResponseTooLarge,
    ScriptExhausted,
)

ASKED_AGAIN = 3
"""The maximum number of changed requests that model_failed hooks may send for one model call."""

HEADERS_LOST = (
    "the request was interrupted, and a hook had given it headers whose values are not kept in the log ({}). "
    "Resume once more: the hooks run again. Headers of a model or an agent are never lost"
)


class ModelStep:
    """One model call of a turn: before_model → model → post_response, from wherever the log says it is."""

    __slots__ = ("hooks", "log", "state", "turn")

    def __init__(self, turn: Turn) -> None:
        self.turn, self.log, self.state, self.hooks = turn, turn.log, turn.state, turn.hooks

    async def call_model(self) -> None:
        """before_model → model: one response, in the log."""
        state, conversation, hooks = self.state, self.state.conversation, self.hooks
        if self.turn.actor.toolsets:
            await update_tools(self.turn)
        if conversation.steers:
            self.turn.apply_steers()
        if conversation.compaction is not None:
            await compact_now(self.turn)
        open_call = state.turn.open_model_call
        if open_call is None:
            self._check_limits()
        if conversation.calls or conversation.deferred:
            state.settle_calls()
        request, response, ordinal, by_hook = self._request(), None, conversation.ordinal + 1, False
        lost: tuple[str, ...] = ()
        if open_call is not None and open_call.purpose != "summary":
            ordinal, change = open_call.ordinal, open_call.change
            request = await with_logged_tools(self.turn, request)
            request, lost = await apply_change(request, change, self.log.store), change.headers if change else ()
        elif hooks.before_model:
            request, response = await self._before_model(request, ordinal)
            by_hook = response is not None
        else:
            self._started(request, request, ordinal)
        if response is None:
            self.log.flush_soon()  # nobody waits for it: the response, or the failure, is stored after it
            try:
                if lost:
                    self._check_headers(request, lost)
                response = await self._ask(request, ordinal)
            except Exception as error:
                self.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
                response, ordinal, by_hook = await self._recover(request, ordinal, error, lost)
        self._respond(response, ordinal, by_hook)

    def _ask(self, request: Request, ordinal: int) -> Awaitable[Response]:
        if self.turn.services.capture:
            return ask_and_capture(self.turn, request, self._emit, ordinal)
        return self.turn.actor.model.respond(request, self._emit)

    def _check_headers(self, request: Request, lost: tuple[str, ...]) -> None:
        """Raise ModelRefused if a request that was rebuilt from the log lacks headers that were `lost`."""
        headers = (request.settings and request.settings.extra_headers) or {}
        given = {name.lower() for name in headers}
        if missing := [name for name in lost if name.lower() not in given]:
            raise ModelRefused(self.turn.actor.model.name, HEADERS_LOST.format(", ".join(missing)))

    def _respond(self, response: Response, ordinal: int, by_hook: bool) -> None:
        if self.turn.partial_text:
            self.turn.partial_text.clear()
        response = bounded(response, self.turn.actor.model.name)
        self.log.add(
            Responded(
                ordinal, response.message(ordinal), response.usage, response.stop, response.model, by_hook,
                bool(self.hooks.post_response),
            )
        )  # fmt: skip

    async def retry_model_failed_hooks(self, asked: ModelStarted, failed: ModelFailed) -> None:
        """A model call failed and its hooks parked or died: they run again, the model does not."""
        await ensure_tools(self.turn)
        request = await with_logged_tools(self.turn, self._request())
        request = await apply_change(request, asked.change, self.log.store)
        error = failure_of(failed, self.turn.actor.model.name)
        lost = asked.change.headers if asked.change is not None else ()
        self._respond(*await self._recover(request, asked.ordinal, error, lost))

    def _request(self) -> Request:
        turn, actor = self.turn, self.turn.actor
        schema, settings = actor.output_schema, actor.settings
        if turn.purpose == "side_turn":
            if turn.question is None:  # it answers in its own words
                schema = None
            if settings is not None:
                settings = settings_for_side_turn(settings)
        messages = self.state.conversation.messages()
        return Request(actor.name, turn.purpose, actor.agent.instructions, messages, actor.specs, schema, settings)

    async def _before_model(self, asked: Request, ordinal: int) -> tuple[Request, Response | None]:
        """Run the hooks and write down that the model is asked, with what they changed."""
        await self.log.flush()  # hooks may have effects: the prompt, or the results so far, are on disk before
        conversation = self.state.conversation
        before = conversation.history
        out = await run_hooks(self.turn, "before_model", ordinal, self.hooks.before_model, asked)
        request, response = (asked, out) if isinstance(out, Response) else (out, None)
        request = self._with_writes(asked, request, compacted=conversation.history is not before)
        self._started(asked, request, ordinal)
        return request, response

    def _with_writes(self, asked: Request, request: Request, *, compacted: bool) -> Request:
        """The request with what the hooks wrote to the session meanwhile, and nothing a provider would refuse."""
        conversation = self.state.conversation
        same = request.messages is asked.messages and len(conversation.history) == len(asked.messages)
        if same and not (compacted or conversation.deferred):
            return request
        messages, now = request.messages, conversation.messages()
        if compacted:
            messages = now
        elif len(now) != len(asked.messages):
            messages = [*messages, *now[len(asked.messages) :]]
        return request if messages is asked.messages else request.replace(messages=close_dangling_calls(messages))

    def _started(self, asked: Request, request: Request, ordinal: int) -> None:
        log_request(self.turn, asked, request, ordinal, self.turn.purpose)

    async def _recover(
        self, request: Request, ordinal: int, error: Exception, lost: tuple[str, ...]
    ) -> tuple[Response, int, bool]:
        """Run the model_failed hooks: use their response, or try their request. Without either the turn fails."""
        for _ in range(ASKED_AGAIN):
            self._drop_partial()
            await self.log.flush()  # the hooks see the failure in the log, and may compact the conversation
            again = await self._model_failed(request, error) or self._shortened(error)
            if again is None:
                raise error
            if isinstance(again, Response):
                return again, ordinal, True
            self._check_headers(again, lost)  # before it is logged, as a request that has lost nothing
            base = self._request()
            ordinal, request = self.state.conversation.ordinal + 1, again
            self._started(base, request, ordinal)
            self.log.flush_soon()
            try:
                return await self._ask(request, ordinal), ordinal, False
            except Exception as failure:
                error = failure
                self.log.add(ModelFailed(ordinal, str(error), type(error).__name__))
        self._drop_partial()
        raise error

    def _shortened(self, error: Exception) -> Request | None:
        """A side turn that does not fit the window goes on with the last summary and the newest messages."""
        conversation = self.state.conversation
        few = len(conversation.messages()) // 4
        if self.turn.purpose != "side_turn" or not isinstance(error, ContextTooLong) or not few:
            return None
        self.turn.compact(few, "", conversation.summary)
        return self._request()

    async def _model_failed(self, request: Request, error: Exception) -> Request | Response | None:
        turn, conversation = self.turn, self.state.conversation
        if turn.purpose == "side_turn":
            return None
        out = await run_hooks(turn, "model_failed", conversation.ordinal, self.hooks.model_failed, request, error)
        same = isinstance(out, Request) and out.messages is request.messages
        if same and isinstance(error, ContextTooLong):
            return out.replace(messages=conversation.messages())  # the hook compacted: ask with what is left
        return None if out is error else out

    def _drop_partial(self) -> None:
        if self.turn.partial_text:
            self._emit("drop", "")

    def _emit(self, kind: str, text: str) -> None:
        if kind == "text":
            self.turn.partial_text.append(text)
        elif kind == "drop":
            self.turn.partial_text.clear()
        log = self.log
        if log.sinks or log.watchers:
            delta = Delta(self.state.id, text, kind)
            for show in (*log.sinks, *log.watchers):  # not `publish`: a response may have thousands of these
                show(delta)

    async def post_response(self) -> None:
        """Run the post_response hooks over the response that is in the log."""
        responded = self.state.turn.response
        assert responded is not None
        await self.log.flush(lazy=True)
        first = response_of(responded)
        response = await run_hooks(self.turn, "post_response", responded.ordinal, self.hooks.post_response, first)
        if response is first:
            self.log.add(HooksPassed("post_response", str(responded.ordinal)))
            return
        await self.log.flush()
        message = bounded(response, self.turn.actor.model.name).message(responded.ordinal)
        self.log.add(HooksPassed("post_response", str(responded.ordinal), responded.seq, message=message))

    def _check_limits(self) -> None:
        limits, used = self.turn.actor.limits, self.state.turn
        calls, name = limits.model_calls, "model_calls"
        if self.turn.purpose == "side_turn":
            calls, name = (
                self.turn.actor.agent.policy.callback_policy.side_turn_model_calls,
                "side_turn_model_calls",
            )
            if self.turn.room is not None and (full := self.turn.room()):
                raise LimitReached(full, "the turn and side turns of the agent that is asked have used it up")
        if calls is not None and used.model_calls >= calls:
            raise LimitReached(name, f"{used.model_calls} in this turn")
        if limits.tokens is not None and used.usage is not NO_USAGE and used.usage.total >= limits.tokens:
            raise LimitReached("tokens", f"{used.usage.total} in this turn")


def failure_of(failed: ModelFailed, model: str) -> ModelError:
    """A failure as the log keeps it: its kind and text, without what only the adapter knew."""
    kind: type[ModelError] = next((k for k in KINDS_OF_FAILURE if k.__name__ == failed.kind), ModelError)
    error = kind.__new__(kind, failed.error)
    known = {"model": model, "problem": failed.error, "tries": 1, "replies": 0, "names": ()}
    error.__dict__.update(known, tokens=None, limit=None, status=None)
    return error
