/** Show text from the log so that every character of it can be seen and none acts on the page. */

// C0 and C1 controls, bidirectional and zero-width format characters, tags and lone surrogates.
const STRANGE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/gu;
const TEST = new RegExp(STRANGE.source, "u");

function seen(found: string): string {
  const code = found.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
}

/** The same text with control and direction characters made visible. Line breaks and tabs stay. */
export function plain(text: unknown): string {
  const given = typeof text === "string" ? text : text == null ? "" : String(text);
  const whole = given.includes("\r\n") ? given.replaceAll("\r\n", "\n") : given;
  return TEST.test(whole) ? whole.replace(STRANGE, seen) : whole;
}

/** One line of it: line breaks become spaces, and what is longer than `most` is cut. */
export function line(text: unknown, most = 300): string {
  const cut = typeof text === "string" && text.length > most * 2 ? text.slice(0, most * 2) : text;
  const flat = plain(cut).replace(/\s+/g, " ").trim();
  return flat.length > most ? flat.slice(0, most - 1) + "…" : flat;
}

export interface Piece {
  text: string;
  /** The length of a hidden value, or 0 for text. */
  hidden: number;
  mask: string;
}

const MASK = /⟦hidden (\d+) #\d+⟧/g;

/** Something in a JSON value is hidden. */
export function hasMask(value: unknown): boolean {
  return (JSON.stringify(value) ?? "").search(MASK) >= 0;
}

/** Split a text at the masks of hidden values. */
export function pieces(text: string): Piece[] {
  const found: Piece[] = [];
  let from = 0;
  for (const match of text.matchAll(MASK)) {
    if (match.index > from) found.push({ text: plain(text.slice(from, match.index)), hidden: 0, mask: "" });
    found.push({ text: "", hidden: Number(match[1]), mask: match[0] });
    from = match.index + match[0].length;
  }
  if (from < text.length || !found.length) found.push({ text: plain(text.slice(from)), hidden: 0, mask: "" });
  return found;
}

/** A value as people write it: text as it is, everything else as JSON. */
export function written(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}
