/** Where a session's view reads from: the server, or the data inside an exported page. */

import { get, path } from "./api";
import type { Card, Exported, Json, Message, ModelCall, NodePage, SessionFacts, WholeSession } from "./types";

export interface Source {
  readonly offline: boolean;
  session(id: string, signal?: AbortSignal): Promise<SessionFacts>;
  /** Its run tree; with `first`, perhaps only the beginning of a large one. */
  nodes(id: string, signal?: AbortSignal, first?: boolean): Promise<NodePage>;
  conversation(id: string, signal?: AbortSignal): Promise<Message[]>;
  event(session: string, seq: number, signal?: AbortSignal): Promise<Json>;
  /** A model call by its number in the session and the number of the event that began it. */
  call(session: string, ordinal: number, seq: number, signal?: AbortSignal): Promise<ModelCall>;
  card(id: string, signal?: AbortSignal): Promise<Card>;
}

export const server: Source = {
  offline: false,
  session: async (id, signal) => {
    const { session } = await get<{ session: WholeSession }>(`api/sessions/${path(id)}`, signal);
    return { ...session, session };
  },
  nodes: (id, signal, first) => get(`api/sessions/${path(id)}/nodes?brief=1${first ? "&first=1" : ""}`, signal),
  conversation: (id, signal) => get(`api/sessions/${path(id)}/conversation`, signal),
  event: (session, seq, signal) => get(`api/sessions/${path(session)}/events/${seq}`, signal),
  call: (session, ordinal, seq, signal) => get(`api/sessions/${path(session)}/calls/${ordinal}?seq=${seq}`, signal),
  card: (id, signal) => get(`api/callbacks/${path(id)}`, signal),
};

/** Read an exported run tree. What was too large for the export is missing, and its view says so. */
export function exported(data: Exported): Source {
  const find = <T>(from: Record<string, T>, key: string): Promise<T> => {
    const found = from[key];
    if (found !== undefined) return Promise.resolve(found);
    return Promise.reject(new Error("This was too large and is not in the export."));
  };
  return {
    offline: true,
    session: () => Promise.resolve({ ...data.session, session: data.session }),
    nodes: () => Promise.resolve({ pos: data.pos, nodes: data.nodes }),
    conversation: (id) => find(data.conversations, id),
    event: (session, seq) => find(data.events, `${session}/${seq}`),
    call: async (session, _, seq) => {
      const { request, response } = await find(data.calls, `${session}/${seq}`);
      const before = data.calls[`${session}/${seqBefore(data, session, seq)}`];
      return { request: whole(data, request), response, before: before ? whole(data, before.request) : null };
    },
    card: (id) => find(data.cards, id),
  };
}

/** The number of the event that began the model call before; 0 if there is none. */
function seqBefore(data: Exported, session: string, seq: number): number {
  let found = 0;
  for (const { kind, session: of, seq: began } of data.nodes) {
    if (kind === "model" && of === session && began < seq && began > found) found = began;
  }
  return found;
}

type Request = ModelCall["request"];

/** A request with its messages and tools in place of their numbers. */
function whole(data: Exported, request: Request): Request {
  const parts = (numbers: Json | undefined): Json =>
    Array.isArray(numbers) ? numbers.map((one) => data.parts[String(one)] ?? "This was too large and is not in the export.") : [];
  return { ...request, messages: parts(request.messages), tools: parts(request.tools) };
}
