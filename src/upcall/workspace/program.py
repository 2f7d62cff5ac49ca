"""One program that a model wrote, from its first line, or from where it was saved, to what it printed and came to.

Each call out is a tool call of its own under `{outer call}.{number}`: gated, hooked, logged. After a crash the
program is fed again, or taken up at its last snapshot, and its calls find their results in the log; so which of
them settles first is decided by the order of the log, never by that of tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec

from upcall.callbacks import same_json
from upcall.core.turns.access import CallContext
from upcall.core.turns.parking import Parking
from upcall.core.turns.tool_step import ToolStep, inner_step
from upcall.errors import StoreError
from upcall.events import ProgramSaved, content_hash
from upcall.messages import Result, Value, cancelled, replace_surrogates
from upcall.safety.bounds import ARGUMENTS, DEPTH, TooLarge, excess, plain
from upcall.tools import Tool
from upcall.workspace.interpreter import Awaits, Called, Ended, Failed, Interpreter, Stop, version

GRACE = 5.0
"""Seconds that calls which don't end when they are cancelled are waited for."""

GONE = "What it and earlier programs had in variables is gone; begin anew."


class Bounds(Value, frozen=True):
    """What one program may use."""

    seconds: float
    memory: int
    output: int
    calls: int
    stored: int


