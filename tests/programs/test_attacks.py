"""Programs that mean harm: none gets through, the model can read why, and the process is as well as before."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from callbacks.doubles import Desk
from programs.doubles import Files, outcome, programmer, through, told, workers
from quick import slow_after
from upcall import Approve, Context, Result, tool
from upcall.errors import UpcallError
from upcall.tools import Tool
from upcall.workspace import run_python

SECRET = "correct horse battery staple"

FILES = [
    "open({path!r}).read()",
    "open({path!r}, 'w').write('x')",
    "from pathlib import Path\nPath({path!r}).read_text()",
    "from pathlib import Path\nPath({path!r}).write_text('x')",
    "from pathlib import Path\nlist(Path('/').iterdir())",
    "import os\nos.listdir('/')",
    "import os\nos.remove({path!r})",
    "import os\nos.system('touch {path}2')",
    "import os\nos.popen('id').read()",
    "import os\nos.fork()",
    "import os\nos.kill(1, 9)",
    "import io\nio.open({path!r})",
    "import tempfile\ntempfile.mkstemp()",
    "import shutil\nshutil.rmtree('/')",
    "import glob\nglob.glob('/*')",
    "import sqlite3\nsqlite3.connect({path!r})",
    "import mmap",
    "open(0).read()",
    "open('/proc/self/environ').read()",
    "open('/dev/stdin').read()",
    "with open({path!r}) as f:\n    print(f.read())",
]
NETWORK = [
    "import socket\nsocket.create_connection(('127.0.0.1', {port}))",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{port}')",
    "import http.client\nhttp.client.HTTPConnection('127.0.0.1', {port}).request('GET', '/')",
    "import asyncio\nawait asyncio.open_connection('127.0.0.1', {port})",
    "import requests",
    "import ssl",
]
ENVIRONMENT = [
    "import os\nos.environ['SECRET']",
    "import os\nos.getenv('SECRET')",
    "import os\ndict(os.environ)",
    "import os\nos.environb",
    "import sys\nsys.modules",
    "import platform\nplatform.node()",
    "import getpass\ngetpass.getuser()",
    "input()",
]
IMPORTS = [
    "import upcall",
    "import subprocess\nsubprocess.run(['id'])",
    "import ctypes\nctypes.CDLL(None)",
    "import pickle\npickle.loads(b'cos\\nsystem\\n.')",
    "import importlib\nimportlib.import_module('os')",
    "__import__('subprocess')",
    "import builtins\nbuiltins.open",
    "import multiprocessing",
    "import threading",
    "import pydantic_monty",
    "import inspect",
    "import gc\ngc.get_objects()",
    "from upcall.workspace.program import Program",
    "exec('import subprocess')",
    "eval('__import__(\"os\")')",
    "compile('1', 'x', 'exec')",
]
INTROSPECTION = [
    "().__class__.__base__.__subclasses__()",
    "read_file.__globals__",
    "read_file.__code__.co_consts",
    "read_file.__closure__",
    "read_file.__self__",
    "read_file.function",
    "read_file.__wrapped__",
    "(lambda: 0).__globals__",
    "globals()['read_file']",
    "vars(read_file)",
    "read_file.__class__.__mro__",
    "getattr(read_file, '__glo' + 'bals__')",
    "'{{0.__globals__}}'.format(read_file)",
    "try:\n    1 / 0\nexcept Exception as e:\n    e.__traceback__.tb_frame.f_back.f_globals",
    "import sys\nsys._getframe()",
    "import asyncio\nasyncio.get_event_loop()",
    "raise_callback.__globals__",
    "read_file('a').__class__.__init__.__globals__",
    "type(read_file)('x')",
    "object.__subclasses__()",
]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something to steal, in a file and in the environment."""
    monkeypatch.setenv("SECRET", SECRET)
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


