/** A run tree in memory, and which of its rows are shown.
 *
 * Plain objects, no reactive state: at 5,000 changes a second a page draws from `version`, once a frame. Each node knows
 * how many rows it and what is shown below it take, so one change costs its depth and not the size of the tree.
 */

import type { BriefNode, Change, Moment, NodeData, NodeFields } from "./types";

/** A node as it is now. */
export type NodeState = Omit<NodeData, "history">;

/** Folded; only what matters (questions, sessions, failures); everything. */
export type Fold = 0 | 1 | 2;

export class TreeNode {
  up: TreeNode | null = null;
  children: TreeNode[] = [];
  /** What the reader chose; null follows from the node. */
  chosen: Fold | null = null;
  auto: Fold = 0;
  /** Rows of this node and of what is shown below it, if it is shown itself. */
  size = 1;
  turns = 0;
  /** Its changes; null while it is as it was created, which most nodes stay. */
  private moments: Moment[] | null = null;

  constructor(public data: NodeState) {}

  get history(): Moment[] {
    return this.moments ?? [[this.data.pos, this.data.start, fieldsOf(this.data)]];
  }

  set history(moments: Moment[]) {
    this.moments = moments.length > 1 ? moments : null;
  }

  /** Note a change, before it is made. The first moment has the values that changed later, and need not have others. */
  note(moment: Moment): void {
    this.moments ??= this.history;
    const first = this.moments[0]?.[2] ?? {};
    for (const name of Object.keys(moment[2]) as (keyof NodeFields)[]) {
      if (!(name in first)) Object.assign(first, { [name]: this.data[name] });
    }
    this.moments.push(moment);
  }

  /** The node as the server has it. */
  get whole(): NodeData {
    const [[pos, time, set], ...later] = this.history as [Moment, ...Moment[]];
    return { ...this.data, history: [[pos, time, { ...fieldsOf(this.data), ...set }], ...later] };
  }

  get fold(): Fold {
    return this.transparent ? (this.data.kind === "tool" ? 1 : 2) : (this.chosen ?? this.auto);
  }

  /** A node that says the same as the one below it has no row of its own.
   *
   * These are the only turn of a session, a step that is one session, and a call that does nothing but ask.
   */
  get transparent(): boolean {
    const { kind, about } = this.data;
    if (kind === "turn") return this.up !== null && this.up.turns === 1;
    if (kind === "step") return this.children.length === 1 && this.children[0]?.data.kind === "session";
    return kind === "tool" && about !== "" && this.children.some((one) => asksThis(one.data, about));
  }
}

function fieldsOf({ label, about, status, end, seq, end_seq, usage, cost }: NodeFields): NodeFields {
  return { label, about, status, end, seq, end_seq, usage, cost };
}

/** A copy that takes little memory: all have one shape, and texts that their neighbours have are not kept twice. */
function compact(data: BriefNode, up: NodeState | undefined, before: NodeState | undefined): NodeState {
  const { id, kind, role = "System", label, status, start, end = null, pos, changed, seq = 0, end_seq = 0 } = data;
  const { call = 0, callback = "", usage = null, cost = null, about: given = "" } = data;
  const parent = up ? up.id : (data.parent ?? null);
  const session = up?.session === data.session ? up.session : data.session;
  const about = up?.about === given ? up.about : before?.about === given ? before.about : given;
  return { id, parent, session, kind, role, label, about, status, start, end, pos, changed, seq, end_seq, call, callback, usage, cost };
}

function asksThis(data: NodeState, about: string): boolean {
  return data.kind === "callback" && (data.about === about || data.about.startsWith(`${about} →`));
}

const CALLS = new Set(["tool", "model"]);
/** Kinds of nodes that the timeline draws. */
const TIMED = new Set(["session", "side_turn", "model", "tool", "callback"]);
const ALWAYS_OPEN = new Set(["session", "turn", "step", "plan"]);
/** A new child of these kinds may give its parent a row, or take it. */
const HIDES = new Set(["turn", "session", "callback"]);
const NOTABLE = new Set(["session", "callback", "tool", "step", "failed"]);

/** Failed, at the place where it happened. */
export function failedHere(data: NodeState): boolean {
  return data.status === "failed" && data.kind !== "failed" && data.kind !== "response";
}

export function isQuestion(data: NodeState): boolean {
  return data.kind === "callback";
}

function notable(node: TreeNode): boolean {
  return NOTABLE.has(node.data.kind) || (node.data.status === "failed" && node.data.kind !== "response");
}

function wanted(node: TreeNode): Fold {
  const { kind, status } = node.data;
  if (ALWAYS_OPEN.has(kind)) return 2;
  if (kind === "callback") return status === "open" ? 2 : 0;
  if (CALLS.has(kind)) return node.children.some(notable) ? 1 : 0;
  return status === "failed" && kind === "side_turn" ? 2 : 0;
}

