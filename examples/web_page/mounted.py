"""Upcall's page inside a FastAPI service, with the agents of `examples/web_service`.

Run it with that folder on the path: PYTHONPATH=../web_service uvicorn mounted:service --port 8000.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from fastapi import FastAPI
from refunds import manager
from starlette.requests import Request

import upcall.web
from upcall import Runtime

PEOPLE = {"key-of-ops": "ops", "key-of-support": "support"}  # a real service has accounts
runtime = Runtime("work.db", agents=[manager])


async def authenticate(request: Request) -> str | None:
    return PEOPLE.get(request.headers.get("x-key", ""))


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with runtime, asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.work())  # continues what was answered, whichever process asked
        yield
        await runtime.close(drain=20)  # calls under way may end; another process resumes the rest


service = FastAPI(lifespan=lifespan)


@service.get("/health")
async def health() -> dict[str, int]:
    return {"waiting": len(await runtime.inbox())}


service.mount("/agents", upcall.web.app(runtime, authenticate, index="work.db-index"))
