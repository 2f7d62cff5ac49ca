/** Find in an event what one call was given and what it returned. */

import type { TreeNode } from "./nodes";
import { written } from "./plain";
import type { Json } from "./types";

type Dict = { [key: string]: Json };

const isDict = (value: Json | undefined): value is Dict =>
  value !== null && typeof value === "object" && !Array.isArray(value);

/** The id of the call that a node belongs to. */
export function callId(node: TreeNode): string {
  return node.data.id.slice(node.data.session.length + 1).split(":")[0] ?? "";
}

/** Arguments of a call, from the event that holds it. */
export function argumentsOf(event: Json, id: string): Dict | null {
  if (!isDict(event)) return null;
  if (isDict(event.call) && isDict(event.call.args)) return event.call.args;
  const parts = isDict(event.message) ? event.message.parts : null;
  if (Array.isArray(parts)) {
    for (const part of parts) if (isDict(part) && part.id === id && isDict(part.args)) return part.args;
  }
  return isDict(event.args) ? event.args : null;
}

export interface Result {
  text: string;
  failed: boolean;
}

/** The outcome of a call, as the model reads it. */
export function resultOf(event: Json): Result | null {
  if (!isDict(event)) return null;
  const result = isDict(event.result) ? event.result : null;
  if (result) {
    const text = result.text ?? result.value ?? result.parts ?? null;
    const failed = result.is_error === true || result.error === true || result.failed === true || event.failed === true;
    return { text: written(text), failed };
  }
  if (event.error !== undefined) return { text: written(event.error), failed: true };
  return null;
}

/** The node whose bodies a request, a response or a completion shows. */
export function ownerOf(node: TreeNode): TreeNode {
  const inner = ["request", "response", "complete", "failed"].includes(node.data.kind);
  return inner && node.up ? node.up : node;
}
