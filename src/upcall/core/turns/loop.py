"""Run one turn: model, tools and hooks meet here and nowhere else.

begin_session → pre_request → (before_model → model → post_response → before_tool → tool → after_tool)* → end_turn

Each step looks at the folded log first, so that the same code starts a turn and resumes one that was interrupted.
"""

from __future__ import annotations

import asyncio

from upcall import events
from upcall.contracts import Reply
from upcall.core.routing.question import plain_json
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.model_step import ModelStep
from upcall.core.turns.parking import Parking
from upcall.core.turns.reply import reply_of, with_callbacks
from upcall.core.turns.side_turn import NUDGE, outcome_in
from upcall.core.turns.tool_step import ToolStep
from upcall.core.turns.toolsets import ensure_tools
from upcall.core.turns.turn import Cancelled, Turn
from upcall.errors import STOPS, LimitReached, OutputInvalid, RuntimeClosed, SessionTakenOver, StoreError
from upcall.messages import Message, Text, cancelled

OUTPUT_TRIES = 3


async def run_turn(turn: Turn, release: bool = True) -> Reply:
    """Run a turn to its end, or until it waits. `release`: give the run tree up with the last append."""
    turn.register()
    try:
        turn.check_stop()
        if turn.hooks.pre_request and not turn.state.turn.pre_passed and turn.purpose != "side_turn":
            await _pre_request(turn)
        run_program = turn.actor.agent.run_program if turn.purpose == "turn" else None
        await (_work(turn) if run_program is None else run_program(turn))
        if turn.hooks.end_turn and turn.purpose != "side_turn":
            await _end_turn(turn)
            turn.check_cancelled()
        if turn.state.turn.callbacks:
            if release:
                await turn.services.cancel_side_turns()
            turn.withdraw_open("the turn has ended", lambda _: True)
        turn.end("done")
        await turn.log.flush(release=release)
        return await turn.reply()
    except Parking:
        return await _parked(turn, release)
    except BaseException as error:
        return await _stopped(turn, error, release)
    finally:
        turn.unregister()


async def begin_session(turn: Turn) -> None:
    """Run the begin_session hooks of a session that is being created. What they write is stored with it."""
    turn.register()
    try:
        await run_hooks(turn, "begin_session", "", turn.hooks.begin_session)
    except asyncio.CancelledError:
        turn.check_stop()
        raise
    except Parking:
        await _parked(turn, release=False)
        raise
    finally:
        turn.unregister()
    turn.log.add(events.HooksPassed("begin_session"))


async def _work(turn: Turn) -> None:
    """Call the model and run the tools that it calls, until its reply is complete."""
    state, services, model_step = turn.state, turn.services, ModelStep(turn)
    is_side_turn, task = turn.purpose == "side_turn", turn.task
    assert task is not None
    while True:
        if turn.stopping is not None or services.draining or task.cancelling():
            turn.check_stop()
        if state.turn.failed is not None and turn.hooks.model_failed and not is_side_turn:
            await model_step.retry_model_failed_hooks(*state.turn.failed)
        elif state.wants_model():
            await model_step.call_model()
        if not state.turn.post_passed:
            await model_step.post_response()
        if state.conversation.calls:
            if services.draining:
                turn.check_stop()
            await _run_tools(turn)
            if is_side_turn and outcome_in(turn) is not None:
                return
        elif await _is_complete(turn):
            return


async def _pre_request(turn: Turn) -> None:
    await turn.log.flush()
    prompt = turn.state.turn.prompt
    assert prompt is not None
    message = await run_hooks(turn, "pre_request", turn.state.turn.number, turn.hooks.pre_request, prompt.message)
    if message is prompt.message:
        turn.log.add(events.HooksPassed("pre_request"))
    else:
        await turn.log.flush()
        turn.log.add(events.HooksPassed("pre_request", replaces=prompt.seq, message=message))


async def _run_tools(turn: Turn) -> None:
    """Run what the response called: one call here, several side by side. Parking if one of them waits."""
    if turn.actor.toolsets:  # a turn that was resumed here has not asked them yet
        await ensure_tools(turn)
    toolbox = turn.actor.toolbox
    calls = [call for call in turn.state.conversation.calls.values() if not call.settled]
    if len(calls) == 1:
        parked = await ToolStep(turn, calls[0], toolbox).run()
    else:
        steps = [ToolStep(turn, call, toolbox, alone=False) for call in calls]
        parked = True in await turn.activity.run_all([step.run_when_admitted() for step in steps])
    if parked:
        raise Parking


