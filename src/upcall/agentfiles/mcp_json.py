"""Read `mcp.json` beside agent files: the MCP servers that agents name under `mcp:`.

The file has the usual shape: `{"mcpServers": {"name": {"command": …}}}`. Reading it starts nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, cast

from upcall.agentfiles.sidecar import Problem, json_problem, key_lines
from upcall.core.error_texts import did_you_mean
from upcall.links.mcp.config import SERVERS, ServerConfig, read_server, server_problems
from upcall.safety.bounds import brief
from upcall.safety.small_files import read_small

NAME = "mcp.json"
_SERVERS, _WAIT = "mcpServers", "wait"
_TOP = (_SERVERS, _WAIT)
_MAX_BYTES, _LONGEST_WAIT = 200_000, 60.0


class ServersFile(NamedTuple):
    """The servers of a folder, how long model calls wait for them, and every mistake in the file."""

    path: str = ""
    servers: Mapping[str, ServerConfig] = {}
    wait: float | None = None
    problems: tuple[Problem, ...] = ()


def read_servers_file(folder: Path) -> ServersFile:
    """Return the servers that `mcp.json` in a folder describes; none where there is no such file."""
    path = folder / NAME
    try:
        text = read_small(path, _MAX_BYTES).decode("utf-8-sig")
        given = json.loads(text)
    except FileNotFoundError:
        return ServersFile()
    except OSError as error:
        return _failed(path, 0, f"can't be read: {error.strerror}")
    except UnicodeDecodeError:
        return _failed(path, 1, "this is not UTF-8 text")
    except json.JSONDecodeError as error:
        return _failed(path, error.lineno, json_problem(error))
    except (ValueError, RecursionError) as error:
        return _failed(path, 1, f"this JSON can't be read: {error}")
    if not isinstance(given, dict):
        return _failed(path, 1, f'must be an object such as {{"{_SERVERS}": {{…}}}}, not {brief(given)}')
    return _read(path, cast("dict[str, Any]", given), key_lines(text))


def _failed(path: Path, line: int, text: str) -> ServersFile:
    return ServersFile(str(path), problems=(Problem(str(path), line, "", text),))


def _read(path: Path, given: dict[str, Any], lines: Mapping[str, int]) -> ServersFile:
    problems = [Problem(str(path), lines.get(key, 1), key, text) for key, text in _top_problems(given)]
    described: Any = given.get(_SERVERS, {})
    servers: dict[str, ServerConfig] = {}
    for name, one in cast("Mapping[str, Any]", described if isinstance(described, dict) else {}).items():
        wrong = list(server_problems(name, one))
        for key, text in wrong:
            at = f"{_SERVERS}.{name}.{key}" if key else f"{_SERVERS}.{name}"
            problems.append(Problem(str(path), lines.get(at, lines.get(f"{_SERVERS}.{name}", 1)), at, text))
        if not wrong:
            servers[name] = _placed(read_server(name, one), path.parent)
    wait = given.get(_WAIT)
    return ServersFile(str(path), servers, wait if not problems else None, tuple(problems))


def _placed(config: ServerConfig, folder: Path) -> ServerConfig:
    """Return the description with its folder relative to the file."""
    return config.replace(cwd=str(folder.absolute() / config.cwd)) if config.cwd else config


def _top_problems(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in given:
        if key not in _TOP:
            meant = f" Did you mean {_SERVERS}?" if key == "servers" else did_you_mean(key, _TOP)
            yield key, f"unknown key; allowed are {', '.join(_TOP)}.{meant}"
    servers, wait = given.get(_SERVERS, {}), given.get(_WAIT)
    if not isinstance(servers, dict):
        yield _SERVERS, f"must map names to servers, not {brief(servers)}"
    elif len(cast("dict[str, Any]", servers)) > SERVERS:
        yield _SERVERS, f"describes more than {SERVERS} servers"
    if wait is not None and not (type(wait) in (int, float) and 0 < wait <= _LONGEST_WAIT):
        yield _WAIT, f"must be seconds above 0 and at most {_LONGEST_WAIT:g}, not {brief(wait)}"


def server_warnings(file: ServersFile, used: Sequence[str]) -> Iterator[Problem]:
    """Yield what will keep servers that agents use from starting: a package or variables that are missing."""
    if used and find_spec("mcp") is None:
        text = "MCP needs more packages; install them with: pip install 'upcall[mcp]'"
        yield Problem(file.path, 0, "", text, "warning")
    for name in used:
        config = file.servers.get(name)
        missing = [one for one in config.variables if one not in os.environ] if config is not None else []
        if missing:
            text = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set in this environment"
            yield Problem(file.path, 0, f"{_SERVERS}.{name}", text, "warning")


def unknown_server(name: str, file: ServersFile, described: Sequence[str]) -> str:
    """Return the text for a server that an agent names and that is not described."""
    if not file.path:
        return f"there is no MCP server called {name!r}, because there is no {NAME} beside the agent file"
    known = ", ".join(described) or "none"
    meant = did_you_mean(name, described)
    return f"{NAME} describes no server called {name!r}; known servers: {known}{f'.{meant}' if meant else ''}"
