/** The arguments of a call as rows that can be read, edited and compared. */

import { written } from "./plain";
import type { Json } from "./types";

export interface Argument {
  name: string;
  value: Json;
  text: string;
  lines: number;
}

/** A value longer than this stands in a box of its own. */
export const LONG_LINES = 12;
const LONG_TEXT = 1200;

export function rows(args: Record<string, Json>): Argument[] {
  return Object.entries(args).map(([name, value]) => {
    const text = written(value);
    return { name, value, text, lines: text.split("\n").length };
  });
}

export function isLong(one: Argument): boolean {
  return one.lines > LONG_LINES || one.text.length > LONG_TEXT;
}

/** The value that an edited text stands for. Text stays text; everything else has to be JSON. */
export function parsed(original: Json, text: string): { value: Json } | { problem: string } {
  if (typeof original === "string") return { value: text };
  try {
    return { value: JSON.parse(text) as Json };
  } catch {
    return { problem: `This has to be JSON, as ${written(original).slice(0, 60)} is.` };
  }
}
