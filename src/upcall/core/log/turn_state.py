"""One turn's progress, folded from its log. Each turn has an object of its own, so nothing is reset by hand."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from upcall import events
from upcall.callbacks import Callback
from upcall.messages import NO_USAGE, Usage

Phase = Literal["idle", "running", "done", "cancelled", "limit", "failed"]

NOTHING_CARRIED = events.Carried()


class TurnState(msgspec.Struct, eq=False):
    """The progress of one turn. Turn 0 is before a session's first prompt: its begin_session hooks use it."""

    number: int = 0
    phase: Phase = "idle"
    prompt: events.TurnStarted | None = None
    options: events.SessionOptions = events.DEFAULT_OPTIONS
    before: events.Carried = NOTHING_CARRIED
    """The part of the earlier state that a fold which begins with this turn needs."""

    # --- where it is
    pre_passed: bool = False
    """True once the pre_request hooks have run."""
    open_model_call: events.ModelStarted | None = None
    """A model call without its response."""
    failed: tuple[events.ModelStarted, events.ModelFailed] | None = None
    """A model call whose model_failed hooks have not ended."""
    response: events.Responded | None = None
    """The newest response that the turn continues from."""
    post_passed: bool = False
    """The response's post_response hooks are done."""
    end_passed: int = 0
    """The number of end_turn hooks that have run."""
    prompt_at: int = -1
    """The index of its prompt in the conversation's history."""
    response_at: int = -1
    """The index of its newest response there."""

    # --- what it left for when it is resumed
    callbacks: dict[str, Callback] = {}
    """The callbacks of this turn, by id."""
    approvals: dict[str, events.CallbackRaised] = {}
    """The events that raised approvals, by the callback's id."""
    once_effects: dict[tuple[str, str], events.OnceEnded | None] = {}
    """The effects that `once` ran, by origin and name; None if the outcome is not known."""
    hook_writes: dict[str, list[events.Event]] = {}
    """The events written by hooks that have not finished, by origin."""
    steps: dict[tuple[type[events.Event], str], events.Event] = {}
    """A team's or chain's, by kind of event and name."""
    program: events.ProgramSaved | None = None
    """With the variables that the turn's programs left."""
    parked: bool = False
    """True while the turn is parked."""
    cancel: events.CancelRequested | None = None

    # --- what it came to
    output: Any = None
    """The reply's value where an end_turn hook replaced it."""
    output_retries: int = 0
    """Replies that did not match the output type."""
    limit: str = ""
    error: str = ""
    failure: events.TurnEnded | None = None
    """How it ended when it last failed; it may have been resumed since."""
    retry: float = 0.0
    """The time from which a worker may try the failed turn again; 0.0 if none does."""
    retries: int = 0
    """How often in a row the turn failed and was to be tried again."""
    usage: Usage = NO_USAGE
    model_calls: int = 0
    ran_seconds: float = 0.0
    """Seconds that it ran before its newest segment."""
    running_since: float = 0.0
    """The time at which the newest segment began; 0.0 while the turn does not run."""

    def running_seconds(self, now: float) -> float:
        """The seconds that the turn has run, without the time it waited."""
        return self.ran_seconds + (now - self.running_since) if 0.0 < self.running_since < now else self.ran_seconds
