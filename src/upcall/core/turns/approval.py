"""The approval gate: it stands after the hooks, on the final call, and fails closed."""

from __future__ import annotations

from typing import Any

import msgspec

from upcall.callbacks import Approve, Callback, Reject, approval_digest, decode_approval, same_json
from upcall.core.routing.question import Question, outcome_of
from upcall.core.turns.checking import checked
from upcall.core.turns.hook_runner import run_hooks
from upcall.core.turns.prepared_agent import PreparedAgent
from upcall.core.turns.turn import CallbackScope, Turn
from upcall.errors import CallbackExpired, CallbackUnresolved
from upcall.events import CallbackDelivered
from upcall.messages import Call, Result
from upcall.tools import BadArguments, CallRefused, Tool


async def before_tool(turn: Turn, call: Call, edited: str = "") -> Call | Result:
    """The hooks' chain: a changed call goes on to the next hook, a result ends it.

    Arguments that the approval `edited` has changed pass the hooks as another occurrence of their point.
    """
    out = await run_hooks(turn, "before_tool", f"{call.id}{edited}", turn.hooks.before_tool, call)
    if out is call:
        return call
    return out.replace(call_id=call.id) if isinstance(out, Result) else out.replace(id=call.id)


async def gate(turn: Turn, tool: Tool, call: Call, args: dict[str, Any]) -> tuple[str, Call] | Result:
    """Return the approval's id and the call that may run, or the result that a hook gives instead.

    Raise CallRefused if the call may not run. An approval covers exactly this tool with exactly these arguments.
    Arguments that the approver edited pass the before_tool hooks again. If a hook changes those, the call is
    refused. If a hook changes a call that was not edited, the changed call needs an approval of its own.
    A call that a hook sends to another tool is returned without an approval, and begins again.
    """
    while True:
        try:
            free, decided = _decided(turn, tool, call, args)
        except Exception as error:
            raise _refused(call, f"could not determine whether it needs an approval ({error!r})") from error
        if free:
            return "", call
        if turn.purpose == "side_turn":
            raise _refused(call, "it needs an approval, and an agent can't get one while it answers a callback")
        callback_id, said, by = decided or await _asked(turn, tool, call, args)
        if not isinstance(said, Approve):
            reason = f": {said.reason}" if said is not None and said.reason else ""
            _note(turn, callback_id)
            raise _refused(call, by if said is None else f"rejected{f' by {by}' if by else ''}{reason}")
        edited: Call | Result = call
        if said.args is not None:
            edited = await before_tool(turn, call.replace(args=said.args), f".{callback_id}")
        if isinstance(edited, Result):
            return edited
        _note(turn, callback_id)
        if edited.name != tool.name:
            return "", edited
        if said.args is None or same_json(edited.args, said.args):
            return callback_id, edited
        if _asked_before(turn, edited):  # asking again would get the same answer, without end
            raise _refused(call, "a hook undid the approver's changes to the arguments")
        call, args = edited, await checked(turn, tool, edited.args)


def _refused(call: Call, why: str) -> CallRefused:
    return CallRefused(f"{call.name} was not run: {why}")


Decided = tuple[str, Approve | Reject | None, str]
"""An approval's id, its answer, and who gave it; without an answer, why there is none."""


def _decided(turn: Turn, tool: Tool, call: Call, args: dict[str, Any]) -> tuple[bool, Decided | None]:
    """Return whether the call may run freely; if not, an approval that holds for the session, or None."""
    if turn.state.turn.callbacks and _asked_before(turn, call):
        return False, None  # whether it needs an approval was decided when that was raised
    if not turn.actor.asks_approval(tool, args):
        return True, None
    digest = approval_digest(tool.name, call.args)
    patterns = tool.patterns(args)
    for raised, answered in reversed(turn.state.grants):
        said = decode_approval(answered.value)
        if raised.tool != tool.name:
            continue
        pattern = said.pattern if isinstance(said, Approve) else None
        edited = said.args if isinstance(said, Approve) else None
        same = digest == (raised.digest if edited is None else approval_digest(tool.name, edited))
        if answered.right in ("agent", "hook"):
            pattern = None  # only a person approves by a pattern
        if same or (pattern is not None and patterns.get(pattern) == raised.patterns.get(pattern)):
            return False, (raised.callback_id, said if isinstance(said, Reject) else Approve(), answered.by)
    return False, None


def _asked_before(turn: Turn, call: Call) -> bool:
    """Tell whether an approval of exactly this call was asked for already."""
    asked = {one.digest for one in turn.state.callbacks_of(call.id) if one.gate}
    return bool(asked) and approval_digest(call.name, call.args) in asked


async def _asked(turn: Turn, tool: Tool, call: Call, args: dict[str, Any]) -> Decided:
    question = Question(
        f"May {turn.actor.name} run {tool.name}?", "approval", "callback_to_caller",
        approval_digest(tool.name, call.args), schema=tool.schema, gate=True, tool=tool.name, args=call.args,
        patterns=tool.patterns(args),
    )  # fmt: skip
    callback = await turn.services.raise_callback(CallbackScope(turn, call.id), question)
    try:
        return callback.id, outcome_of(callback), callback.answer.by if callback.answer is not None else ""
    except (CallbackUnresolved, CallbackExpired) as error:
        kind = "its approval expired" if isinstance(error, CallbackExpired) else "nobody could approve it"
        return callback.id, None, f"{kind}. {error}"


def edits_of(turn: Turn, call_id: str) -> str:
    """The text that tells the model which arguments an approver changed. The call may have waited since."""
    for callback in reversed(turn.state.turn.callbacks.values()):
        answer = callback.answer if callback.gate and callback.origin == call_id else None
        said = answer.value if answer is not None else None
        if isinstance(said, Approve) and said.args is not None:
            shown = msgspec.json.encode(said.args).decode()
            return f"(The approver changed the arguments to {shown}.)\n"
    return ""


def _note(turn: Turn, callback_id: str) -> None:
    """Note that the outcome was delivered, in the same append that starts or refuses the tool."""
    callback = turn.state.turn.callbacks.get(callback_id)
    if callback is not None and not callback.delivered:
        turn.log.add(CallbackDelivered(callback_id, callback.origin))


def why_not_approve(actor: PreparedAgent, callback: Callback, value: dict[str, Any], same_workspace: bool) -> str:
    """The permission ceiling: say why an agent may not approve a call, or return "" if it may.

    An agent approves only what its `may_approve` names and what it could run itself, in the same workspace, without
    asking.
    """
    name, edited = callback.tool, value["args"]
    args = callback.args or {} if edited is None else edited
    if value["pattern"] is not None:
        return "only a person approves by a pattern; an agent approves the one call that it was shown"
    asked = [s for s in callback.route["stations"] if s["agent"] == actor.name and s["step"] == "ask"]
    then = [s.get("approves") or () for s in asked]
    if any(name not in tools for tools in (actor.agent.policy.callback_policy.may_approve, *then)):
        return f"its callback_policy.may_approve does not name {name}, or did not when the approval was requested"
    if not same_workspace:
        return f"it works in a different workspace from {callback.agent}"
    own = actor.toolbox.get(name)
    if own is None:
        return f"it has no tool {name} itself"
    try:
        if actor.asks_approval(own, own.check(args)):
            return "it could not run that call itself without asking"
    except BadArguments as error:
        return str(error)
    except Exception as error:  # a rule is code of the user
        return f"could not determine whether it could run that call without asking ({error!r})"
    return ""
