/** Lay a run tree out in time: a lane for each session, long waits folded.
 *
 * A large tree takes longer than a frame, so the work is a generator that stops now and then: see `slices.ts`.
 */

import type { NodeBuffer, TreeNode } from "./nodes";

export interface Bar {
  id: string;
  kind: "model" | "tool" | "wait" | "side";
  left: number;
  width: number;
  /** For a side turn: the lane of whoever asked. */
  asker: number;
  title: string;
}

export interface Lane {
  id: string;
  name: string;
  /** Made when they are first read: most lanes of a large tree are not shown. */
  readonly bars: Bar[];
}

export interface Notch {
  at: number;
  seconds: number;
}

export interface Layout {
  lanes: Lane[];
  notches: Notch[];
  ticks: { at: number; time: number; after: number }[];
  start: number;
  end: number;
  /** How long it has been waiting at the end, if it still does. */
  waits: number;
  waitsFrom: number;
  /** The place of a time, between 0 and 1. */
  place: (time: number) => number;
}

interface Span {
  from: number;
  to: number;
}

interface RawBar extends Span {
  node: TreeNode;
  kind: Bar["kind"];
}

const NOTCH = 0.012;
const LAST_WAIT = 0.3;
/** Seconds of waiting that are always drawn as they are. */
const SHORTEST_FOLD = 1;
const MOST_BARS = 300;
/** Bars of one lane that are all drawn, however near they are to each other. */
const FEW_BARS = 50;
/** Nodes that are looked at before the work may stop. */
const STEP = 500;

const GOES_ON = new Set(["running", "waiting", "open"]);

function isOver(node: TreeNode): boolean {
  return !GOES_ON.has(node.data.status);
}

function ownerOf(side: string): string {
  const cut = side.lastIndexOf("~");
  return cut > 0 ? side.slice(0, cut) : side;
}

/** The bar of a node; null where it has none, like a call that is drawn as what it started or asked. */
function barOf(node: TreeNode, now: number): RawBar | null {
  const { kind, start: from, end } = node.data;
  if (kind === "session" || (kind === "tool" && node.transparent)) return null;
  if (kind === "tool" && node.children.some((one) => one.data.kind === "tool" || one.data.kind === "session")) return null;
  const drawn = kind === "callback" ? "wait" : kind === "side_turn" ? "side" : kind === "tool" ? "tool" : "model";
  return { node, kind: drawn, from, to: end ?? (isOver(node) ? from : now) };
}

/** The nodes of one lane, and what was last found out about them. */
class RawLane {
  readonly nodes: TreeNode[] = [];
  from = Infinity;
  to = -Infinity;
  /** The times at which it worked: calls without the waits inside them. */
  work: Span[] = [];
  /** A call or a question in it has not ended. */
  goesOn = false;
  /** A question in it is open. */
  waits = false;

  constructor(
    readonly id: string,
    public name: string,
  ) {}

  bars(now: number): RawBar[] {
    return this.nodes.map((node) => barOf(node, now)).filter((bar) => bar !== null);
  }

  measure(now: number): void {
    const work: Span[] = [];
    const waits: Span[] = [];
    this.from = Infinity;
    this.to = -Infinity;
    this.goesOn = this.waits = false;
    for (const bar of this.bars(now)) {
      (bar.kind === "wait" ? waits : work).push(bar);
      this.from = Math.min(this.from, bar.from);
      this.to = Math.max(this.to, bar.to);
      this.goesOn ||= bar.node.data.end === null && !isOver(bar.node);
      this.waits ||= bar.kind === "wait" && bar.node.data.status === "open";
    }
    this.work = waits.length > 200 ? union(work) : without(union(work), union(waits));
  }
}

/** Join spans that overlap or touch. */
export function union(spans: Span[]): Span[] {
  const sorted = [...spans].sort((a, b) => a.from - b.from);
  const found: Span[] = [];
  for (const span of sorted) {
    const last = found.at(-1);
    if (last && span.from <= last.to) last.to = Math.max(last.to, span.to);
    else found.push({ ...span });
  }
  return found;
}

