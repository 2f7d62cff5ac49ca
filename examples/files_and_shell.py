"""An agent that finds a mistake in a folder, mends it and runs it; the shell leaves nothing behind."""

from pathlib import Path

import upcall
from upcall import Agent
from upcall.models import Script, call
from upcall.workspace import Folder, file_tools, shell

project = Path("project")
project.mkdir(exist_ok=True)
(project / "greet.py").write_text("print('helo')\n")

coder = Agent(
    "coder",
    model=Script(
        [
            call("grep", pattern="helo"),
            call("read_file", path="/greet.py"),
            call("edit_file", path="/greet.py", old_string="helo", new_string="hello"),
            call("shell", command="python3 greet.py"),
            lambda request: f"It says: {request.messages[-1].results[0].text}",
        ]
    ),
    kit=[file_tools(), shell(seconds=20)],
    workspace=Folder(project),
)

print(upcall.run(coder, "The greeting is misspelt.").text)
