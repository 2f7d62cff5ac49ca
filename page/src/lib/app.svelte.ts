/** What all views share: who is here, the inbox, the connection, the clock. */

import { ApiError, get } from "./api";
import { count, several } from "./format";
import { Live, type LiveHandlers } from "./live";
import { line } from "./plain";
import { settings } from "./settings.svelte";
import type { Card, Change, Delta, Inbox, Me, Row } from "./types";

/** Cards of a page of the inbox, those that one request gets at most, and those at which the next ones are read. */
const CARDS = 30;
const MOST_CARDS = 200;
const FEWEST = 10;

type Nodes = (changes: Change[], pos: number) => void;

class App implements LiveHandlers {
  me = $state.raw<Me | null>(null);
  open = $state.raw<Card[]>([]);
  settled = $state.raw<Card[]>([]);
  /** How many questions wait besides those in `open`, which are the most urgent ones. */
  more = $state(0);
  private uncounted = $state(false);
  inboxKnown = $state(false);
  connectionState = $state<"starting" | "live" | "lost" | "refused" | "asleep">("starting");
  retryAt = $state(0);
  /** The server's time, in seconds, moved on once a second. */
  now = $state(Date.now() / 1000);
  spoken = $state("");
  overlay = $state<"" | "search" | "help" | "start">("");
  offerNotifications = $state(false);
  /** Whether this is an export, which nobody can answer. */
  offline = false;

  private limit = $state(CARDS);
  private offset = 0;
  private clock = 0;
  /** What was told while the inbox is being read: it may be newer than what is read. */
  private meanwhile: { open: Card[]; settled: Card[] }[] | null = null;
  private nodeListeners = new Set<Nodes>();
  private rowListeners = new Set<(rows: Row[]) => void>();
  private deltaListeners = new Set<(deltas: Delta[]) => void>();
  private missedListeners = new Set<(tree: boolean) => void>();
  private toSay: string[] = [];
  private lastSaid = 0;
  private saying = 0;
  readonly live = new Live(this);

  get viewOnly(): boolean {
    return this.offline || (this.me?.view_only ?? false);
  }

  /** Whether the person may do more than answer: start, say something, cancel, continue. */
  get canOperate(): boolean {
    return this.me?.can_operate ?? false;
  }

  async start(): Promise<void> {
    this.clock ||= window.setInterval(() => (this.now = Date.now() / 1000 + this.offset), 1000);
    try {
      const [me, inbox] = await Promise.all([get<Me>("api/me"), this.getInbox()]);
      this.me = me;
      this.setTime(me.time);
      this.take(inbox);
      this.live.start(inbox.pos);
    } catch (error) {
      this.fail(error);
    }
  }

  private fail(error: unknown): void {
    if (error instanceof ApiError && error.code === 401) this.connectionState = "refused";
    else {
      this.connection("lost", Date.now() / 1000 + 3);
      setTimeout(() => void this.start(), 3000);
    }
  }

  private getInbox(): Promise<Inbox> {
    return get<Inbox>(`api/inbox?limit=${this.limit}`);
  }

  private take(inbox: Inbox): void {
    this.open = inbox.open;
    this.more = inbox.more;
    this.uncounted = inbox.uncounted;
    this.settled = inbox.settled;
    this.inboxKnown = true;
  }

  /** The server's time at this moment; `now` is up to a second behind it. */
  exactNow(): number {
    return this.offline ? this.now : Date.now() / 1000 + this.offset;
  }

  private setTime(time: number): void {
    this.offset = time - Date.now() / 1000;
    this.now = time;
  }

  /** Tell people who listen, at most one sentence in two seconds. */
  say(text: string): void {
    this.toSay.push(text);
    if (this.saying) return;
    const speak = () => {
      const next = this.toSay.length > 3 ? several(this.toSay.length, "new event") : this.toSay[0];
      if (this.toSay.length > 3) this.toSay.length = 0;
      else this.toSay.shift();
      this.saying = next === undefined ? 0 : window.setTimeout(speak, 2000);
      if (next !== undefined) {
        this.spoken = next;
        this.lastSaid = Date.now();
      }
    };
    this.saying = window.setTimeout(speak, Math.max(0, this.lastSaid + 2000 - Date.now()));
  }

  // --- what the stream tells ---------------------------------------------------------------

  nodes(changes: Change[], pos: number): void {
    for (const one of this.nodeListeners) one(changes, pos);
  }

  rows(rows: Row[]): void {
    for (const one of this.rowListeners) one(rows);
    for (const row of rows) {
      if (["done", "failed", "limit"].includes(row.status)) this.say(`${line(row.title, 80)}: ${row.status}.`);
    }
  }