export interface TreeRow {
  node: TreeNode;
  index: number;
  level: number;
  place: number;
  of: number;
}

export class NodeBuffer {
  readonly byId = new Map<string, TreeNode>();
  readonly roots: TreeNode[] = [];
  /** Nodes with a place in the timeline that were added or changed; the timeline empties it. */
  readonly touched = new Set<TreeNode>();
  position = 0;
  version = 0;

  /** A tree of these nodes; what was folded in the tree `before` is folded. */
  static from(nodes: BriefNode[], position: number, before: NodeBuffer | null = null): NodeBuffer {
    const buffer = new NodeBuffer();
    for (const one of nodes) buffer.add(one).chosen = before?.byId.get(one.id)?.chosen ?? null;
    for (const root of buffer.roots) buffer.measure(root);
    buffer.position = position;
    return buffer;
  }

  get total(): number {
    return this.byId.size;
  }

  get rows(): number {
    let sum = 0;
    for (const root of this.roots) sum += root.size;
    return sum;
  }

  /** Take changes from the stream. What was seen before is skipped, so a resumed stream may overlap. */
  apply(changes: Change[], upTo: number): void {
    const seen = this.position;
    for (const change of changes) {
      if (change.pos <= seen) continue;
      const node = this.byId.get(change.id);
      if (node) this.update(node, change);
      else this.create(change);
      if (change.pos > this.position) this.position = change.pos;
    }
    if (upTo > this.position) this.position = upTo;
    this.version += 1;
  }

  private create(change: Change): void {
    const set = change.set as NodeData;
    const node = this.add({ ...set, id: change.id, pos: set.pos ?? change.pos, changed: change.pos });
    node.auto = wanted(node);
    node.size = this.ownSize(node);
    const { up } = node;
    if (!up) return;
    if (HIDES.has(node.data.kind)) this.measure(up);
    else if (this.shown(up, node)) this.grow(up, node.size);
    this.refold(up);
  }

  private update(node: TreeNode, change: Change): void {
    const before = node.data.status;
    const { history, ...set } = change.set;
    if (history) node.history = history;
    else node.note([change.pos, change.time, set]);
    Object.assign(node.data, set);
    node.data.changed = change.pos;
    this.touch(node);
    if (before === node.data.status) return;
    this.refold(node);
    if (node.up) this.refold(node.up);
  }

  private add(data: BriefNode): TreeNode {
    const up = data.parent ? (this.byId.get(data.parent) ?? null) : null;
    const node = new TreeNode(compact(data, up?.data, up?.children.at(-1)?.data));
    if (data.history) node.history = data.history;
    this.byId.set(data.id, node);
    node.up = up;
    if (up && data.kind === "turn") up.turns += 1;
    this.touch(node);
    if (up && CALLS.has(up.data.kind)) this.touch(up);
    const list = up ? up.children : this.roots;
    let at = list.length;
    while (at > 0 && (list[at - 1]?.data.pos ?? 0) > data.pos) at -= 1;
    if (at === list.length) list.push(node);
    else list.splice(at, 0, node);
    return node;
  }

  private touch(node: TreeNode): void {
    if (TIMED.has(node.data.kind)) this.touched.add(node);
  }

  private shown(up: TreeNode, child: TreeNode): boolean {
    const fold = up.fold;
    return fold === 2 || (fold === 1 && notable(child));
  }

  private ownSize(node: TreeNode): number {
    let sum = node.transparent ? 0 : 1;
    if (node.fold) for (const child of node.children) if (this.shown(node, child)) sum += child.size;
    return sum;
  }

  private grow(from: TreeNode, by: number): void {
    let node = from;
    for (;;) {
      node.size += by;
      const { up } = node;
      if (!up || !this.shown(up, node)) return;
      node = up;
    }
  }

  /** Sizes of a whole branch, from its leaves up. */
  private measure(root: TreeNode): void {
    const before = root.size;
    const order: TreeNode[] = [root];
    for (const node of order) for (const child of node.children) order.push(child);
    for (let index = order.length - 1; index >= 0; index -= 1) {
      const node = order[index] as TreeNode;
      node.auto = Math.max(node.auto, wanted(node)) as Fold;
      node.size = this.ownSize(node);
    }
    if (root.up && root.size !== before && this.shown(root.up, root)) this.grow(root.up, root.size - before);
  }

  /** Open by itself what has to be seen. Nothing closes by itself: what is read must not move. */
  private refold(node: TreeNode): void {
    const auto = Math.max(node.auto, wanted(node)) as Fold;
    const same = auto === node.auto && (node.fold !== 1 || node.chosen !== null);
    node.auto = auto;
    if (!same) this.resize(node);
  }

