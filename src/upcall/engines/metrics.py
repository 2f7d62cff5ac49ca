"""Counts of what a worker did, and a small HTTP server that shows them to Prometheus.

The labels are the names of agents and of outcomes. The number of agents is bounded, because a worker has only so
many; what is beyond the bound is counted as `other`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from upcall.core.runtime.worker import Segment
from upcall.events import ModelFailed, ModelStarted, Responded

_MOST_LABELS = 200
_REQUEST_SECONDS = 5.0
_MOST_REQUEST = 8192
_MOST_CONNECTIONS = 20
_BUCKETS = (0.1, 1.0, 10.0, 60.0, 600.0)

_ABOUT = {
    "upcall_sessions": ("gauge", "Root sessions by status."),
    "upcall_ready": ("gauge", "Run trees that are ready to continue; at most 1000 are counted."),
    "upcall_oldest_ready_seconds": ("gauge", "How long ago the oldest ready run tree last changed."),
    "upcall_running": ("gauge", "Turns that this worker runs now."),
    "upcall_segments_total": ("counter", "Segments that this worker ended, by agent and outcome."),
    "upcall_takeovers_total": ("counter", "Run trees that this worker took over from one that died."),
    "upcall_model_calls_total": ("counter", "Model calls that this worker began."),
    "upcall_model_errors_total": ("counter", "Model calls that failed."),
    "upcall_tokens_total": ("counter", "Tokens, by direction."),
    "upcall_segment_seconds": ("histogram", "How long segments took."),
}

Labels = tuple[tuple[str, str], ...]


class WorkerMetrics:
    """Counts what a worker does. `segment` and `event` are called with what happens."""

    def __init__(self, store: Any, running: Callable[[], int]) -> None:
        """`running` returns how many turns run here now."""
        self._store, self._running = store, running
        self._counts: Counter[tuple[str, Labels]] = Counter()
        self._agents: set[str] = set()
        self._seconds: list[int] = [0] * (len(_BUCKETS) + 1)
        self._total_seconds = 0.0
        self.is_ready = False

    def segment(self, segment: Segment) -> None:
        """Count a segment that ended."""
        self._add("upcall_segments_total", agent=self._agent(segment.agent), outcome=segment.outcome)
        if segment.taken_over:
            self._add("upcall_takeovers_total")
        place = next((at for at, most in enumerate(_BUCKETS) if segment.seconds <= most), len(_BUCKETS))
        self._seconds[place] += 1
        self._total_seconds += segment.seconds

    def event(self, event: Any) -> None:
        """Count an event of a turn that runs here."""
        match event:
            case ModelStarted():
                self._add("upcall_model_calls_total")
            case ModelFailed():
                self._add("upcall_model_errors_total")
            case Responded():
                self._add("upcall_tokens_total", event.usage.input_tokens, direction="input")
                self._add("upcall_tokens_total", event.usage.output_tokens, direction="output")
            case _:
                pass

    def _add(self, name: str, count: int = 1, **labels: str) -> None:
        self._counts[name, tuple(labels.items())] += count

    def _agent(self, agent: str) -> str:
        if agent not in self._agents and len(self._agents) >= _MOST_LABELS:
            return "other"
        self._agents.add(agent)
        return agent

    async def text(self) -> str:
        """Return everything in the text format of Prometheus."""
        now = self._store.now()
        ready = await self._store.unfinished(1000)
        values: dict[tuple[str, Labels], float] = dict(self._counts)
        for status, count in (await self._store.counts()).items():
            values["upcall_sessions", (("status", status),)] = count
        values["upcall_ready", ()] = len(ready)
        values["upcall_oldest_ready_seconds", ()] = max((now - row.updated for row in ready), default=0.0)
        values["upcall_running", ()] = self._running()
        lines: list[str] = []
        for name, (kind, about) in _ABOUT.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
            if kind == "histogram":
                lines += self._histogram(name)
            lines += [f"{name}{_labels(dict(of))} {value:g}" for (one, of), value in values.items() if one == name]
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str) -> list[str]:
        below, lines = 0, list[str]()
        for most, count in zip((*map(str, _BUCKETS), "+Inf"), self._seconds, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{most}"}} {below}')
        return [*lines, f"{name}_sum {self._total_seconds:g}", f"{name}_count {below}"]

    # --- HTTP -----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def served(self, host: str, port: int) -> AsyncGenerator[int]:
        """Serve /healthz, /readyz and /metrics until the end of the block; gives the port."""
        open_now = asyncio.Semaphore(_MOST_CONNECTIONS)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
                if not open_now.locked():
                    async with open_now, asyncio.timeout(_REQUEST_SECONDS):
                        head = await reader.readuntil(b"\r\n\r\n")
                        writer.write(await self._response(head))
                        await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, host, port, limit=_MOST_REQUEST)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _http(405, "only GET is allowed\n")
        if path == b"/healthz":
            return _http(200, "ok\n")
        if path == b"/readyz":
            return _http(200, "ready\n") if self.is_ready else _http(503, "not ready\n")
        if path == b"/metrics":
            return _http(200, await self.text())
        return _http(404, "there are /healthz, /readyz and /metrics\n")


def _labels(labels: Mapping[str, str]) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}" if labels else ""


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def _http(status: int, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