async def _is_complete(turn: Turn) -> bool:
    """Tell whether the reply ends the turn: nobody steered meanwhile, and it has the agent's output type."""
    if turn.state.conversation.steers:
        turn.apply_steers()
        return False
    if turn.question is not None:
        turn.log.add(events.OutputRefused(NUDGE))
        return False
    output = turn.actor.output
    if output is None or turn.purpose != "turn":
        return True
    text = turn.state.conversation.model_text
    try:
        turn.read_output = text, await output.read(text)
    except ValueError as error:
        turn.log.add(events.OutputRefused(output.correction(str(error))))
        if turn.state.turn.output_retries >= OUTPUT_TRIES:
            raise OutputInvalid(turn.actor.name, OUTPUT_TRIES, str(error), text) from None
        return False
    if turn.state.conversation.steers:  # that came while a long reply was read
        turn.apply_steers()
        return False
    return True


async def _end_turn(turn: Turn) -> None:
    await turn.log.flush()
    reply = await turn.reply()
    for index in range(turn.state.turn.end_passed, len(turn.hooks.end_turn)):
        if turn.may_have_callbacks:
            reply = await with_callbacks(turn.log.store, reply, turn.state)
        at = f"{turn.state.turn.number}.{index}"
        changed = await run_hooks(turn, "end_turn", at, (turn.hooks.end_turn[index],), reply)
        text = changed.text if changed.text != reply.text else None
        # `!=` would take a change from 1 to true for none
        output = None if changed.output is reply.output else plain_json("a reply's output", changed.output)
        reply = changed
        turn.log.add(events.HooksPassed("end_turn", at, text=text, output=output))
        await turn.log.flush()


async def _parked(turn: Turn, release: bool) -> Reply:
    if not release:  # else the tree is parked next, and what is left goes with that
        await turn.log.flush()
    turn.services.note_parked(turn)
    return reply_of(turn.state, waits=True)


async def _stopped(turn: Turn, error: BaseException, release: bool) -> Reply:
    """Leave a valid log whatever happened, then return or raise what the caller should get."""
    from_outside = isinstance(error, asyncio.CancelledError) and turn.stopping is None
    if isinstance(error, asyncio.CancelledError) and turn.stopping is not None:
        assert turn.task is not None
        turn.task.uncancel()
        error = turn.stopping
    turn.task = None  # it ends: whoever still wants to stop it would only cut its last append off
    if turn.state.turn.phase != "running" and not isinstance(error, SessionTakenOver | StoreError):
        # its end is written already, only its commit was waited for
        await turn.log.flush()
        if from_outside:
            raise error
        return await turn.reply()
    failure = turn.log.claim.failure if turn.log.claim is not None else None
    if isinstance(error, STOPS) or failure is not None:
        if failure is None and isinstance(error, RuntimeClosed):
            await turn.log.flush()  # what has ended by now does not run again
        raise failure or error
    if release:
        await turn.services.cancel_side_turns()
    if from_outside or isinstance(error, Cancelled):
        await _settle_open(turn, "the turn was cancelled")
        turn.end("cancelled")
    elif isinstance(error, LimitReached):
        await _settle_open(turn, f"the turn reached its limit {error.limit}")
        turn.end("limit", limit=error.limit)
    else:
        retry = turn.services.retry_at(turn, error) if release else 0.0
        turn.end("failed", error=f"{type(error).__name__}: {error}", retry=retry)
    await turn.log.flush(release=release)
    if from_outside or turn.state.turn.phase == "failed":
        raise error
    return await turn.reply()


async def _settle_open(turn: Turn, why: str) -> None:
    state = turn.state
    if state.turn.open_model_call is not None and turn.partial_text:
        said = Message("assistant", (Text("".join(turn.partial_text)),))
        turn.log.add(events.Responded(state.turn.open_model_call.ordinal, said, stop="cancelled"))
    turn.withdraw_open(why, lambda _: True)
    await turn.services.end_below(turn.id, why)
    for call_id, call in (*state.conversation.inner.items(), *state.conversation.calls.items()):
        if call.result is None:
            turn.log.add(events.ToolEnded(call_id, cancelled(call_id, why), "cancelled"))
