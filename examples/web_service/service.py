"""A web service whose agents ask back: uvicorn service:app --port 8000 --timeout-graceful-shutdown 2."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from refunds import manager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from upcall import Delta, Runtime, SessionExists, UnknownCallback, UnknownSession, UpcallError
from upcall.events import AnyEvent


async def sessions(request: Request) -> Response:  # POST starts a session, GET watches one
    runtime, session_id, body = request.state.runtime, request.path_params["id"], await request.body()
    if request.method == "POST":
        with contextlib.suppress(SessionExists):  # a client whose connection broke may send it again
            await runtime.start("manager", session_id)
    session = await runtime.load(session_id)
    if session.status == "idle" and body:
        return StreamingResponse(encode(session.stream(body.decode()), session_id), media_type="text/event-stream")
    items = runtime.events(session_id, int(request.headers.get("Last-Event-ID", 0)), follow=True)
    return StreamingResponse(encode(items, session_id), media_type="text/event-stream")


async def encode(items: AsyncIterator[AnyEvent | Delta], session_id: str) -> AsyncIterator[str]:
    async for item in items:  # a client that leaves does not cancel the turn
        number = f"id: {item.seq}\n" if item.type != "delta" and item.session == session_id else ""
        yield f"{number}event: {item.type}\ndata: {msgspec.json.encode(item).decode()}\n\n"
        if number and item.type == "turn_ended":
            break


async def inbox(request: Request) -> Response:  # GET lists what waits for a person, POST answers it
    if request.method == "POST":
        given = await request.json()
        await request.state.runtime.answer(given["id"], given["value"], by=given["by"])
    return Response(msgspec.json.encode(await request.state.runtime.inbox()), media_type="application/json")


async def refuse(request: Request, error: Exception) -> Response:
    return Response(str(error), 404 if isinstance(error, UnknownSession | UnknownCallback) else 409)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, Runtime]]:
    async with Runtime("work.db", agents=[manager]) as runtime, asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.work())  # resumes what is ready, whichever process left it
        yield {"runtime": runtime}
        await runtime.close(drain=20)  # calls under way may end; another process resumes the rest


paths = {"/sessions/{id}": sessions, "/inbox": inbox}
routes = [Route(path, handler, methods=["GET", "POST"]) for path, handler in paths.items()]
app = Starlette(routes=routes, exception_handlers={UpcallError: refuse}, lifespan=lifespan)
