/** How a card was settled, in words. */

import { ago, clock } from "./format";
import { line, written } from "./plain";
import type { Card } from "./types";

/** What was done to a card: a verb, and what follows its object. */
function deed(card: Card): [verb: string, more: string] {
  const value = card.answer?.value;
  if (card.status === "declined") return ["declined", ""];
  if (card.tool && value !== null && typeof value === "object" && !Array.isArray(value) && "approve" in value) {
    if (!value.approve) return ["rejected", ""];
    if (value.args) return ["approved", " with other arguments"];
    return ["approved", value.for_session ? " for this session" : ""];
  }
  return ["answered", ""];
}

/** The same of what somebody else did. */
function done(card: Card): string {
  const [verb, more] = deed(card);
  return verb === "answered" ? verb : `${verb} it${more}`;
}

/** One line about a settled card, in two parts: its subject stands between them. */
export function settledLine(card: Card, me: string, now: number): [before: string, after: string] {
  if (!card.answer) return [`${receipt(card, me, now)} `, ""];
  const who = card.answer.by === me ? "You" : line(card.answer.by || "Somebody", 60);
  const [verb, more] = deed(card);
  const [at, said] = [clock(card.answer.at, now), rest(card)];
  if (card.tool) return [`${who} ${verb} `, ` for ${line(card.agent, 60)}${more} at ${at}${said ? `: ${said}` : ""}`];
  const arrow = said ? (verb === "answered" ? ` → ${said}` : `: ${said}`) : "";
  return [`${who} ${verb === "answered" ? "answered" : "declined to answer"} ${line(card.agent, 60)} at ${at}: `, arrow];
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
  return `${who} ${done(card)} at ${at}${said ? `: ${said}` : ""}.`;
}

/** Somebody else was faster. */
export function tooLate(card: Card, now: number): string {
  if (!card.answer) return `${receipt(card, "", now)} Yours was not used.`;
  const said = rest(card);
  const when = ago(card.answer.at, now);
  return `${line(card.answer.by || "Somebody", 80)} ${done(card)} first, ${when}${said ? `: ${said}` : ""}. Yours was not used.`;
}
