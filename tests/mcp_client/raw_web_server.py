"""A server at an address that answers a call with whatever a file says: raw_web_server.py PORT FORM FILE.

The forms of its answer: one_event; lines, with a line of data for each value; after_comment, where a comment and an
id open a quotation mark; returns, whose lines end with a carriage return; charset, which claims another encoding;
compressed; whole, an answer in one piece. Each stream begins with a notification.
"""

from __future__ import annotations

import gzip
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

port, form, file = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "soon"}}


def event(message: Any) -> str:
    """One event of a stream."""
    lines = json.dumps(message, indent=0 if form == "lines" else None).split("\n")
    before = ': "\nid: "\n' if form == "after_comment" else "event: message\n"
    return before + "".join(f"data: {line}\n" for line in lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        about: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        match message.get("method"):
            case "initialize":
                self.answer(message, {**about, "serverInfo": {"name": "raw", "version": "1"}})
            case "tools/list":
                self.answer(message, {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]})
            case "tools/call":
                self.say(message, json.loads(file.read_text()))
            case _ if "id" in message:
                self.answer(message, None)
            case _:
                self.send("", 202)

    def do_GET(self) -> None:
        self.send("", 405)

    def answer(self, message: dict[str, Any], result: Any) -> None:
        what = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Not found"}}
        self.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], **what}), kind="application/json")

    def say(self, message: dict[str, Any], result: Any) -> None:
        if form == "whole":
            self.answer(message, result)
            return
        text = event(NOTE) + event({"jsonrpc": "2.0", "id": message["id"], "result": result})
        charset = "; charset=cp037" if form == "charset" else ""
        self.send(text.replace("\n", "\r") if form == "returns" else text, kind=f"text/event-stream{charset}")

    def send(self, text: str, status: int = 200, kind: str = "text/plain") -> None:
        stream = kind.startswith("text/event-stream")
        body = text.encode("cp037" if "charset" in kind else "utf-8")
        body = gzip.compress(body) if stream and form == "compressed" else body
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if stream and form == "compressed":
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
