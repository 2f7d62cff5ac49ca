/** Which card takes the keys, and when it may act.
 *
 * A press acts only on what the reader has seen: the card has the focus, stood still for half a second, and all of it
 * was on the screen.
 */

const STILL = 500;
const HEADER = 48;

export interface CardHandle {
  element: HTMLElement;
  /** From the question to the buttons. */
  core(): HTMLElement | null;
  /** The buttons. */
  actions(): HTMLElement | null;
  press(key: string): boolean;
}

interface Known {
  handle: CardHandle;
  place: string;
  /** When it was first shown or last moved. */
  since: number;
  moved: boolean;
  topSeen: boolean;
}

const known = new Map<string, Known>();
let observer: ResizeObserver | null = null;
/** What stands above a card may push it without changing its size, so they are looked at now and then, too. */
const OFTEN = 100;
let watch = 0;

function placeOf(element: HTMLElement): string {
  const parent = element.offsetParent;
  const above = parent ? parent.getBoundingClientRect().top + (isFixed(parent) ? 0 : window.scrollY) : 0;
  return `${Math.round(above + element.offsetTop)} ${Math.round(element.offsetLeft)}`;
}

function isFixed(element: Element): boolean {
  return element.closest("[data-fixed]") !== null;
}

/** Look where every card is. One that moved has to stand still again. */
export function look(): void {
  for (const one of known.values()) {
    const place = placeOf(one.handle.element);
    if (place !== one.place) {
      one.place = place;
      one.since = performance.now();
      one.moved = true;
    }
    if (!one.topSeen) one.topSeen = topIsSeen(one.handle.element);
  }
}

function topIsSeen(element: HTMLElement): boolean {
  const { top } = element.getBoundingClientRect();
  return top >= HEADER - 1 && top < window.innerHeight;
}

/** Register a card while it is on the page. */
export function register(id: string, handle: CardHandle): () => void {
  if (!observer) {
    observer = new ResizeObserver(look);
    window.addEventListener("scroll", look, { passive: true, capture: true });
  }
  observer.observe(handle.element);
  watch ||= window.setInterval(look, OFTEN);
  known.set(id, {
    handle,
    place: placeOf(handle.element),
    since: performance.now(),
    moved: false,
    topSeen: topIsSeen(handle.element),
  });
  return () => {
    observer?.unobserve(handle.element);
    known.delete(id);
    if (known.size) return;
    clearInterval(watch);
    watch = 0;
  };
}

function still(one: Known): boolean {
  look();
  return performance.now() - one.since > STILL;
}

/** A press with the pointer acts unless the card has just moved under it. */
export function mayClick(id: string): boolean {
  const one = known.get(id);
  return !one || still(one) || !one.moved;
}

function bottomEdge(): number {
  const bar = document.querySelector("[data-bottom]");
  return bar && getComputedStyle(bar).position === "fixed" ? bar.getBoundingClientRect().top : window.innerHeight;
}

function onScreen(one: Known): boolean {
  const core = one.handle.core();
  if (!core) return false;
  const frame = core.closest("[data-scrolls]")?.getBoundingClientRect();
  const top = Math.max(HEADER, frame?.top ?? 0);
  const bottom = Math.min(bottomEdge(), frame?.bottom ?? Infinity);
  const rect = core.getBoundingClientRect();
  if (rect.height <= bottom - top) return rect.top >= top - 1 && rect.bottom <= bottom + 1;
  const actions = one.handle.actions()?.getBoundingClientRect();
  return one.topSeen && actions !== undefined && actions.top >= top && actions.bottom <= bottom + 1;
}

/** Give a key to the focused card. */
export function press(key: string): boolean {
  const focused = document.activeElement?.closest<HTMLElement>("[data-card]");
  const one = known.get(focused?.dataset.card ?? "");
  if (!one) return false;
  if (!still(one) || !onScreen(one)) return true;
  return one.handle.press(key);
}