  questions(open: Card[], settled: Card[]): void {
    this.meanwhile?.push({ open, settled });
    const known = new Set(this.open.map((card) => card.id));
    const changed = new Map([...open, ...settled].map((card) => [card.id, card]));
    const last = this.more ? this.open.at(-1) : undefined;
    const fresh = open.filter((card) => !known.has(card.id) && !(last && moreUrgent(last, card) < 0));
    const kept = this.open.map((card) => changed.get(card.id) ?? card).filter((card) => card.status === "open");
    this.open = [...kept, ...fresh].sort(moreUrgent);
    const gone = new Set(settled.map((card) => card.id));
    this.settled = [...settled, ...this.settled.filter((card) => !gone.has(card.id))].slice(0, 200);
    for (const card of fresh) this.announce(card);
  }

  counts({ inbox, uncounted }: Record<string, number>): void {
    if (inbox === undefined) return;
    this.uncounted = Boolean(uncounted);
    this.more = Math.max(0, inbox - this.open.length);
    if (this.more && this.open.length < FEWEST) void this.readInbox();
  }

  /** Read another page of the inbox. */
  async showMore(): Promise<void> {
    this.limit = Math.min(this.limit + CARDS, MOST_CARDS);
    await this.readInbox();
  }

  get canShowMore(): boolean {
    return this.limit < MOST_CARDS;
  }

  /** Whether this question waits for the reader, by itself or as one of a group. */
  asksYou(callback: string): boolean {
    return this.open.some((card) => card.id === callback || card.group.includes(callback));
  }

  get waiting(): number {
    return this.open.length + this.more;
  }

  /** The number of questions that wait, as it is shown. */
  get waitingText(): string {
    return this.atLeast(this.waiting);
  }

  /** A number of questions; there may be even more than were counted. */
  atLeast(questions: number): string {
    return `${count(questions)}${this.uncounted ? "+" : ""}`;
  }

  deltas(deltas: Delta[]): void {
    for (const one of this.deltaListeners) one(deltas);
  }

  hello(_: number, time: number): void {
    this.setTime(time);
  }

  connection(state: "live" | "lost" | "refused" | "asleep", retryAt: number): void {
    this.connectionState = state;
    this.retryAt = retryAt;
  }

  missed(tree: boolean): void {
    if (!tree) void this.readInbox();
    for (const one of this.missedListeners) one(tree);
  }

  private async readInbox(): Promise<void> {
    const meanwhile: typeof this.meanwhile = [];
    this.meanwhile = meanwhile;
    const inbox = await this.getInbox().catch(() => null);
    if (this.meanwhile !== meanwhile) return; // a later reading has begun
    this.meanwhile = null;
    if (!inbox) return;
    const known = new Set(this.open.map((card) => card.id));
    this.take(inbox);
    for (const card of inbox.open) if (!known.has(card.id)) this.announce(card);
    for (const told of meanwhile) this.questions(told.open, told.settled);
  }

  /** A card that was answered here, before the stream tells so. */
  answered(card: Card): void {
    this.open = this.open.filter((one) => one.id !== card.id);
    this.settled = [card, ...this.settled.filter((one) => one.id !== card.id)];
  }

  onNodes(listener: Nodes): () => void {
    this.nodeListeners.add(listener);
    return () => this.nodeListeners.delete(listener);
  }

  onRows(listener: (rows: Row[]) => void): () => void {
    this.rowListeners.add(listener);
    return () => this.rowListeners.delete(listener);
  }

  onDeltas(listener: (deltas: Delta[]) => void): () => void {
    this.deltaListeners.add(listener);
    return () => this.deltaListeners.delete(listener);
  }

  onMissed(listener: (tree: boolean) => void): () => void {
    this.missedListeners.add(listener);
    return () => this.missedListeners.delete(listener);
  }

  // --- telling people -----------------------------------------------------------------------

  private announce(card: Card): void {
    const text = card.tool ? `${card.agent} wants to run ${card.label || card.tool}.` : `${card.agent} asks: ${card.message}`;
    this.say(line(text, 160));
    if (!("Notification" in window) || !isSecureContext) return;
    if (Notification.permission === "default" && !settings.quiet) this.offerNotifications = true;
    if (Notification.permission !== "granted" || !settings.notify || !document.hidden) return;
    const shown = new Notification("upcall", { body: line(text, 160), tag: `upcall-${card.id}` });
    shown.onclick = () => {
      window.focus();
      shown.close();
    };
  }
}

const URGENCY: Record<string, number> = { critical: 3, urgent: 3, high: 2, normal: 1, low: 0 };

/** The order of the inbox: priority, then deadline, then age. */
export function moreUrgent(a: Card, b: Card): number {
  const priority = (URGENCY[b.priority] ?? 1) - (URGENCY[a.priority] ?? 1);
  const [ours, theirs] = [a.expires ?? Number.MAX_VALUE, b.expires ?? Number.MAX_VALUE];
  return priority || ours - theirs || a.created - b.created;
}

export const app = new App();