class Kept(Value, frozen=True):
    """A snapshot: the interpreter's own, and what it does not know."""

    interpreter: str
    dump: bytes
    sources: tuple[str, ...]
    printed: str = ""
    left_out: int = 0
    number: int = 0
    standing: int = 0  # the number of the call it stands at, if it needs the value
    awaits: dict[int, int] = msgspec.field(
        default_factory=dict[int, int]
    )  # numbers of the calls it awaits, by the interpreter's ids
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
        self._call = self._state.calls[context.call_id]
        self._loop = asyncio.get_running_loop()
        self._number = self._standing = 0
        self._awaits: dict[int, int] = {}
        self._calls: dict[int, ToolStep] = {}
        self._tasks: dict[int, asyncio.Task[bool]] = {}
        self._said: list[str] = []
        self._room, self._left_out = bounds.output, 0
        self._room_for_last = max(bounds.output, 1000)
        self._stored = 0  # bytes that it added to the log
        self._shown = sum(i.startswith(f"{context.call_id}.") for i in self._state.inner)
        """How many calls an earlier process made: what is printed before the last of them has been shown."""
        self._saved = self._due = False
        self._waits = ExitStack()
        limits = {
            "max_feed_duration_secs": bounds.seconds,
            "max_memory": bounds.memory,
            "max_suspensions": 10_000 + 10 * bounds.calls,
        }
        prompt = self._state.prompt
        tree, now = self._turn.services, prompt.time if prompt is not None else 0.0
        place = partial(tree.processes.place, context.guard)
        self._interpreter = Interpreter(tree.threads, limits, functions, now, self._printed, place)

    async def run(self) -> Result:
        """Run it; Parking if one of its calls is left waiting, with the program saved."""
        self._turn.savers.append(self.save)
        dump: bytes | None = None
        try:
            try:
                stop = await self._begin()
                while not isinstance(stop, Ended):
                    stop = await self._step(stop)
                dump = self._interpreter.dump()
                result = Result("", self._text(shown_value(stop.value, self._room_for_last)) + self._lost(dump))
            except Failed as failed:
                said = _cut(str(failed), self._room_for_last)
                result = Result("", self._text(f"{said}\n{GONE}" if failed.lost else said), is_error=True)
                dump = None if failed.lost else self._interpreter.dump()
                result = result.replace(text=result.text + self._lost(dump))
            except Unreadable as error:
                result = Result("", self._text(str(error)), is_error=True)
            await self._end_calls()
        finally:
            self._turn.savers.remove(self.save)
            await self._close()
        self._keep(dump, ended=True)
        return result

    def _lost(self, dump: bytes | None) -> str:
        """What the model is told where the variables take too much room to be kept."""
        if dump is None or self._fits(dump):
            return ""
        most = f"more than the {self._bounds.stored} bytes that a program may add to the log"
        return f"\n(The variables are not kept for later programs: with what was stored before they are {most}.)"

    def _fits(self, dump: bytes) -> bool:
        return self._stored + len(dump) <= self._bounds.stored

    # --- step by step ---------------------------------------------------------------------

    async def _begin(self) -> Stop:
        saved, interpreter = self._call.snapshot, self._interpreter
        if saved is None or saved.ended:
            before = self._state.program
            kept = await self._read(before.blob) if before is not None and before.blob else None
            interpreter.sources = list(kept.sources) if kept is not None else []
            return await interpreter.feed(self._code, kept.dump if kept is not None else None)
        kept = await self._read(saved.blob)
        interpreter.sources, interpreter.seconds = list(kept.sources), kept.seconds
        self._said, self._left_out = [kept.printed], kept.left_out
        self._room -= len(kept.printed)
        self._number, self._standing, self._awaits = kept.number, kept.standing, dict(kept.awaits)
        self._stored, self._saved = kept.stored, True
        for number in (waiting := [*self._awaits.values(), *([self._standing] if self._standing else [])]):
            given = self._state.inner[self._id(number)].as_written
            self._start(number, given.name, given.args)
        await self._until(
            [self._standing] if self._standing else waiting
        )  # a program that has to wait on needs no interpreter yet
        return await interpreter.load(kept.dump)

    async def _step(self, stop: Called | Awaits) -> Stop:
        self._saved = False
        if isinstance(stop, Called):
            return await self._called(stop)
        await self._until(self._awaits.values())
        by_number = {self._id(number): call_id for call_id, number in self._awaits.items()}
        first = next(i for i, call in self._state.inner.items() if call.settled and i in by_number)
        call_id = by_number[first]
        number = self._awaits.pop(call_id)
        return await self._interpreter.settle(call_id, *self._outcome(number))

    async def _called(self, stop: Called) -> Stop:
        interpreter = self._interpreter
        if not self._standing:  # else it is taken up at this very call
            self._number += 1
            if self._number > self._bounds.calls:
                return await interpreter.answer(None, f"a program may make {self._bounds.calls} calls, and it has")
            try:
                args, size = _by_name(stop, self._functions[stop.name])
            except TypeError as error:
                return await interpreter.answer(None, str(error), "TypeError")
            if stop.name == "raise_callback":
                size += len(self._code)  # which stands beside the question
            if self._stored + size > self._bounds.stored:
                most = f"a program may add {self._bounds.stored} bytes to the log, and its calls would be more"
                return await interpreter.answer(None, f"{most}; write large texts in parts, by several programs")
            self._stored += size
            self._start(self._number, self._functions[stop.name].name, args)
        if not stop.plain:
            self._awaits[stop.call_id] = self._number
            return await interpreter.answer_later()
        self._standing = self._number
        await self._until([self._standing])
        outcome, self._standing = self._outcome(self._standing), 0
        return await interpreter.answer(*outcome)

    def _id(self, number: int) -> str:
        return f"{self._context.call_id}.{number}"

    def _start(self, number: int, name: str, args: dict[str, Any]) -> None:
        known = self._state.inner.get(self._id(number))
        if known is not None and not same_json([known.as_written.name, known.as_written.args], [name, args]):
            before, now = (_brief(n, a) for n, a in ((known.as_written.name, known.as_written.args), (name, args)))
            problem = f"The process ended while it ran, and run again it took another way: its call {number} was"
            raise Unreadable(f"{problem} {before} and is now {now}. Calls before that had their effects.\n{GONE}")
        call = self._calls[number] = inner_step(self._context, number, name, args, self._toolbox)
        if not call.call.settled:
            self._tasks[number] = self._turn.activity.start(call.run_in_place(), self._stop_waiting)

    async def _until(self, numbers: Collection[int]) -> None:
        """Return when one of the calls is settled; Parking when one of them is left waiting instead."""
        while not any(self._calls[n].call.settled for n in numbers):
            if self._due:
                self._due = False
                self.save()
            if await self._parked():
                self.save()
                raise Parking

    async def _parked(self) -> bool:
        """Wait until a call has ended; whether it is parked. Then everything here waits, and is let go of."""
        await self._one_ended()
        if not self._finished():
            return False
        while self._tasks:
            await self._one_ended()
            self._finished()
        return True

    async def _one_ended(self) -> None:
        """Wait until a call has ended, counting as waiting meanwhile."""
        self._interpreter.rest()
        with ExitStack() as self._waits:
            self._waits.enter_context(self._context.asking().waiting())
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    def _stop_waiting(self, _: object) -> None:
        """Count as running from the moment a call ends: else everything would seem to wait, and be parked."""
        self._waits.close()

    def _finished(self) -> bool:
        """Let go of the calls that have ended; whether one of them is parked. Raises what failed one."""
        done = {number: task for number, task in self._tasks.items() if task.done()}
        for number in done:
            del self._tasks[number]
        failures = [f for f in (task.exception() for task in done.values()) if f is not None]
        if failures:
            raise failures[0]
        return True in [task.result() for task in done.values()]

    def _outcome(self, number: int) -> tuple[Any, str]:
        """What a call gives to the program: a value, or an error to raise."""
        call = self._state.inner[self._id(number)]
        result = call.result
        assert result is not None
        if result.is_error:
            return None, result.text or f"{call.call.name} failed"
        if result.json is None:
            return result.text, ""
        value = msgspec.json.decode(msgspec.json.encode(result.json))  # the same whether or not it was stored
        return (value["answer"] if call.as_written.name == "raise_callback" else value), ""

    # --- what it leaves -------------------------------------------------------------------

    def save(self) -> None:
        """Write down where it stands, with what is appended next; while it runs, when it next stands somewhere."""
        if self._saved:
            return
        if not self._interpreter.standing:
            self._due = True
            return
        self._saved = True
        dump = self._interpreter.dump()
        if dump is not None and self._fits(dump):  # else it is run again from where it was saved last
            self._keep(dump, ended=False)

    def _keep(self, dump: bytes | None, *, ended: bool) -> None:
        log, name, seconds = self._turn.log, "", round(self._interpreter.seconds, 3)
        if dump is not None and self._fits(dump):
            self._stored += len(dump)
            kept = Kept(version(), dump, tuple(self._interpreter.sources))
            if not ended:
                kept = kept.replace(
                    printed="".join(self._said), left_out=self._left_out, number=self._number,
                    standing=self._standing, awaits=self._awaits, seconds=seconds, stored=self._stored,
                )  # fmt: skip
            body = msgspec.msgpack.encode(kept)
            name = content_hash(body)
            log.put_blob(name, body)
        log.add(ProgramSaved(self._context.call_id, name, self._number, seconds, ended))

    async def _read(self, name: str) -> Kept:
        """A snapshot from the store, checked."""
        try:
            body = await self._turn.log.store.blob(name)
            if content_hash(body) != name:
                raise Unreadable(f"What was saved of this turn's programs is damaged.{self._given()}\n{GONE}")
            kept = msgspec.msgpack.decode(body, type=Kept)
        except (StoreError, msgspec.DecodeError) as error:
            raise Unreadable(f"What was saved of this turn's programs can't be read ({error}).\n{GONE}") from None
        if kept.interpreter != version():
            by = f"pydantic-monty {kept.interpreter}, and this is {version()}"
            raise Unreadable(f"What was saved of this turn's programs is by {by}.{self._given()}\n{GONE}")
        return kept

    def _given(self) -> str:
        """What the program was told and can't use any more."""
        answers = [
            f"{a.raised.message!r} was answered {a.answer.value!r}"
            for i in self._state.inner
            for a in self._state.callbacks_of(i)
            if a.answer is not None and not a.raised.gate
        ]
        return f" While it ran: {'; '.join(answers)}." if answers else ""

    def _printed(self, text: str) -> None:
        """Called in the interpreter's thread, while nothing else looks at what was said."""
        kept = replace_surrogates(text[: self._room])
        self._room -= len(kept)
        self._left_out += len(text) - len(kept)
        if kept:
            self._said.append(kept)
            if self._number >= self._shown:
                self._loop.call_soon_threadsafe(self._context.show, kept)

    def _text(self, last: str) -> str:
        said = "".join(self._said)
        if self._left_out:
            said += f"\n… {self._left_out} characters left out: a program may print {self._bounds.output} …\n"
        if said and last and not said.endswith("\n"):
            said += "\n"
        return said + last or "done; it printed nothing, and its last line has no value"

    async def _end_calls(self) -> None:
        """End what the program started and did not wait for."""
        await self._cancel()
        for call_id, state in tuple(self._state.inner.items()):
            outer, _, number = call_id.rpartition(".")
            if state.result is None and outer == self._context.call_id:
                left = inner_step(
                    self._context, int(number), state.as_written.name, state.as_written.args, self._toolbox
                )
                left.end(cancelled(call_id, "the program that made it has ended"), "cancelled")

    async def _cancel(self) -> None:
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        if tasks:
            done, _ = await asyncio.wait(tasks.values(), timeout=GRACE)
            for task in done:
                if not task.cancelled():
                    task.exception()  # the program has failed with another one, or ended without this call

    async def _close(self) -> None:
        await self._cancel()
        await self._interpreter.close()


