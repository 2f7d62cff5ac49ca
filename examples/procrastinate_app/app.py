"""Sessions as jobs of a Procrastinate application.

The log and Procrastinate's tables are in one PostgreSQL database:

    DATABASE_URL=postgresql://… python app.py
"""

import asyncio
import os

import procrastinate

from upcall import Agent, Request, Runtime
from upcall.engines import WorkerOptions
from upcall.engines.procrastinate import Procrastinate, tasks
from upcall.models import Script


def play(request: Request) -> str:
    return f"You said: {request.messages[-1].text}"


agent = Agent("echo", model=Script(play))


async def main(url: str) -> None:
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))
    async with Runtime(url, agents=[agent], hold=0) as runtime, app.open_async():
        await app.schema_manager.apply_schema_async()  # only in a new database
        app.add_tasks_from(tasks(runtime), namespace="upcall")
        engine = Procrastinate(app)
        await engine.prepare(runtime)
        session_id = await runtime.submit(agent, "hello")
        # A service runs until a signal sets the event, and leaves out `once`.
        await engine.run(runtime, asyncio.Event(), WorkerOptions(once=True))
        print((await runtime.load(session_id)).reply)


if __name__ == "__main__":
    asyncio.run(main(os.environ["DATABASE_URL"]))
