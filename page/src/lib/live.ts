/** The page's one stream. It resumes by position, waits longer after each failure, and closes while the page is hidden.
 *
 * Of all hidden pages one keeps the inbox's stream: whoever holds a Web Lock. It tells the others by BroadcastChannel,
 * so that each shows the right number in its title.
 */

import { ApiError } from "./api";
import { read } from "./stream";
import type { Card, Change, Delta, Row } from "./types";

export interface LiveHandlers {
  nodes(changes: Change[], pos: number): void;
  rows(rows: Row[]): void;
  questions(open: Card[], settled: Card[]): void;
  counts(counts: Record<string, number>): void;
  deltas(deltas: Delta[]): void;
  hello(pos: number, time: number): void;
  connection(state: "live" | "lost" | "refused" | "asleep", retryAt: number): void;
  /** More happened than the stream tells: read the lists again, and the tree where `tree` is true. */
  missed(tree: boolean): void;
}

const WAITS = [1, 2, 3, 5, 8];

interface Told {
  open: Card[];
  settled: Card[];
}

/** What the hidden page with the stream tells the others. */
type Heard = Told | "reset";

export class Live {
  private tree = "";
  /** Everything up to here is known of all lists, and of the tree. */
  private position = 0;
  private treePosition = 0;
  private stop: AbortController | null = null;
  private failures = 0;
  private timer = 0;
  private closed = true;
  private channel: BroadcastChannel | null = null;
  private released: (() => void) | null = null;

  constructor(private readonly on: LiveHandlers) {}

  /** Begin after a position up to which the lists are known. */
  start(position: number): void {
    this.position = position;
    this.channel = new BroadcastChannel("upcall" + new URL(document.baseURI).pathname);
    this.channel.onmessage = (event: MessageEvent<Heard>) => {
      if (!document.hidden) return;
      if (event.data === "reset") this.on.missed(false);
      else this.on.questions(event.data.open, event.data.settled);
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? this.sleep() : this.wake()));
    window.addEventListener("online", () => this.retry());
    if (document.hidden) this.sleep();
    else this.open();
  }

  /** Follow one run tree from a position, or none. */
  follow(tree: string, position: number): void {
    this.tree = tree;
    this.treePosition = position;
    if (!document.hidden && this.channel) this.open();
  }

  retry(): void {
    if (this.closed || !this.stop) return;
    this.failures = 0;
    this.open();
  }

  private open(): void {
    this.close();
    this.closed = false;
    const stop = new AbortController();
    this.stop = stop;
    void this.run(stop);
  }

  private close(): void {
    clearTimeout(this.timer);
    this.closed = true;
    this.stop?.abort();
    this.stop = null;
  }

  private async run(stop: AbortController): Promise<void> {
    const tree = document.hidden ? "" : this.tree;
    const after = tree ? Math.min(this.position, this.treePosition) : this.position;
    const query = new URLSearchParams({ after: String(after) });
    if (tree) query.set("tree", tree);
    try {
      await read(`api/live?${query.toString()}`, stop.signal, (event) => {
        if (stop.signal.aborted) return;
        const at = Number(event.id) || 0;
        this.dispatch(event.name, event.data, at);
        this.position = Math.max(this.position, at);
        if (tree && tree === this.tree) this.treePosition = Math.max(this.treePosition, at);
      });
    } catch (error) {
      if (error instanceof ApiError && (error.code === 401 || error.code === 403)) {
        if (!stop.signal.aborted) this.on.connection("refused", 0);
        return;
      }
    }
    if (stop.signal.aborted) return;
    const wait = WAITS[Math.min(this.failures, WAITS.length - 1)] ?? 8;
    this.failures += 1;
    this.on.connection("lost", Date.now() / 1000 + wait);
    this.timer = window.setTimeout(() => this.open(), wait * 1000);
  }

  private dispatch(name: string, text: string, pos: number): void {
    const data: unknown = JSON.parse(text);
    if (name === "hello") {
      const { pos: at, time } = data as { pos: number; time: number };
      this.failures = 0;
      this.on.hello(at, time);
      this.on.connection("live", 0);
    } else if (name === "reset") {
      this.on.missed((data as { tree: boolean }).tree);
      if (document.hidden) this.channel?.postMessage("reset" satisfies Heard);
    } else if (name === "nodes") this.on.nodes(data as Change[], pos);
    else if (name === "rows") this.on.rows(data as Row[]);
    else if (name === "counts") this.on.counts(data as Record<string, number>);
    else if (name === "delta") this.on.deltas(data as Delta[]);
    else if (name === "questions") {
      const told = data as Told;
      this.on.questions(told.open, told.settled);
      if (document.hidden) this.channel?.postMessage(told satisfies Heard);
    }
  }

  private sleep(): void {
    this.close();
    this.on.connection("asleep", 0);
    void navigator.locks?.request(
      "upcall" + new URL(document.baseURI).pathname,
      () =>
        new Promise<void>((release) => {
          if (!document.hidden) return release();
          this.released = release;
          this.open();
        }),
    );
  }

  private wake(): void {
    this.released?.();
    this.released = null;
    this.failures = 0;
    this.open();
  }
}
