"""Tokens of servers that want OAuth: where they are, and who can read them. The conformance suite has the flows."""

from __future__ import annotations

import asyncio
import stat
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from mcp.shared.auth import OAuthToken

from upcall.links.mcp.config import OAuth, ServerConfig
from upcall.links.mcp.failures import ServerFailed
from upcall.links.mcp.oauth import TokenFile, oauth_for

URL = "https://mcp.example/mcp"


async def test_tokens_are_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    kept = TokenFile(str(tmp_path / "tokens"), URL)
    await kept.set_tokens(OAuthToken(access_token="s3cret"))

    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700
    again = await TokenFile(str(tmp_path / "tokens"), URL).get_tokens()
    assert again is not None
    assert again.access_token == "s3cret"
    assert await TokenFile(str(tmp_path / "tokens"), f"{URL}/other").get_tokens() is None


@pytest.mark.parametrize("spoil", ["readable by others", "a link", "not JSON"])
async def test_a_token_file_that_somebody_else_may_have_written_is_not_used(tmp_path: Path, spoil: str) -> None:
    kept = TokenFile(str(tmp_path), URL)
    await kept.set_tokens(OAuthToken(access_token="s3cret"))
    if spoil == "readable by others":
        kept.path.chmod(0o644)
    elif spoil == "not JSON":
        kept.path.write_text("{")
    else:
        moved = kept.path.rename(tmp_path / "elsewhere")
        kept.path.symlink_to(moved)

    assert await kept.get_tokens() is None


async def test_a_browser_that_comes_back_brings_the_code(tmp_path: Path) -> None:
    config = ServerConfig("one", url=URL, oauth=OAuth())

    async def authorize(server: str, link: str) -> None:
        back = parse_qs(urlsplit(link).query)["redirect_uri"][0]
        await asyncio.to_thread(urllib.request.urlopen, f"{back}?code=c0de&state=s7ate", None, 10)

    provider = oauth_for(config, str(tmp_path), authorize, lambda seconds: None)
    redirect = (provider.context.client_metadata.redirect_uris or [])[0]
    show, come_back = provider.context.redirect_handler, provider.context.callback_handler
    assert show is not None
    assert come_back is not None
    await show(f"https://login.example/?redirect_uri={redirect}")
    came = await come_back()

    assert (came.code, came.state) == ("c0de", "s7ate")


async def test_without_somebody_to_show_the_link_to_a_server_fails_and_says_what_to_do(tmp_path: Path) -> None:
    provider = oauth_for(ServerConfig("one", url=URL, oauth=OAuth()), str(tmp_path), None, lambda seconds: None)
    show = provider.context.redirect_handler
    assert show is not None

    with pytest.raises(ServerFailed, match="/mcp NAME"):
        await show("https://login.example/")
