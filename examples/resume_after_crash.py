"""A process is killed in the middle of a turn; another one goes on, and nothing that had finished runs again.

The program starts itself as a second process, waits until that one is inside its second tool, and kills it.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from upcall import Agent, Request, Runtime, tool
from upcall.models import Script, call
from upcall.models.script import Plain

HERE = Path(__file__).resolve()


def agent_in(folder: Path) -> Agent:
    """The same agent for both processes; its tools leave a mark outside the log."""

    def note(line: str) -> None:
        with (folder / "effects.txt").open("a") as file:
            file.write(line + "\n")

    @tool
    def build() -> str:
        """Build the package."""
        note("built")
        return "built"

    @tool
    def upload() -> str:
        """Upload the package."""
        note("upload began")
        time.sleep(60)  # the process is killed in here
        return "uploaded"

    @tool(repeatable=True)
    def check_upload() -> str:
        """See whether the package is there."""
        note("checked")
        return "it is not there"

    def play(request: Request) -> Plain:
        results = [result.text for message in request.messages for result in message.results]
        steps: list[Plain] = [call("build"), call("upload"), call("check_upload")]
        return steps[len(results)] if len(results) < len(steps) else f"The upload: {results[1]}"

    return Agent("packer", model=Script(play), tools=[build, upload, check_upload])


async def work(folder: Path) -> None:
    async with Runtime(folder / "log.db", agents=[agent_in(folder)]) as runtime:
        session = await runtime.start("packer", id="release")
        await session.prompt("Build and upload the package.")


async def go_on(folder: Path) -> str:
    async with Runtime(folder / "log.db", agents=[agent_in(folder)]) as runtime:
        print("status after the kill:", await runtime.status("release"))
        return (await runtime.resume("release")).text


def main(folder: Path) -> None:
    effects = folder / "effects.txt"
    process = subprocess.Popen([sys.executable, str(HERE), str(folder)])
    while not (effects.exists() and "upload began" in effects.read_text()):
        assert process.poll() is None, "the other process ended by itself"
        time.sleep(0.02)
    process.kill()
    process.wait()
    text = asyncio.run(go_on(folder))
    print(text)
    print(effects.read_text())
    assert "interrupted, outcome unknown" in text  # the model was told, and it looked before doing more
    assert effects.read_text().split("\n")[:-1] == ["built", "upload began", "checked"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