  private resize(node: TreeNode): void {
    const size = this.ownSize(node);
    const by = size - node.size;
    if (!by) return;
    node.size = size;
    if (node.up && this.shown(node.up, node)) this.grow(node.up, by);
  }

  setFold(node: TreeNode, fold: Fold): void {
    if (!node.children.length) return;
    node.chosen = fold;
    this.resize(node);
    this.version += 1;
  }

  /** The node whose row stands for this one: itself, unless it has none. */
  standIn(node: TreeNode): TreeNode {
    let one = node;
    while (one.transparent) {
      const below = one.children.find((child) => child.data.kind === "session" || child.data.kind === "callback");
      const next = one.data.kind === "turn" ? one.up : below;
      if (!next) return one;
      one = next;
    }
    return one.up?.transparent && one.up.data.kind === "tool" && one.data.kind !== "callback" ? this.standIn(one.up) : one;
  }

  /** Unfold everything above a node, so that it has a row. */
  reveal(node: TreeNode): void {
    for (let up = node.up; up; up = up.up) {
      const child = pathChild(up, node);
      if (!up.transparent && child && !this.shown(up, child)) {
        up.chosen = 2;
        this.resize(up);
      }
    }
    this.version += 1;
  }

  /** The row number of a node, or -1 where it is folded away or has no row. */
  indexOf(node: TreeNode): number {
    if (node.transparent) return -1;
    let index = 0;
    let child = node;
    for (let up = node.up; up; up = up.up) {
      if (!this.shown(up, child)) return -1;
      index += up.transparent ? 0 : 1;
      for (const one of up.children) {
        if (one === child) break;
        if (this.shown(up, one)) index += one.size;
      }
      child = up;
    }
    for (const root of this.roots) {
      if (root === child) break;
      index += root.size;
    }
    return index;
  }

  /** Rows `first` to `first + most`, in the order of the tree. */
  slice(first: number, most: number): TreeRow[] {
    const found: TreeRow[] = [];
    let skip = first;
    const visit = (list: TreeNode[], up: TreeNode | null, level: number, places: Places) => {
      for (const node of list) {
        if (found.length >= most) return;
        if (up && !this.shown(up, node)) continue;
        const whole = node.size;
        if (!node.transparent) places.next += 1;
        if (skip >= whole) {
          skip -= whole;
          if (node.transparent) places.next += this.visibleChildren(node);
          continue;
        }
        if (!node.transparent) {
          if (skip > 0) skip -= 1;
          else found.push({ node, index: first + found.length, level, place: places.next, of: places.of });
        }
        if (!node.fold) continue;
        if (node.transparent) visit(node.children, node, level, places);
        else visit(node.children, node, level + 1, { next: 0, of: this.visibleChildren(node) });
      }
    };
    visit(this.roots, null, 1, { next: 0, of: this.roots.length });
    return found;
  }

  private visibleChildren(node: TreeNode): number {
    let sum = 0;
    for (const child of node.children) {
      if (!this.shown(node, child)) continue;
      sum += child.transparent ? this.visibleChildren(child) : 1;
    }
    return sum;
  }

  /** Every node, in the order of the tree, folded or not. */
  *walk(): Generator<TreeNode> {
    const stack = [...this.roots].reverse();
    for (let node = stack.pop(); node; node = stack.pop()) {
      yield node;
      for (let index = node.children.length - 1; index >= 0; index -= 1) stack.push(node.children[index] as TreeNode);
    }
  }

  /** The same tree as it was at a position. What the reader folded stays folded. */
  at(position: number): NodeBuffer {
    const past: NodeData[] = [];
    for (const node of this.byId.values()) if (node.data.pos <= position) past.push(dataAt(node, position));
    past.sort((a, b) => a.pos - b.pos);
    return NodeBuffer.from(past, position, this);
  }

  /** The moments at which anything changed, in order: position and time. */
  moments(): { pos: number; time: number }[] {
    const found = new Map<number, number>();
    for (const node of this.byId.values()) for (const [pos, time] of node.history) found.set(pos, time);
    return [...found].map(([pos, time]) => ({ pos, time })).sort((a, b) => a.pos - b.pos);
  }
}

interface Places {
  next: number;
  of: number;
}

function pathChild(up: TreeNode, below: TreeNode): TreeNode | null {
  let node: TreeNode | null = below;
  while (node && node.up !== up) node = node.up;
  return node;
}

/** One node as it was at a position. */
export function dataAt({ data, history }: TreeNode, position: number): NodeData {
  const fields: Partial<NodeFields> = {};
  const past: Moment[] = [];
  for (const moment of history) {
    if (moment[0] > position) break;
    Object.assign(fields, moment[2]);
    past.push(moment);
  }
  return { ...data, ...fields, changed: past.at(-1)?.[0] ?? data.pos, history: past };
}
