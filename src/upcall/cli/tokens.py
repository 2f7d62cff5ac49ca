"""The command `tokens`: give people tokens with roles, list and revoke them."""

from __future__ import annotations

import argparse
from typing import Any

from upcall.cli.identity import principal_for, token_option
from upcall.cli.options import Commands, json_option, subcommand
from upcall.cli.output import dump, local_time, report_no_log, say, table, tell
from upcall.cli.places import has_log, open_log, runtime_for, view_log
from upcall.errors import SetupError
from upcall.observe.plain import visible
from upcall.tokens import NAME_RULE, ROLE_TEXTS, ROLES, Token, check_name, digest_of, new_token


def add(commands: Commands) -> None:
    """Add the command `tokens`."""
    roles = "\n".join(f"  {role:<10}{text}" for role, text in ROLE_TEXTS.items())
    parser = commands.add(
        "tokens",
        "manage the tokens with which people act under their own names",
        _no_subcommand,
        about="`upcall serve`, `upcall mcp --http` and the commands with --token-file accept tokens.\n"
        "The log stores each action under the name of its token. Each token has a role:\n"
        f"\n{roles}\n\n"
        "People who can write to the log's file or database need no token.\n"
        "Subcommands: new NAME, list, revoke NAME.",
        examples=[
            "upcall tokens new ada --role answerer",
            "upcall tokens list --json",
            "upcall tokens revoke ada",
        ],
    )
    sub = parser.add_subparsers(metavar="new | list | revoke")
    made = subcommand(
        sub,
        "new",
        "make a token and print it",
        _new,
        about="The token is printed on stdout, only this once: the log keeps a digest of it.\n"
        f"For NAME, {NAME_RULE}.",
        examples=["upcall tokens new ada --role answerer > ada.token"],
    )
    made.add_argument("name", metavar="NAME", help="whose token it is; answers are logged under this name")
    made.add_argument("--role", metavar="ROLE", choices=ROLES, required=True, help=f"one of {', '.join(ROLES)}")
    token_option(made)
    listed = subcommand(sub, "list", "list tokens, revoked ones too", _list, examples=["upcall tokens list --json"])
    json_option(listed)
    ended = subcommand(
        sub,
        "revoke",
        "make a token invalid",
        _revoke,
        about="Within a second, running servers refuse it and close the connections that use it.\n"
        "The log keeps its name, and a new token may have the same one.",
        examples=["upcall tokens revoke ada"],
    )
    ended.add_argument("name", metavar="NAME", help="the name of the token")
    token_option(ended)


def _no_subcommand(args: argparse.Namespace) -> int:
    raise SetupError("give a subcommand: upcall tokens new NAME --role ROLE, list, or revoke NAME")


async def _new(args: argparse.Namespace) -> int:
    name, token = check_name(args.name), new_token()
    async with runtime_for(args) as runtime:
        await principal_for(args, runtime.store, "operator", "tokens new", name)
        await runtime.store.add_token(Token(name, args.role, digest_of(token)))
    tell(f"The token of {name} with the role {args.role}. It is shown only now; keep it secret:")
    say(token)
    return 0


async def _list(args: argparse.Namespace) -> int:
    if not has_log(args):
        args.ids = False
        return report_no_log(args, "so there are no tokens", lists=True)
    async with view_log(args) as runtime:
        tokens = await runtime.store.tokens()
    if args.json:
        dump([_json(one) for one in tokens])
    elif not tokens:
        say("No tokens yet. Make one: upcall tokens new NAME --role ROLE")
    else:
        table(("NAME", "ROLE", "MADE", "REVOKED"), [_row(one) for one in tokens])
    return 0


def _json(token: Token) -> dict[str, Any]:
    return {"name": token.name, "role": token.role, "created": token.created, "revoked": token.revoked}


def _row(token: Token) -> list[str]:
    revoked = local_time(token.revoked) if token.revoked is not None else "-"
    return [visible(token.name), visible(token.role), local_time(token.created), revoked]


async def _revoke(args: argparse.Namespace) -> int:
    async with open_log(args) as runtime:
        await principal_for(args, runtime.store, "operator", "tokens revoke", args.name)
        await runtime.store.revoke_token(args.name)
    tell(f"revoked the token of {visible(args.name)}")
    return 0
