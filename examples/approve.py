"""Calls that need an approval: one is approved with other arguments, one is rejected with a reason.

The host is whatever stands between the runtime and a person. This one answers by itself.
"""

import asyncio

from upcall import Agent, Approve, Callback, Reject, Runtime, tool
from upcall.models import Script, call

deleted: list[str] = []


def is_risky(folder: str) -> bool:
    """A rule gets the arguments it names."""
    return not folder.startswith("tmp/")


@tool(needs_approval=is_risky)
def delete_folder(folder: str, older_than_days: int = 0) -> str:
    """Delete a folder."""
    deleted.append(f"{folder} ({older_than_days} days)")
    return f"deleted what is older than {older_than_days} days in {folder}"


class Careful:
    """A host: it is asked, and it is told when a question was settled elsewhere."""

    async def ask(self, callback: Callback) -> Approve | Reject | None:
        print(f"May {callback.agent} run {callback.tool} with {callback.args}?")
        assert callback.args is not None
        if callback.args["folder"] == "logs":
            return Approve(args={"folder": "logs", "older_than_days": 30})
        return Reject("nobody deletes that folder")

    def withdraw(self, callback_id: str, reason: str) -> None:
        print("no longer needed:", callback_id, reason)


agent = Agent(
    "cleaner",
    model=Script(
        [
            [call("delete_folder", folder=name) for name in ("tmp/a", "logs", "photos")],
            lambda request: "\n".join(result.text for result in request.messages[-1].results),
        ]
    ),
    tools=[delete_folder],
)


async def main() -> None:
    async with Runtime(":memory:", agents=[agent], host=Careful()) as runtime:
        session = await runtime.start(agent)
        reply = await session.prompt("Make some room.")
        print(reply.text)
        assert sorted(deleted) == ["logs (30 days)", "tmp/a (0 days)"]
        assert "rejected by user: nobody deletes that folder" in reply.text


if __name__ == "__main__":
    asyncio.run(main())
