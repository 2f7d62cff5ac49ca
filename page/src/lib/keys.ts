/** Keys. A view registers what it takes; the innermost view is asked first. */

import { settings } from "./settings.svelte";

export type KeyMap = Record<string, (event: KeyboardEvent) => boolean | void>;

const views: KeyMap[] = [];
const everywhere: KeyMap[] = [];
let before = "";
let beforeAt = 0;

/** Take keys until the returned function is called. What is taken `always` comes after what a view takes. */
export function keys(map: KeyMap, always = false): () => void {
  const stack = always ? everywhere : views;
  stack.push(map);
  return () => void stack.splice(stack.indexOf(map), 1);
}

/** Somebody types here, so letters are text. */
export function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.shadowRoot) return true;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "button", "range"].includes(target.type);
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement;
}

export function listen(): void {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (typing(event.target) || document.querySelector("dialog[open]")) return;
    const single = event.key.length === 1;
    if (single && !settings.letters) return;
    if (event.repeat && single) return;
    const pair = before && Date.now() - beforeAt < 1000 ? `${before} ${event.key}` : "";
    before = event.key;
    beforeAt = Date.now();
    for (const name of pair ? [pair, event.key] : [event.key]) {
      for (const map of [...everywhere, ...views].reverse()) {
        const act = map[name];
        if (act && act(event) !== false) {
          event.preventDefault();
          before = "";
          return;
        }
      }
    }
  });
}