def _by_name(stop: Called, tool: Tool) -> tuple[dict[str, Any], int]:
    """The arguments of a call as a tool takes them, and their bytes; TypeError says what is wrong with them."""
    names = [*tool.schema["properties"]]
    if len(stop.args) > len(names):
        raise TypeError(f"{stop.name}() takes {len(names)} arguments and got {len(stop.args)}")
    args = dict(zip(names, stop.args, strict=False))
    twice = [name for name in stop.kwargs if name in args]
    if twice:
        raise TypeError(f"{stop.name}() got several values for {twice[0]!r}")
    try:
        made = plain(args | stop.kwargs, ARGUMENTS)
    except TooLarge as error:
        most = f"at most {ARGUMENTS} bytes of JSON, nested at most {DEPTH} levels deep"
        raise TypeError(f"{stop.name}() takes {most}: {error}") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{stop.name}() takes what JSON can hold: {error}") from None
    return made, len(msgspec.json.encode(made))


def shown_value(value: Any, most: int) -> str:
    """The last value as Python writes it, cut after `most` characters.

    Its parts are written one by one: a value that holds one text 400 times is small, and what Python writes is not.
    """
    if value is None:
        return ""
    try:
        problem = excess(value, most // 2)
        if "deep" in problem:
            return f"(a value that can't be shown: {problem})"
        made, size = list[str](), 0
        for piece in _pieces(value, most) if problem else [repr(value)]:
            made.append(piece)
            size += len(piece)
            if size > most:
                break
    except (ValueError, RecursionError) as error:
        return f"(a value that can't be shown: {error})"
    if not problem or size <= most:
        return replace_surrogates(_cut("".join(made), most))
    left = len(value) - most if isinstance(value, str) else "more"
    return replace_surrogates(f"{''.join(made)[:most]}… {left} characters left out …")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… {len(text) - most} characters left out …"


_BRACKETS: dict[Any, str] = {list: "[]", tuple: "()", set: "{}", dict: "{}"}


def _pieces(value: Any, most: int) -> Iterator[str]:
    """What Python writes of a value, part by part; of a text no more than could be shown."""
    kind = _type_of(value)
    if kind in (str, bytes):
        yield repr(value[: most + 1])
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
