/** What the server sends. Every text in it may come from a model or a tool: show it with `plain`, never as markup. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Me {
  user: string;
  role: string;
  view_only: boolean;
  can_operate: boolean;
  can_start: boolean;
  store: string;
  time: number;
  version: string;
  agents: string[];
  pos: number;
}

export interface AgentInfo {
  name: string;
  description: string;
  source: string;
}

export interface Row {
  id: string;
  agent: string;
  status: string;
  title: string;
  text: string;
  created: number;
  updated: number;
  tokens: number | null;
  cost?: number | null;
  ran_seconds?: number | null;
  questions: number;
  parent: string | null;
  tags: Record<string, string>;
  folder: string | null;
  owner: string | null;
}

export interface RowPage {
  sessions: Row[];
  next: string | null;
  counts: Record<string, number>;
}

export interface Usage {
  input: number;
  output: number;
  cached: number;
  cache_written: number;
}

export interface SessionInfo extends Row {
  data: Json;
  children: string[];
  root: string;
}

export interface SessionFacts {
  session: SessionInfo;
  usage: Usage | null;
  cost?: number | null;
  model_calls: number;
  tool_calls: number;
  ran_seconds: number;
  waited_seconds: number;
  can_prompt: boolean;
  can_resume: boolean;
  needs: string;
  tree: string;
}

/** The fields of a node that change. */
export interface NodeFields {
  label: string;
  about: string;
  status: string;
  end: number | null;
  seq: number;
  end_seq: number;
  usage: Usage | null;
  cost: number | null;
}

export type Moment = [position: number, time: number, set: Partial<NodeFields>];

export interface NodeData extends NodeFields {
  id: string;
  parent: string | null;
  session: string;
  kind: string;
  role: string;
  start: number;
  pos: number;
  changed: number;
  call: number;
  callback: string;
  history: Moment[];
}

/** A node as the server sends it with a whole tree: what is empty is left out. */
export type BriefNode = Pick<NodeData, "id" | "session" | "kind" | "label" | "status" | "start" | "pos" | "changed"> & Partial<NodeData>;

/** A run tree, or its beginning while the server reads the rest. */
export interface NodePage {
  pos: number;
  whole?: boolean;
  nodes: BriefNode[];
}

export interface Change {
  id: string;
  pos: number;
  time: number;
  set: Partial<NodeData>;
}

export interface Field {
  name: string;
  title: string;
  description: string;
  type: "string" | "integer" | "number" | "boolean" | "enum" | "multi" | "json";
  choices: { value: Json; title: string }[];
  required: boolean;
  default: Json;
}

export interface Step {
  who: string;
  text: string;
  state: "asked" | "skipped" | "passed" | "reworded" | "you";
  key: string;
}

export interface Card {
  id: string;
  session_id: string;
  agent: string;
  message: string;
  intent: string;
  kind: string;
  priority: string;
  choices: Json[] | null;
  schema: Json;
  context: Record<string, Json> | null;
  tool: string;
  args: Record<string, Json> | null;
  created: number;
  expires: number | null;
  status: string;
  answer: { value: Json; by: string; right: string; at: number; reason: string } | null;
  given: Record<string, Json>;
  group: string[];
  reworded: string;
  problem: string;
  patterns: Record<string, string>;
  covers: Record<string, { id: string; args: Json }[]>;
  title: string;
  root: string;
  asks: string;
  label: string;
  why: string;
  why_key: string;
  steps: Step[];
  /** What led to it. A call has its tool's label. */
  led: { label: string; text: string; time: number }[];
  fields: Field[] | null;
  program: { text: string } | null;
  hidden: number;
  seen: string;
  outcome: string;
  can_answer: boolean;
  goes_on: string;
  /** What an answer leads to, as an open card says it. */
  after: string;
}

export interface Inbox {
  open: Card[];
  settled: Card[];
  /** How many more wait than are listed. */
  more: number;
  /** Even more wait than were counted. */
  uncounted: boolean;
  time: number;
  pos: number;
}

export interface Message {
  role: "user" | "assistant" | "tool" | "note";
  text: string;
  calls: { id: string; label: string; args: Json; status: string; result: string | null; ended: number | null }[];
  time: number;
  by: string;
}

export interface ModelCall {
  request: { [key: string]: Json };
  response: { [key: string]: Json } | null;
  before: { [key: string]: Json } | null;
  wire?: { [key: string]: Json } | null;
}

export interface Hit {
  session: string;
  title: string;
  seq: number;
  node: string;
  kind: string;
  snippet: string;
  time: number;
}

export interface Delta {
  session: string;
  kind: "text" | "thinking" | "output" | "drop";
  text: string;
  call_id: string;
}

export interface Answer {
  value?: Json;
  approve?: true;
  args?: Record<string, Json>;
  reject?: string;
  decline?: string;
  for_session?: boolean;
  pattern?: string;
  only?: boolean;
  digest?: string;
}

/** A session as the server sends it: its row and all facts in one object. */
export type WholeSession = SessionInfo & Omit<SessionFacts, "session">;

/** Everything that one exported run tree holds; the server writes it into the export's page. */
export interface Exported {
  title: string;
  exported: number;
  session: WholeSession;
  pos: number;
  nodes: NodeData[];
  events: Record<string, Json>;
  /** By session and number of the event that began it. Messages and tools are numbers of `parts`. */
  calls: Record<string, ModelCall>;
  parts: Record<string, Json>;
  conversations: Record<string, Message[]>;
  cards: Record<string, Card>;
  left_out: number;
}
