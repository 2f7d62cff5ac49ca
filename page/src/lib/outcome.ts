/** How a card was settled, in words. */

import { ago, clock } from "./format";
import { line, written } from "./plain";
import type { Card } from "./types";

function deed(card: Card, first = false): string {
  const value = card.answer?.value;
  const how = first ? " first" : "";
  if (card.status === "declined") return `declined it${how}`;
  if (card.tool && value !== null && typeof value === "object" && !Array.isArray(value) && "approve" in value) {
    if (!value.approve) return `rejected it${how}`;
    if (value.args) return `approved it with other arguments${how}`;
    return value.for_session ? `approved it for this session${how}` : `approved it${how}`;
  }
  return `answered${how}`;
}

function rest(card: Card): string {
  const value = card.answer?.value;
  if (card.status === "declined") return card.answer?.reason ? line(card.answer.reason, 200) : "";
  if (card.tool) {
    const why = value !== null && typeof value === "object" && !Array.isArray(value) ? value.reason : "";
    return typeof why === "string" ? line(why, 200) : "";
  }
  return line(written(value), 200);
}

/** What a card says once it is settled. `{goes on}` follows it. */
export function receipt(card: Card, me: string, now: number): string {
  if (card.status === "expired") {
    const when = card.expires ? ` (${clock(card.expires, now)})` : "";
    return `Nobody answered in time${when}. The agent was told so.`;
  }
  if (card.status === "withdrawn" || !card.answer) return line(card.outcome || "It needs no answer any more.");
  const who = card.answer.by === me ? "You" : line(card.answer.by || "Somebody", 80);
  const said = rest(card);
  const at = clock(card.answer.at, now);
  if (card.status === "answered" && !card.tool) return `${who} answered ${said} at ${at}.`;
  return `${who} ${deed(card)} at ${at}${said ? `: ${said}` : ""}.`;
}

/** Somebody else was faster. */
export function tooLate(card: Card, now: number): string {
  if (!card.answer) return `${receipt(card, "", now)} Yours was not used.`;
  const said = rest(card);
  const when = ago(card.answer.at, now);
  return `${line(card.answer.by || "Somebody", 80)} ${deed(card, true)}, ${when}${said ? `: ${said}` : ""}. Yours was not used.`;
}
