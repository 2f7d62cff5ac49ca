/** Server-sent events over fetch, because EventSource can't send a key. */

import { ApiError, address, headers } from "./api";

export interface StreamEvent {
  name: string;
  id: string;
  data: string;
}

/** Turn the text of a stream into its events. Lines may be split anywhere between chunks. */
export class StreamParser {
  private rest = "";
  private name = "";
  private id = "";
  private data: string[] = [];

  push(chunk: string): StreamEvent[] {
    const found: StreamEvent[] = [];
    // Only what is new is split: a large event comes in many chunks.
    const lines = chunk.split("\n");
    lines[0] = this.rest + (lines[0] ?? "");
    this.rest = lines.pop() ?? "";
    for (const raw of lines) {
      const text = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (text === "") {
        if (this.data.length) found.push({ name: this.name || "message", id: this.id, data: this.data.join("\n") });
        this.name = "";
        this.id = "";
        this.data = [];
      } else if (!text.startsWith(":")) {
        const colon = text.indexOf(":");
        const field = colon < 0 ? text : text.slice(0, colon);
        const value = colon < 0 ? "" : text.slice(colon + (text[colon + 1] === " " ? 2 : 1));
        if (field === "data") this.data.push(value);
        else if (field === "event") this.name = value;
        else if (field === "id") this.id = value;
      }
    }
    return found;
  }
}

const SILENCE = 40_000;

/** Read one stream until it ends. A stream that is silent for too long counts as ended: the server pings. */
export async function read(path: string, signal: AbortSignal, on: (event: StreamEvent) => void): Promise<void> {
  const stop = new AbortController();
  const aborted = () => stop.abort();
  signal.addEventListener("abort", aborted, { once: true });
  let watch = setTimeout(aborted, SILENCE);
  try {
    const response = await fetch(address(path), {
      headers: headers({ Accept: "text/event-stream" }),
      cache: "no-store",
      signal: stop.signal,
    });
    if (!response.ok || !response.body) {
      throw new ApiError(response.status, `the server answered ${response.status}`, {});
    }
    const parser = new StreamParser();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(aborted, SILENCE);
      for (const event of parser.push(value)) on(event);
    }
  } finally {
    clearTimeout(watch);
    signal.removeEventListener("abort", aborted);
  }
}
