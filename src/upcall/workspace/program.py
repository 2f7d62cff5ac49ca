"""Run one program that a model wrote, from its first line or from a snapshot, to its output and result.

Each call out is a tool call with the id `{outer call}.{number}`, with hooks, approvals and events. After a crash
the program runs again from its start or its last snapshot, and its calls find their results in the log. For that,
the order in which calls settle is that of the log, not that of tasks.
"""

from __future__ import annotations

import asyncio
import keyword
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from upcall.callbacks import same_json
from upcall.core.turns.access import CallContext
from upcall.core.turns.approval import edits_of
from upcall.core.turns.parking import Parking
from upcall.core.turns.tool_step import ToolStep, inner_step
from upcall.errors import StoreError
from upcall.events import ProgramSaved, content_hash
from upcall.messages import Result, Value, cancelled, replace_surrogates
from upcall.safety.bounds import ARGUMENTS, DEPTH, TooLarge, excess, plain
from upcall.tools import Tool
from upcall.workspace.interpreter import (
    Finished,
    Interpreter,
    PausedAtAwait,
    PausedAtCall,
    ProgramFailed,
    Stop,
    version,
)

GRACE = 5.0
"""Seconds to wait for calls that don't end when they are cancelled."""

VARIABLES_LOST = "The variables of this program and of earlier programs are lost; start again."


class Bounds(Value, frozen=True):
    """Limits of one program."""

    seconds: float
    memory: int
    output: int
    calls: int
    stored: int


class Snapshot(Value, frozen=True):
    """A stored snapshot: the interpreter's own dump, and the state that is kept outside it."""

    interpreter: str
    dump: bytes
    sources: tuple[str, ...]
    printed: str = ""
    left_out: int = 0
    number: int = 0
    paused_at: int = msgspec.field(default=0, name="standing")
    """The number of the call at which the program is paused, if it needs the value."""
    awaits: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    """Numbers of the awaited calls, by the interpreter's ids."""
    seconds: float = 0.0
    stored: int = 0


class Unreadable(Exception):
    """A snapshot can't be used; its text says why."""


