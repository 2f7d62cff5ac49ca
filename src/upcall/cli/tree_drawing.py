"""A drawing of a run tree: who worked for whom, who asked what, and who answered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from upcall.callbacks import Callback
from upcall.contracts import Row
from upcall.core.routing.answer import callback_of
from upcall.hosts.terminal.host import outcome_text
from upcall.observe.plain import one_line, plain, visible

if TYPE_CHECKING:
    from upcall.app import Runtime

_STEP_TEXTS = {"passed": "passed it up", "reworded": "reworded it and passed it up"}


async def draw_tree(runtime: Runtime, root: str, width: int = 80) -> list[str]:
    """Draw the tree of a root session, as lines."""
    rows = [row for row in await runtime.rows(session=root, limit=100_000) if row.kind != "side_turn"]
    held = await runtime.store.callbacks(root=root, limit=100_000)
    asked: dict[str, list[Callback]] = {}
    for one in held:
        asked.setdefault(one.raised.session, []).append(callback_of(one))
    children: dict[str, list[Row]] = {}
    steps = {row.id for row in rows if row.kind == "coordinator"}
    for row in sorted(rows, key=lambda row: (row.created if row.parent in steps else 0.0, _sort_key(row.id))):
        children.setdefault(row.parent, []).append(row)
    (top,) = [row for row in rows if row.id == root]
    return [_cut(line, width) for line in _draw(top, children, asked, "", "")]


def _sort_key(session_id: str) -> list[tuple[int, str]]:
    """Sort key for session ids by the numbers in them: parallel children start at the same time."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", session_id)]


def _draw(
    row: Row, children: dict[str, list[Row]], asked: dict[str, list[Callback]], first: str, bar: str
) -> list[str]:
    lines = [f"{first}{visible(row.agent)} · {row.status}"]
    below = children.get(row.id, [])
    for callback in asked.get(row.id, []):
        pipe = "│  " if below else "   "
        lines.append(f"{bar}{pipe}? {plain(callback.message)}")
        lines += [f"{bar}{pipe}  ↳ {step}" for step in _steps(callback)]
    for child in below:
        last = child is below[-1]
        lines += _draw(child, children, asked, bar + ("└─ " if last else "├─ "), bar + ("   " if last else "│  "))
    return lines


def _steps(callback: Callback) -> list[str]:
    steps = [
        f"{plain(step.agent)} {_STEP_TEXTS[step.step]}{f': {plain(step.reason)}' if step.reason else ''}"
        for step in callback.path
        if step.step in _STEP_TEXTS
    ]
    if callback.answer is not None:
        answer = callback.answer
        return [*steps, f"{plain(answer.by) or 'somebody'} ({plain(answer.right)}) {outcome_text(callback)}"]
    return [*steps, callback.status if callback.status != "open" else "waiting for a person"]


def _cut(line: str, width: int) -> str:
    """Cut a line to the screen, but keep its indentation."""
    bare = line.lstrip(" │├└─")
    indent = line[: len(line) - len(bare)]
    return indent + one_line(bare, max(width - len(indent), 20))
