"""A callback's route as a small drawing, before the fact and after it.

May import: callbacks, routing.
"""

from __future__ import annotations

from upcall.callbacks import Callback
from upcall.routing import Route, plain, rows


def draw(route: Route, callback: Callback | None = None) -> str:
    """The route as a few lines: who is asked, who is skipped and why, where it ends and why.

    With the callback itself, what happened so far takes the place of what was planned.
    """
    stations = rows(route, callback.path if callback else ())
    if callback and callback.answer:
        stations.append(
            (callback.answer.by or "somebody", f"answered ({callback.answer.right or 'no right noted'})")
        )
    elif callback and callback.status != "open":
        stations.append(("nobody", f"the callback was {callback.status}"))
    else:
        stations.append(_last_row(route))
    width = max(len(name) for name, _ in stations)
    lines = [f"{route.asker} raises: {route.intent}, {route.kind}"]
    for index, (name, text) in enumerate(stations):
        branch = "└─" if index == len(stations) - 1 else "├─"
        lines.append(f"{branch} {name.ljust(width)}  {text}")
    lines += [f"   further with: {allow}" for allow in route.allow]
    lines += [f"   note: {note}" for note in route.notes]
    return "\n".join(plain(line) for line in lines)


def _last_row(route: Route) -> tuple[str, str]:
    if route.end == "person":
        return "the person", f"by {route.why}"
    means = "CallbackUnresolved" if route.unresolved == "raise" else "the asker gets None, and a warning is logged"
    return ("fail" if route.end == "fail" else "nobody"), f"{means}: {route.why}"
