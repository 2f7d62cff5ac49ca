/** Times, lengths of time and amounts, in words. */

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const SECOND = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const EXACT = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const COUNT = new Intl.NumberFormat("en-US");

export function count(value: number): string {
  return COUNT.format(value);
}

/** `1 question`, `2 questions`. */
export function several(value: number, one: string, many = one + "s"): string {
  return `${COUNT.format(value)} ${value === 1 ? one : many}`;
}

/** A length of time: `416 ms`, `1.0 s`, `38 s`, `2 min 4 s`, `3 h`. */
export function length(seconds: number): string {
  if (!(seconds >= 0)) return "";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  return coarse(seconds);
}

/** A length of time in one unit: `12 s`, `4 min`, `3 h`, `2 days`. */
export function coarse(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} days`;
}

/** How long ago: `now`, `12 s ago`, `4 min ago`; a date beyond a week. */
export function ago(time: number, now: number): string {
  const past = now - time;
  if (past < 5) return "now";
  return past > 604_800 ? DAY.format(time * 1000) : `${coarse(past)} ago`;
}

/** What remains until a deadline: `9:48`, `3 h`. */
export function remains(until: number, now: number): string {
  const left = Math.max(0, Math.ceil(until - now));
  if (left >= 3600) return coarse(left);
  return `${Math.floor(left / 60)}:${String(left % 60).padStart(2, "0")}`;
}

/** The time of day; with the day where that is not today. */
export function clock(time: number, now: number): string {
  const then = new Date(time * 1000);
  const same = then.toDateString() === new Date(now * 1000).toDateString();
  return same ? CLOCK.format(then) : `${CLOCK.format(then)}, ${DAY.format(then)}`;
}

export function second(time: number): string {
  return SECOND.format(time * 1000);
}

/** A moment of a run: the time of day with its milliseconds. */
export function moment(time: number): string {
  return `${SECOND.format(time * 1000)}.${String(Math.floor((time % 1) * 1000)).padStart(3, "0")}`;
}

export function exact(time: number): string {
  return EXACT.format(time * 1000);
}

export function price(cost: number | null | undefined): string {
  if (cost == null) return "no price";
  return `$${cost < 0.01 ? cost.toPrecision(2) : cost < 1 ? cost.toFixed(3).replace(/0$/, "") : cost.toFixed(2)}`;
}

const STATUS: Record<string, string> = {
  running: "running",
  waiting: "waiting",
  done: "done",
  failed: "failed",
  limit: "stopped at a limit",
  cancelled: "cancelled",
  interrupted: "interrupted",
  idle: "idle",
  open: "waits",
  answered: "answered",
  declined: "declined",
  expired: "nobody answered in time",
  withdrawn: "withdrawn",
};

export function statusWord(status: string): string {
  return STATUS[status] ?? status;
}
