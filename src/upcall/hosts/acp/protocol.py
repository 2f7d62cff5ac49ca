"""The messages of the protocol that an editor sends, as types. Wire names end here."""

from __future__ import annotations

from typing import Any

import msgspec

PROTOCOL_VERSION = 1


class _Params(msgspec.Struct, rename="camel", frozen=True):
    """Parameters of a request. Unknown keys, `_meta` among them, are ignored."""


class _FileSystem(_Params, frozen=True):
    read_text_file: Any = False
    write_text_file: Any = False


class _Elicitation(_Params, frozen=True):
    form: Any = None
    url: Any = None


class _ClientSession(_Params, frozen=True):
    compaction: Any = None
    notices: Any = None


class ClientCapabilities(_Params, frozen=True):
    """What an editor can do. A part that can't be read counts as missing."""

    fs: Any = None
    session: Any = None
    elicitation: Any = None
    subagents: Any = None


class Client(msgspec.Struct, frozen=True):
    """What an editor can do, as far as this agent uses it.

    reads, writes: text files, with what is not saved yet
    forms: dialogs with fields
    links: dialogs with a link
    notices: lines for the person that are not part of the conversation
    compaction: that a conversation was summarised
    subagents: sessions below a session
    """

    reads: bool = False
    writes: bool = False
    forms: bool = False
    links: bool = False
    notices: bool = False
    compaction: bool = False
    subagents: bool = False

    @classmethod
    def of(cls, given: ClientCapabilities) -> Client:
        """Return what is known of the editor's abilities."""
        files, dialogs, shown = (
            _lenient(given.fs, _FileSystem),
            _lenient(given.elicitation, _Elicitation),
            _lenient(given.session, _ClientSession),
        )
        return cls(
            reads=files.read_text_file is True,
            writes=files.write_text_file is True,
            forms=isinstance(dialogs.form, dict),
            links=isinstance(dialogs.url, dict),
            notices=isinstance(shown.notices, dict),
            compaction=isinstance(shown.compaction, dict),
            subagents=isinstance(given.subagents, dict),
        )


def _lenient(given: Any, kind: Any) -> Any:
    try:
        return msgspec.convert({} if given is None else given, kind)
    except msgspec.ValidationError:
        return kind()


class Initialize(_Params, frozen=True):
    """The first request of an editor."""

    protocol_version: int
    client_capabilities: Any = None
    client_info: Any = None

    @property
    def client(self) -> Client:
        """What the editor can do."""
        return Client.of(_lenient(self.client_capabilities, ClientCapabilities))


class NewSession(_Params, frozen=True):
    """The request for a new session."""

    cwd: str
    mcp_servers: list[dict[str, Any]] | None = None
    additional_directories: list[str] | None = None


class OpenSession(_Params, frozen=True):
    """The request to load or resume a session."""

    session_id: str
    cwd: str
    mcp_servers: list[dict[str, Any]] | None = None
    additional_directories: list[str] | None = None


class ListSessions(_Params, frozen=True):
    """The request for a page of sessions."""

    cwd: str | None = None
    cursor: str | None = None


class OneSession(_Params, frozen=True):
    """A request about one session."""

    session_id: str


class Prompt(_Params, frozen=True):
    """A message of the person."""

    session_id: str
    prompt: list[dict[str, Any]]


class SetMode(_Params, frozen=True):
    """The choice of a mode."""

    session_id: str
    mode_id: str


class SetConfigOption(_Params, frozen=True):
    """The choice of an option's value."""

    session_id: str
    config_id: str
    value: str | bool