/** Cut `holes` out of spans. Both are sorted and do not overlap themselves. */
export function without(spans: Span[], holes: Span[]): Span[] {
  const found: Span[] = [];
  for (const span of spans) {
    let from = span.from;
    for (const hole of holes) {
      if (hole.to <= from || hole.from >= span.to) continue;
      if (hole.from > from) found.push({ from, to: hole.from });
      from = Math.max(from, hole.to);
    }
    if (from < span.to) found.push({ from, to: span.to });
  }
  return found;
}

/** The timeline of one tree. What is over is not looked at again, so a large tree costs what goes on in it. */
export class Timeline {
  private readonly lanes = new Map<string, RawLane>();
  private readonly laneOf = new Map<TreeNode, RawLane>();
  /** Lanes in which nothing goes on, and the times at which any of them worked. */
  private readonly over = new Set<RawLane>();
  private overWork: Span[] = [];

  constructor(readonly buffer: NodeBuffer) {}

  *layout(now: number): Generator<void, Layout> {
    yield* this.measure(yield* this.collect(), now);
    const lanes = [...this.lanes.values()].filter((lane) => lane.from <= lane.to);
    if (!lanes.length) return { lanes: [], notches: [], ticks: [], start: now, end: now, waits: 0, waitsFrom: 1, place: () => 0 };
    const start = lanes.reduce((first, lane) => Math.min(first, lane.from), Infinity);
    const end = lanes.reduce((last, lane) => Math.max(last, lane.to), start + 1e-6);
    const going = lanes.filter((lane) => !this.over.has(lane));
    const work = union([...this.overWork, ...going.flatMap((lane) => lane.work)]);
    const idle = without([{ from: start, to: end }], work);
    const worked = end - start - idle.reduce((sum, gap) => sum + gap.to - gap.from, 0);
    const whole = end - start;
    const folds = idle.filter(({ from, to }) => to - from >= SHORTEST_FOLD && to - from > Math.max(whole, worked) / 10);
    const last = folds.at(-1);
    const tail = last && lanes.some((lane) => lane.waits) && last.to >= end - 0.001 ? last : null;
    return draw(lanes, folds, tail, { from: start, to: end }, now);
  }

  /** Put nodes that are new into their lanes; returns the lanes in which anything changed. */
  private *collect(): Generator<void, Set<RawLane>> {
    const changed = new Set<RawLane>();
    let seen = 0;
    for (const node of this.buffer.touched) {
      seen += 1;
      if (seen % STEP === 0) yield;
      const lane = this.laneOf.get(node) ?? this.add(node);
      if (!lane) continue;
      if (node.data.kind === "session") lane.name = node.data.label;
      changed.add(lane);
    }
    this.buffer.touched.clear();
    return changed;
  }

  /** A side turn is drawn in the lane of the agent that is asked, and what happens in it is not drawn. */
  private add(node: TreeNode): RawLane | null {
    const { kind, id, label, session } = node.data;
    const of = this.buffer.byId.get(session);
    if (kind !== "session" && kind !== "side_turn" && of?.data.kind === "side_turn") return null;
    const owner = ownerOf(id);
    const own = kind === "session" || (kind === "side_turn" && !this.lanes.has(owner));
    const key = own ? id : kind === "side_turn" ? owner : session;
    const lane = this.lanes.get(key) ?? new RawLane(key, own ? label : (of?.data.label ?? session));
    this.lanes.set(key, lane);
    this.laneOf.set(node, lane);
    lane.nodes.push(node);
    return lane;
  }

  private *measure(changed: Set<RawLane>, now: number): Generator<void, void> {
    let again = false;
    for (const lane of this.lanes.values()) {
      if (!lane.goesOn && !changed.has(lane)) continue;
      lane.measure(now);
      again = this.over.delete(lane) || again;
      if (lane.nodes.length > STEP || changed.size > STEP) yield;
    }
    if (again) {
      this.over.clear();
      this.overWork = [];
    }
    const ended = [...this.lanes.values()].filter((lane) => !lane.goesOn && !this.over.has(lane));
    if (!ended.length) return;
    for (const lane of ended) this.over.add(lane);
    this.overWork = union([...this.overWork, ...ended.flatMap((lane) => lane.work)]);
  }
}