class Program:
    """A program that runs as one tool call."""

    def __init__(self, context: CallContext, code: str, bounds: Bounds, functions: Mapping[str, Tool]) -> None:
        self._context, self._turn = context, context.turn
        self._code, self._bounds, self._functions = code, bounds, functions
        self._toolbox = {one.name: one for one in functions.values()}
        self._state = self._turn.state
        mine = f"{context.call_id}."
        called = {one.as_written.name for i, one in self._state.conversation.inner.items() if i.startswith(mine)}
        gone = {function_name(name) for name in called - self._toolbox.keys()}
        """Functions that the program has called before, and whose tools no longer exist."""
        self._call = self._state.conversation.calls[context.call_id]
        self._loop = asyncio.get_running_loop()
        self._number = self._paused_at = 0
        self._awaits: dict[int, int] = {}
        self._calls: dict[int, ToolStep] = {}
        self._tasks: dict[int, asyncio.Task[bool]] = {}
        self._output: list[str] = []
        self._room, self._left_out = bounds.output, 0
        self._room_for_last = max(bounds.output, 1000)
        self._stored = 0  # bytes added to the log
        self._replayed_calls = sum(i.startswith(f"{context.call_id}.") for i in self._state.conversation.inner)
        """Calls that an earlier process made. Output before the last of them was already shown."""
        self._saved = self._save_due = False
        self._waits = ExitStack()
        limits = {
            "max_feed_duration_secs": bounds.seconds,
            "max_memory": bounds.memory,
            "max_suspensions": 10_000 + 10 * bounds.calls,
        }
        prompt = self._state.turn.prompt
        tree, now = self._turn.services, prompt.time if prompt is not None else 0.0
        reserve_slot = partial(tree.processes.slot, context.guard)
        self._interpreter = Interpreter(tree.threads, limits, {*functions, *gone}, now, self._print, reserve_slot)

    async def run(self) -> Result:
        """Run the program and return its result.

        Raises Parking if one of its calls keeps waiting; the program is saved.
        """
        self._turn.savers.append(self.save)
        dump: bytes | None = None
        try:
            try:
                stop = await self._begin()
                while not isinstance(stop, Finished):
                    stop = await self._step(stop)
                dump = self._interpreter.dump()
                result = Result(
                    "", self._text(shown_value(stop.value, self._room_for_last)) + self._not_stored_note(dump)
                )
            except ProgramFailed as failed:
                text = _cut(str(failed), self._room_for_last)
                result = Result("", self._text(f"{text}\n{VARIABLES_LOST}" if failed.lost else text), is_error=True)
                dump = None if failed.lost else self._interpreter.dump()
                result = result.replace(text=result.text + self._not_stored_note(dump))
            except Unreadable as error:
                result = Result("", self._text(str(error)), is_error=True)
            await self._end_calls()
        finally:
            self._turn.savers.remove(self.save)
            await self._close()
        self._store(dump, ended=True)
        mine = [i for i in self._state.conversation.inner if i.startswith(f"{self._context.call_id}.")]
        edits = "".join(edits_of(self._turn, call_id) for call_id in mine)
        return result.replace(text=edits + result.text) if edits else result

    def _not_stored_note(self, dump: bytes | None) -> str:
        """Return a note for the model if the variables are too large to be stored, else ""."""
        if dump is None or self._fits(dump):
            return ""
        most = f"more than the {self._bounds.stored} bytes that a program may add to the log"
        return f"\n(The variables are not kept for later programs: with what was already stored, they are {most}.)"

    def _fits(self, dump: bytes) -> bool:
        return self._stored + len(dump) <= self._bounds.stored

    # --- step by step ---------------------------------------------------------------------

    async def _begin(self) -> Stop:
        saved, interpreter = self._call.snapshot, self._interpreter
        if saved is None or saved.ended:
            before = self._state.turn.program
            snapshot = await self._read(before.blob) if before is not None and before.blob else None
            interpreter.sources = list(snapshot.sources) if snapshot is not None else []
            return await interpreter.feed(self._code, snapshot.dump if snapshot is not None else None)
        snapshot = await self._read(saved.blob)
        interpreter.sources, interpreter.seconds = list(snapshot.sources), snapshot.seconds
        self._output, self._left_out = [snapshot.printed], snapshot.left_out
        self._room -= len(snapshot.printed)
        self._number, self._paused_at, self._awaits = snapshot.number, snapshot.paused_at, dict(snapshot.awaits)
        self._stored, self._saved = snapshot.stored, True
        for number in (waiting := [*self._awaits.values(), *([self._paused_at] if self._paused_at else [])]):
            call = self._state.conversation.inner[self._id(number)].as_written
            self._start(number, call.name, call.args)
        # the interpreter starts only when the program can continue
        await self._wait_for([self._paused_at] if self._paused_at else waiting)
        return await interpreter.load(snapshot.dump)

    async def _step(self, stop: PausedAtCall | PausedAtAwait) -> Stop:
        self._saved = False
        if isinstance(stop, PausedAtCall):
            return await self._make_call(stop)
        await self._wait_for(self._awaits.values())
        by_number = {self._id(number): call_id for call_id, number in self._awaits.items()}
        first = next(i for i, call in self._state.conversation.inner.items() if call.settled and i in by_number)
        call_id = by_number[first]
        number = self._awaits.pop(call_id)
        return await self._interpreter.settle(call_id, *self._outcome(number))

    async def _make_call(self, stop: PausedAtCall) -> Stop:
        interpreter = self._interpreter
        if not self._paused_at:  # else it was loaded at this call
            self._number += 1
            if self._number > self._bounds.calls:
                return await interpreter.answer(
                    None, f"a program may make {self._bounds.calls} calls, and this one has made them all"
                )
            try:
                name, args, size = self._call_at(stop)
            except (TypeError, NameError) as error:
                return await interpreter.answer(None, str(error), type(error).__name__)
            if stop.name == "raise_callback":
                size += len(self._code)  # which is stored with the question
            if self._stored + size > self._bounds.stored:
                most = f"a program may add {self._bounds.stored} bytes to the log, and its calls would exceed that"
                return await interpreter.answer(None, f"{most}; write large texts in parts, by several programs")
            self._stored += size
            self._start(self._number, name, args)
        if not stop.plain:
            self._awaits[stop.call_id] = self._number
            return await interpreter.answer_later()
        self._paused_at = self._number
        await self._wait_for([self._paused_at])
        outcome, self._paused_at = self._outcome(self._paused_at), 0
        return await interpreter.answer(*outcome)

    def _call_at(self, stop: PausedAtCall) -> tuple[str, dict[str, Any], int]:
        """Return the tool, the arguments and their size in bytes of the call at which the program is paused.

        TypeError says what is wrong with the arguments. A tool that no longer exists has only its logged calls;
        NameError where the program calls it once more.
        """
        tool = self._functions.get(stop.name)
        if tool is not None:
            return tool.name, *_by_name(stop, tool)
        logged = self._state.conversation.inner.get(self._id(self._number))
        if logged is None or function_name(logged.as_written.name) != stop.name:
            raise NameError(f"name {stop.name!r} is not defined")
        call = logged.as_written
        return call.name, call.args, len(msgspec.json.encode(call.args))

    def _id(self, number: int) -> str:
        return f"{self._context.call_id}.{number}"

    def _start(self, number: int, name: str, args: dict[str, Any]) -> None:
        known = self._state.conversation.inner.get(self._id(number))
        if known is not None and not same_json([known.as_written.name, known.as_written.args], [name, args]):
            before, now = (_brief(n, a) for n, a in ((known.as_written.name, known.as_written.args), (name, args)))
            problem = f"When the program ran again after a crash, it took a different path: its call {number} was"
            done = "The calls before it were carried out and are not undone."
            raise Unreadable(f"{problem} {before} and is now {now}. {done}\n{VARIABLES_LOST}")
        call = self._calls[number] = inner_step(self._context, number, name, args, self._toolbox)
        if not call.call.settled:
            self._tasks[number] = self._turn.activity.start(call.run_when_admitted(), self._stop_waiting)

    async def _wait_for(self, numbers: Collection[int]) -> None:
        """Return when one of the calls is settled; raise Parking if one of them keeps waiting."""
        while not any(self._calls[n].call.settled for n in numbers):
            if self._save_due:
                self._save_due = False
                self.save()
            if await self._wait_and_check_parked():
                self.save()
                raise Parking

    async def _wait_and_check_parked(self) -> bool:
        """Wait until a call has ended; return whether it was parked.

        Then all calls wait, and their tasks are dropped.
        """
        await self._wait_for_one()
        if not self._drop_ended():
            return False
        while self._tasks:
            await self._wait_for_one()
            self._drop_ended()
        return True

    async def _wait_for_one(self) -> None:
        """Wait until a call has ended; the turn counts as waiting meanwhile."""
        self._interpreter.rest()
        with ExitStack() as self._waits:
            self._waits.enter_context(self._context.asking().waiting())
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    def _stop_waiting(self, _: object) -> None:
        """Count as running as soon as a call ends. Otherwise the turn would look idle and be parked."""
        self._waits.close()

    def _drop_ended(self) -> bool:
        """Drop the calls that have ended; return whether one was parked. If one failed, raise its exception."""
        done = {number: task for number, task in self._tasks.items() if task.done()}
        for number in done:
            del self._tasks[number]
        failures = [f for f in (task.exception() for task in done.values()) if f is not None]
        if failures:
            raise failures[0]
        return True in [task.result() for task in done.values()]

    def _outcome(self, number: int) -> tuple[Any, str]:
        """Return what the program gets from a call: a value, or an error to raise."""
        call = self._state.conversation.inner[self._id(number)]
        result = call.result
        assert result is not None
        if result.is_error:
            return None, result.text or f"{call.call.name} failed"
        if result.json is None:
            return None if result.is_none else result.text, ""
        value = msgspec.json.decode(
            msgspec.json.encode(result.json)
        )  # equal to the value that a resumed process reads
        return (value["answer"] if call.as_written.name == "raise_callback" else value), ""

    # --- snapshots and output -------------------------------------------------------------

    def save(self) -> None:
        """Add a snapshot to the log's buffer; while the program runs, do so when it next pauses."""
        if self._saved:
            return
        if not self._interpreter.paused:
            self._save_due = True
            return
        self._saved = True
        dump = self._interpreter.dump()
        if dump is not None and self._fits(dump):  # else it runs again from its last snapshot
            self._store(dump, ended=False)

    def _store(self, dump: bytes | None, *, ended: bool) -> None:
        log, name, seconds = self._turn.log, "", round(self._interpreter.seconds, 3)
        if dump is not None and self._fits(dump):
            self._stored += len(dump)
            snapshot = Snapshot(version(), dump, tuple(self._interpreter.sources))
            if not ended:
                snapshot = snapshot.replace(
                    printed="".join(self._output), left_out=self._left_out, number=self._number,
                    paused_at=self._paused_at, awaits=self._awaits, seconds=seconds, stored=self._stored,
                )  # fmt: skip
            body = msgspec.msgpack.encode(snapshot)
            name = content_hash(body)
            log.put_blob(name, body)
        log.add(ProgramSaved(self._context.call_id, name, self._number, seconds, ended))

    async def _read(self, name: str) -> Snapshot:
        """Return a snapshot from the store after checking it; Unreadable says what is wrong."""
        try:
            body = await self._turn.log.store.blob(name)
            if content_hash(body) != name:
                raise Unreadable(
                    f"The saved state of this turn's programs is damaged.{self._answers_note()}\n{VARIABLES_LOST}"
                )
            snapshot = msgspec.msgpack.decode(body, type=Snapshot)
        except (StoreError, msgspec.DecodeError) as error:
            raise Unreadable(
                f"The saved state of this turn's programs can't be read ({error}).\n{VARIABLES_LOST}"
            ) from None
        if snapshot.interpreter != version():
            by = f"written by pydantic-monty {snapshot.interpreter}, but {version()} is installed"
            raise Unreadable(
                f"The saved state of this turn's programs was {by}.{self._answers_note()}\n{VARIABLES_LOST}"
            )
        return snapshot

    def _answers_note(self) -> str:
        """Return a note with the answers that the program got and that are lost with it."""
        answers = [
            f"{one.message!r} was answered {one.answer.value!r}"
            for i in self._state.conversation.inner
            for one in self._state.callbacks_of(i)
            if one.status == "answered" and one.answer is not None and not one.gate
        ]
        return f" While it ran: {'; '.join(answers)}." if answers else ""

    def _print(self, text: str) -> None:
        """Collect output. Called in the interpreter's thread, while nothing else reads it."""
        shown = replace_surrogates(text[: self._room])
        self._room -= len(shown)
        self._left_out += len(text) - len(shown)
        if shown:
            self._output.append(shown)
            if self._number >= self._replayed_calls:
                self._loop.call_soon_threadsafe(self._context.show, shown)

    def _text(self, last: str) -> str:
        output = "".join(self._output)
        if self._left_out:
            output += f"\n… {self._left_out} characters left out: a program may print {self._bounds.output} …\n"
        if output and last and not output.endswith("\n"):
            output += "\n"
        return output + last or "done; it printed nothing, and its last line has no value"

    async def _end_calls(self) -> None:
        """End the calls that the program started and did not wait for."""
        await self._cancel()
        for call_id, state in tuple(self._state.conversation.inner.items()):
            outer, _, number = call_id.rpartition(".")
            if state.result is None and outer == self._context.call_id:
                step = inner_step(
                    self._context, int(number), state.as_written.name, state.as_written.args, self._toolbox
                )
                step.end(cancelled(call_id, "the program that made it has ended"), "cancelled")

    async def _cancel(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        if tasks:
            done, _ = await asyncio.wait(tasks.values(), timeout=GRACE)
            for task in done:
                if not task.cancelled():
                    task.exception()  # the program failed with another error, or ended without this call

    async def _close(self) -> None:
        await self._cancel()
        await self._interpreter.close()


def function_name(tool: str) -> str:
    """Return the name by which a program calls a tool; it is valid in Python."""
    name = tool.replace("-", "_")
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"tool_{name}"


def _by_name(stop: PausedAtCall, tool: Tool) -> tuple[dict[str, Any], int]:
    """Return a call's arguments by name, and their size in bytes; TypeError says what is wrong with them."""
    names = [*tool.schema["properties"]]
    if len(stop.args) > len(names):
        raise TypeError(f"{stop.name}() takes {len(names)} arguments and got {len(stop.args)}")
    args = dict(zip(names, stop.args, strict=False))
    repeated = [name for name in stop.kwargs if name in args]
    if repeated:
        raise TypeError(f"{stop.name}() got several values for {repeated[0]!r}")
    try:
        checked = plain(args | stop.kwargs, ARGUMENTS)
    except TooLarge as error:
        most = f"at most {ARGUMENTS} bytes of JSON, nested at most {DEPTH} levels deep"
        raise TypeError(f"{stop.name}() takes {most}: {error}") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{stop.name}() takes only JSON values: {error}") from None
    return checked, len(msgspec.json.encode(checked))


def shown_value(value: Any, most: int) -> str:
    """Return the repr of the last value, cut after `most` characters.

    Its parts are written one by one: a small value that holds one text 400 times has a large repr.
    """
    if value is None:
        return ""
    try:
        problem = excess(value, most // 2)
        if "deep" in problem:
            return f"(a value that can't be shown: {problem})"
        pieces, size = list[str](), 0
        for piece in _pieces(value, most) if problem else [repr(value)]:
            pieces.append(piece)
            size += len(piece)
            if size > most:
                break
    except (ValueError, RecursionError) as error:
        return f"(a value that can't be shown: {error})"
    if not problem or size <= most:
        return replace_surrogates(_cut("".join(pieces), most))
    omitted = len(value) - most if isinstance(value, str) else "more"
    return replace_surrogates(f"{''.join(pieces)[:most]}… {omitted} characters left out …")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… {len(text) - most} characters left out …"


_BRACKETS: dict[Any, str] = {list: "[]", tuple: "()", set: "{}", dict: "{}"}


def _pieces(value: Any, most: int) -> Iterator[str]:
    """Yield a value's repr part by part; of a text, no more than can be shown."""
    kind = _type_of(value)
    if kind in (str, bytes):
        yield repr(value[: most + 1])
        return
    if kind is int:  # Python refuses to write one of more than 4,300 digits
        yield repr(value)
        return
    if kind not in _BRACKETS:
        yield f"({kind.__name__}: too large to be shown)" if excess(value, most) else repr(value)
        return
    yield _BRACKETS[kind][0]
    for number, part in enumerate(value):
        yield ", " if number else ""
        yield from _pieces(part, most)
        if kind is dict:
            yield ": "
            yield from _pieces(value[part], most)
    yield "," if kind is tuple and len(value) == 1 else ""
    yield _BRACKETS[kind][1]


_type_of: Any = type  # pyright keeps nothing of the `Any` that it is given otherwise


def _brief(name: str, args: dict[str, Any]) -> str:
    return f"{name}({msgspec.json.encode(args).decode()[:200]})"
