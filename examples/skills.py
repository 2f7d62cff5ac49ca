"""Skills as a hook before the request: what a prompt mentions, the model is told about, once."""

import asyncio
from pathlib import Path

from upcall import Agent, Hooks, Message, Runtime, SessionAccess
from upcall.models import Script

Path("skills").mkdir()
Path("skills/tea.md").write_text("Water at 80 degrees, three minutes.")


def skills(session: SessionAccess, message: Message) -> None:
    for file in Path("skills").glob("*.md"):
        if file.stem in message.text.lower() and not session.get_context(f"shown {file.stem}"):
            session.add_message("system", f"{file.stem} (from {file}): {file.read_text()}")
            session.set_context(f"shown {file.stem}", True)


async def main() -> None:
    script = Script(lambda request: f"I know {len(request.messages) - 1} things more.")
    agent = Agent("cook", model=script, hooks=Hooks(pre_request=[skills]))
    async with Runtime(agents=[agent]) as runtime:
        session = await runtime.start(agent)
        print((await session.prompt("Make me some Tea.")).text)


asyncio.run(main())