/** Turn times into places between 0 and 1. */
function draw(lanes: RawLane[], folds: Span[], tail: Span | null, whole: Span, now: number): Layout {
  const gaps = folds.filter((gap) => gap !== tail);
  const room = 1 - gaps.length * NOTCH - (tail ? LAST_WAIT : 0);
  const shownTime = whole.to - whole.from - folds.reduce((sum, gap) => sum + gap.to - gap.from, 0);
  const scale = room / Math.max(shownTime, 1e-6);
  const place = (time: number): number => {
    let x = (Math.min(time, tail ? tail.from : whole.to) - whole.from) * scale;
    for (const gap of gaps) {
      if (time <= gap.from) break;
      const inside = Math.min(time, gap.to) - gap.from;
      x += (inside / (gap.to - gap.from)) * NOTCH - inside * scale;
    }
    if (tail && time > tail.from) x += ((time - tail.from) / (tail.to - tail.from)) * LAST_WAIT;
    return Math.min(1, Math.max(0, x));
  };
  const index = new Map(lanes.map((lane, at) => [lane.id, at]));
  return {
    lanes: lanes.map((lane) => drawnWhenRead(lane, () => bars(lane.bars(now), place, index))),
    notches: gaps.map((gap) => ({ at: place(gap.from) + NOTCH / 2, seconds: gap.to - gap.from })),
    ticks: ticks(whole, folds, scale, place, tail),
    start: whole.from,
    end: whole.to,
    waits: tail ? tail.to - tail.from : 0,
    waitsFrom: tail ? place(tail.from) : 1,
    place,
  };
}

function drawnWhenRead({ id, name }: RawLane, draw: () => Bar[]): Lane {
  let drawn: Bar[] | null = null;
  return {
    id,
    name,
    get bars() {
      return (drawn ??= draw());
    },
  };
}

function askerLane(node: TreeNode, index: Map<string, number>): number {
  for (let up = node.up; up; up = up.up) if (up.data.kind === "callback") return index.get(up.data.session) ?? -1;
  return -1;
}

const ORDER = { tool: 0, model: 1, side: 2, wait: 3 };

/** The bars of a lane. Neighbours that would cover each other are joined, so a lane has few hundred at most. */
function bars(raw: RawBar[], place: (time: number) => number, index: Map<string, number>): Bar[] {
  const found: Bar[] = [];
  const sorted = raw.sort((a, b) => ORDER[a.kind] - ORDER[b.kind] || a.from - b.from);
  const near = sorted.length > MOST_BARS ? 1 / MOST_BARS : sorted.length > FEW_BARS ? 1 / 1000 : 0;
  for (const one of sorted) {
    const left = place(one.from);
    const width = Math.max(0, place(one.to) - left);
    const last = found.at(-1);
    if (near && last && last.kind === one.kind && left - (last.left + last.width) < near) {
      last.width = Math.max(last.width, left + width - last.left);
      continue;
    }
    const { id, label, about } = one.node.data;
    const asker = one.kind === "side" ? askerLane(one.node, index) : -1;
    found.push({ id, kind: one.kind, left, width, asker, title: about ? `${label}: ${about}` : label });
  }
  return found;
}

const STEPS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 21_600, 86_400];

function ticks(
  whole: Span,
  folds: Span[],
  scale: number,
  place: (time: number) => number,
  tail: Span | null,
): Layout["ticks"] {
  const step = STEPS.find((one) => one * scale > 0.16) ?? 864_000;
  const found = [{ at: 0, time: whole.from, after: 0 }];
  const stop = tail ? tail.from : whole.to;
  for (let after = step; whole.from + after < stop && found.length < 8; after += step) {
    const time = whole.from + after;
    if (folds.some((gap) => time > gap.from && time < gap.to)) continue;
    const at = place(time);
    if (at - (found.at(-1)?.at ?? 0) > 0.1 && at < (tail ? 1 - LAST_WAIT - 0.02 : 0.96)) found.push({ at, time, after });
  }
  return found;
}
