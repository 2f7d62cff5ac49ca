/// <reference types="svelte" />
/// <reference types="vite/client" />

declare const __EXPORT__: boolean;

interface Window {
  /** For whoever debugs a page: the nodes of the run tree that it shows, and the position up to which it has them. */
  upcall?: { nodes(): unknown[]; position(): number };
}
