"""Two drawings of results.json, as SVG by hand: bars per peer, and growth over a session's turns."""

from __future__ import annotations

import math
import statistics
from html import escape

WIDTH = 860
BARS = {"W1": "a turn", "W2": "a turn with hooks", "W3": "ask and answer", "W7": "a subagent"}
COLOURS = ["#4e79a7", "#59a14f", "#9c755f", "#b07aa1", "#edc948", "#76b7b2", "#ff9da7", "#f28e2b", "#bab0ac"]
OURS = "#d62728"
FLOOR = "#7f7f7f"
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.h{font-weight:600;font-size:14px}.s{fill:#666;font-size:11px}"
    ".g{stroke:#ddd;stroke-width:1}.e{text-anchor:end}.m{text-anchor:middle}"
)


def colours(names: list[str]) -> dict[str, str]:
    """A fixed colour per peer: ours stands out, the floor stays back."""
    plain = iter(COLOURS * 2)
    return {n: OURS if n == "upcall" else FLOOR if n == "bare-loop" else next(plain) for n in names}


def picture(height: float, title: str, parts: list[str]) -> str:
    """The parts on white, so that they read on a dark page too."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            f'aria-label="{escape(title)}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
            f'<text class="h" x="16" y="24">{escape(title)}</text>',
            *parts,
            "</svg>\n",
        ]
    )


class Log:
    """A logarithmic axis from one whole power of ten to another."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.start, self.end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [10.0**n for n in range(self.low, self.high + 1)]


def short(us: float) -> str:
    """Microseconds in a readable unit."""
    for limit, divisor, unit in ((1e3, 1, "µs"), (1e6, 1e3, "ms"), (math.inf, 1e6, "s")):
        if us < limit:
            return f"{us / divisor:.3g} {unit}"
    return ""


def bars(res: dict, names: list[str]) -> str | None:
    """CPU time of the quick workloads per peer, shortest bar first, on one logarithmic scale."""
    got: dict[str, dict[str, float]] = {}
    for w in BARS:
        by: dict[str, list[float]] = {}
        for d in res["runs"]:
            if d["workload"] == w and "cpu_us" in d:
                by.setdefault(d["peer"], []).append(d["cpu_us"])
        if by:
            got[w] = {p: statistics.median(v) for p, v in by.items()}
    if not got:
        return None
    ink = colours(names)
    scale = Log([v for ms in got.values() for v in ms.values()], 150, WIDTH - 90)
    parts, y = [], 58.0
    for w, ms in got.items():
        parts.append(f'<text x="16" y="{y:.0f}"><tspan font-weight="600">{w}</tspan> {BARS[w]}</text>')
        y += 8
        for p, us in sorted(ms.items(), key=lambda item: item[1]):
            end = max(scale.at(us), scale.start + 1)
            parts.append(f'<text class="e" x="144" y="{y + 12:.0f}">{escape(p)}</text>')
            parts.append(
                f'<rect x="150" y="{y + 2:.0f}" width="{end - 150:.1f}" height="12" rx="2" fill="{ink[p]}">'
                f"<title>{escape(p)}: {short(us)}</title></rect>"
            )
            parts.append(f'<text class="s" x="{end + 5:.1f}" y="{y + 12:.0f}">{short(us)}</text>')
            y += 17
        y += 26
    grid = []
    for tick in scale.ticks():
        x = scale.at(tick)
        grid.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="44" y2="{y - 22:.0f}"/>')
        grid.append(f'<text class="s m" x="{x:.1f}" y="{y - 6:.0f}">{short(tick)}</text>')
    return picture(y + 8, "CPU time, logarithmic: shorter is better", grid + parts)


def growth_points(d: dict) -> list[tuple[int, float]]:
    """(turn, CPU milliseconds) of one W4 run: its series, or the four marks."""
    if "cpu_us_series" in d:
        return [(turn, us / 1000) for turn, us in d["cpu_us_series"] if us > 0]
    marks = [(t, d.get(f"cpu_us_at_{t}")) for t in (10, 100, 500, 1000)]
    return [(t, us / 1000) for t, us in marks if us]


def growth(res: dict, names: list[str]) -> str | None:
    """CPU time a turn as one session grows to 1,000 turns, one line per peer."""
    lines = {}
    for d in res["runs"]:
        if d["workload"] == "W4" and "turns" in d and (points := growth_points(d)):
            lines[d["peer"]] = points
    if not lines:
        return None
    ink = colours(names)
    top, bottom, left, right = 44.0, 380.0, 70.0, WIDTH - 150.0
    last = max(t for points in lines.values() for t, _ in points)
    across = lambda turn: left + (right - left) * turn / last  # noqa: E731
    scale = Log([ms for points in lines.values() for _, ms in points], bottom, top)
    parts = []
    for tick in scale.ticks():
        y = scale.at(tick)
        parts.append(f'<line class="g" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="s e" x="{left - 6}" y="{y + 4:.1f}">{short(tick * 1000)}</text>')
    for turn in range(0, last + 1, max(1, last // 5)):
        parts.append(f'<text class="s m" x="{across(turn):.1f}" y="{bottom + 18:.0f}">{turn:,}</text>')
    parts.append(
        f'<text class="s m" x="{(left + right) / 2:.0f}" y="{bottom + 36:.0f}">turns in the session</text>'
    )
    label_y = top - 14
    for p, points in sorted(lines.items(), key=lambda item: -item[1][-1][1]):
        path = " ".join(f"{across(t):.1f},{scale.at(ms):.1f}" for t, ms in points)
        width = 3 if p == "upcall" else 1.5
        parts.append(f'<polyline points="{path}" fill="none" stroke="{ink[p]}" stroke-width="{width}"/>')
        end_x, end_y = across(points[-1][0]), scale.at(points[-1][1])
        label_y = max(end_y + 4, label_y + 15)
        parts.append(
            f'<line x1="{end_x + 3:.1f}" y1="{end_y:.1f}" x2="{right + 20:.1f}" y2="{label_y - 4:.1f}" '
            f'stroke="{ink[p]}" stroke-width="0.7"/>'
        )
        parts.append(f'<text x="{right + 24:.1f}" y="{label_y:.1f}">{escape(p)}</text>')
    height = max(bottom + 50, label_y + 20)
    return picture(height, "W4: CPU time a turn as one session grows (logarithmic)", parts)