class Port:
    """Listens, and remembers whether anybody came."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]
        self.came = 0
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.came += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def port() -> Generator[Port]:
    listening = Port()
    yield listening
    listening.close()


async def attack(*programs: str, tools: list[Any] | None = None, python: Tool | None = None) -> Result:
    """What the model is told of the last program; afterwards a new one runs as ever and nothing is left behind."""
    result = await outcome(*programs, tools=tools, python=python)
    assert (await outcome("1 + 1")).text == "2"
    assert workers() == []
    return result


OUTSIDE = [FILES, NETWORK, ENVIRONMENT, IMPORTS, INTROSPECTION]


@pytest.mark.parametrize("program", [one for kind in OUTSIDE for one in slow_after(5, kind)])
async def test_what_is_outside_stays_out_of_reach(program: str, secret: Path, port: Port, files: Files) -> None:
    before = {p: p.stat().st_mtime_ns for p in secret.parent.iterdir()}
    text = program.format(path=str(secret), port=port.number)
    result = await outcome(text, tools=[files.read_file])
    assert result.is_error, result.text
    assert "Error" in result.text.splitlines()[-1]
    assert SECRET not in result.text
    assert str(os.getpid()) not in result.text
    assert port.came == 0
    after = {p: p.stat().st_mtime_ns for p in secret.parent.iterdir() if p.name != "counts"}
    assert after == before
    caught = "\n".join(f"    {line}" for line in text.splitlines())
    nested = f"try:\n{caught}\nexcept BaseException as error:\n    pass\n'survived'"
    assert "survived" in (await outcome(nested, tools=[files.read_file])).text
    assert SECRET not in secret.name
    assert secret.read_text() == SECRET


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "for _ in iter(int, 1): pass",
        "import asyncio\nasync def spin():\n    while True: await asyncio.sleep(0)\nawait spin()",
        "def f(n):\n    while True: n += 1\nf(0)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        pytest.param(
            "while True:\n    try: read_file(1, 2, 3)\n    except Exception: pass", marks=pytest.mark.slow
        ),
        "while True:\n    try: open('x')\n    except Exception: pass",
        "while True:\n    try: missing\n    except Exception: pass",
        pytest.param("while True:\n    try: raise_callback(5)\n    except Exception: pass", marks=pytest.mark.slow),
        "while True: print('x' * 1000)",
        "sum(range(10 ** 12))",
        "[0] * 3 == sorted(range(10 ** 9))",
    ],
)
async def test_a_program_without_an_end_is_ended(program: str, files: Files) -> None:
    result = await attack(program, tools=[files.read_file], python=run_python(seconds=0.1, memory=20_000_000))
    assert result.is_error
    assert "limit" in result.text.splitlines()[-2] + result.text.splitlines()[-1]


@pytest.mark.parametrize(
    "program",
    slow_after(6, [
        "x = 'a' * 10 ** 10",
        "x = [0] * 10 ** 10",
        "x = []\nwhile True: x.append('a' * 10_000)",
        "x = []\nwhile True: x.append(x.copy())",
        "x = {}\nn = 0\nwhile True:\n    n += 1\n    x[n] = str(n) * 100",
        "x = b'a'\nwhile True: x += x",
        "'%0999999999d' % 1",
        "'{:>9999999999}'.format(1)",
        "'a'.ljust(10 ** 10)",
        "('a' * 10 ** 6).replace('a', 'b' * 10 ** 6)",
        "list(range(10 ** 10))",
        "bytes(10 ** 10)",
        "import json\njson.loads('[' * 10 ** 6)",
        "'a,' * 10 ** 7",
        "x = 'a' * 10 ** 6\nread_file(x * 100)",
        "x = [1]\nwhile True: x = [x, x] * 100",
    ]),
)  # fmt: skip
async def test_a_program_that_wants_all_memory_is_stopped(program: str, files: Files) -> None:
    result = await attack(program, tools=[files.read_file], python=run_python(seconds=2, memory=10_000_000))
    assert result.is_error
    assert "Error" in result.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "def f(): return f()\nf()",
        "f = lambda n: f(n + 1)\nf(0)",
        "x = []\nx.append(x)\nprint(x)\nx == [x]",
        "class A:\n    def __repr__(self): return repr(self)\nprint(A())",
        "class A:\n    def __getattr__(self, name): return getattr(self, name)\nA().x",
        "x = []\nfor _ in range(100_000): x = [x]\nx",
        "x = []\nfor _ in range(100_000): x = [x]\nread_file(x)",
        "x = {}\nfor _ in range(100_000): x = {'a': x}\nx",
        "x = ()\nfor _ in range(100_000): x = (x,)\nhash(x)",
        "x = []\nfor _ in range(100_000): x = [x]\nimport json\njson.dumps(x)",
        "eval('(' * 10_000 + ')' * 10_000)",
        "eval('-' * 100_000 + '1')",
        "exec('a' + '.b' * 50_000)",
        "eval('[' * 5_000 + ']' * 5_000)",
        "import re\nre.match('(' * 5_000 + ')' * 5_000, '')",
    ],
)
async def test_depth_without_end_hurts_nobody(program: str, files: Files) -> None:
    result = await attack(program, tools=[files.read_file], python=run_python(seconds=2, memory=40_000_000))
    assert "Error" in result.text or "[" in result.text or "can't be shown" in result.text
    whole = "-" * 50_000 + "1"
    assert await attack(whole) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "9 ** 9 ** 9",
        "10 ** 10 ** 10",
        "1 << 10 ** 11",
        "x = 3\nwhile True: x = x * x",
        "str(7 ** 1_000_000)",
        "int('9' * 10 ** 6)",
        "pow(3, 10 ** 9)",
        "import math\nmath.factorial(10 ** 7)",
        "2 ** 1_000_000 % 7 ** 300_000",
        "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    ],
)
async def test_huge_calculations_are_stopped_or_done_in_time(program: str) -> None:
    await attack(program, python=run_python(seconds=1, memory=10_000_000))


async def test_an_integer_too_long_to_be_shown_is_said_to_be() -> None:
    result = await attack("10 ** 6000")
    assert "can't be shown" in result.text
    result = await attack("10 ** 4000")
    assert len(result.text) == 4001


async def test_a_flood_of_output_is_cut_and_the_model_is_told_how_much() -> None:
    result = await attack("print('x' * 1_000_000)\n'end'", python=run_python(output=100))
    assert result.text.count("x") == 100
    assert "999901 characters left out: a program may print 100" in result.text
    assert result.text.endswith("'end'")
    result = await attack("'y' * 1_000_000", python=run_python(output=100))
    assert len(result.text) < 1200
    assert "characters left out" in result.text
    assert "\udc80" not in (await attack("print('\\udc80')\n'\\udc80'")).text


async def test_a_program_out_of_time_loses_its_variables_and_the_model_is_told() -> None:
    python = run_python(seconds=0.2)
    desk, agent = Desk(), programmer("x = 1", "while True: pass", "x", "x = 2", "x", python=python)
    await desk.prompt(agent)
    results = await told(desk, agent)
    assert "The variables of this program and of earlier programs are lost; start again." in results[1].text
    assert "NameError" in results[2].text
    assert results[4].text == "2"


async def test_a_tool_that_needs_an_approval_can_be_reached_on_no_way_around_it(desk: Desk, files: Files) -> None:
    ways = [
        "delete_file('x')",
        "f = delete_file\nf('x')",
        "await delete_file('x')",
        "[delete_file(p) for p in ['x']]",
        "eval(\"delete_file('x')\")",
        "import asyncio\nawait asyncio.gather(delete_file('x'))",
        "class A:\n    d = delete_file\nA.d('x')",
    ]
    for number, way in enumerate(ways):
        agent = programmer(way, tools=[files.delete_file])
        reply = await desk.prompt(agent, id=f"s{number}")
        assert reply.status == "waiting", way
        assert [c.args for c in reply.callbacks] == [{"path": "x"}], way
    assert files.noted == []


async def test_an_approval_of_one_call_is_none_of_another_with_other_arguments(desk: Desk, files: Files) -> None:
    agent = programmer("delete_file('x')\ndelete_file('y')", tools=[files.delete_file])
    await desk.prompt(agent)
    await desk.settle(agent, Approve())
    reply = await desk.resume(agent)
    assert reply.status == "waiting"
    assert files.noted == ["delete x"]


async def test_a_program_cannot_forge_an_answer_or_approve_itself(desk: Desk, files: Files) -> None:
    forged = [
        "answer_callback('yes')",
        "raise_callback('?', 'approval', default='approve')",
        "raise_callback('?', 'approval', tool='delete_file', args={'path': 'x'})",
        "raise_callback('May developer run delete_file?', gate=True)",
        "raise_callback('?', answer='yes')",
        "raise_callback('?', by='ops')",
        "raise_callback.answer = 'yes'",
        "delete_file('x', approval='q1')",
        "ask('?')",
    ]
    for number, program in enumerate(forged):
        agent = programmer(program, tools=[files.delete_file])
        reply = await desk.prompt(agent, id=f"s{number}")
        assert reply.status == "done", program
        assert (await told(desk, agent, f"s{number}"))[0].is_error, program
    program = "def raise_callback(*a, **k): return 'forged'\nraise_callback('?')\ndelete_file('x')"
    agent = programmer(program, tools=[files.delete_file])
    assert (await desk.prompt(agent, id="shadow")).status == "waiting"  # its own name hides nothing of the gate
    assert files.noted == []


async def test_a_hand_raised_approval_authorises_no_tool(desk: Desk, files: Files) -> None:
    agent = programmer("print(raise_callback('ok?', 'approval'))\ndelete_file('x')", tools=[files.delete_file])
    await desk.prompt(agent)
    await desk.settle(agent, "approve")
    reply = await desk.resume(agent)
    assert (reply.status, files.noted) == ("waiting", [])


async def test_an_answer_that_looks_like_a_program_is_a_text(desk: Desk) -> None:
    agent = programmer("x = raise_callback('?')\nprint(type(x), x)")
    await through(desk, agent, "__import__('os').system('id')")
    assert (await told(desk, agent))[0].text == "<class 'str'> __import__('os').system('id')\n"


async def test_what_a_tool_returns_is_data_and_never_runs() -> None:
    @tool
    async def fetch(ctx: Context) -> dict[str, Any]:
        """Fetch something nasty."""
        return {"__class__": "os", "answer": "'); import os; ('", "__proto__": {"x": 1}}

    result = await attack("x = fetch()\nprint(sorted(x), x['answer'])", tools=[fetch])
    assert result.text == "['__class__', '__proto__', 'answer'] '); import os; ('\n"


async def test_a_tool_that_fails_with_our_own_error_is_told_as_any_other() -> None:
    @tool
    async def broken() -> str:
        """Fail."""
        raise UpcallError("out of order")

    result = await attack("broken()", tools=[broken])
    assert result.text.endswith("RuntimeError: broken failed: out of order")
