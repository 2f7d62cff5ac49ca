/** The JSON view and the difference view, loaded when they are first opened.
 *
 * Each editor lives in a shadow root: there CodeMirror uses constructed style sheets, which a strict policy allows.
 */

import { json } from "@codemirror/lang-json";
import { codeFolding, foldGutter, foldKeymap, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, openSearchPanel, search, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension } from "@codemirror/state";
import { EditorView, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--muted)" },
  { tag: tags.string, color: "var(--text)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--accent)" },
]);

const look = EditorView.theme({
  "&": { backgroundColor: "var(--panel)", color: "var(--text)", font: "12.5px/18px var(--mono)", maxHeight: "70vh" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "18px", overflow: "auto" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--muted)", border: "none" },
  ".cm-foldPlaceholder": {
    backgroundColor: "var(--sunken)",
    border: "1px solid var(--line)",
    color: "var(--muted)",
    padding: "0 4px",
  },
  ".cm-selectionMatch": { backgroundColor: "var(--accent-soft)" },
  ".cm-searchMatch": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--accent)" },
  ".cm-searchMatch-selected, .cm-searchMatch-selected span": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-panels input, .cm-panels button": {
    background: "var(--panel)",
    color: "var(--text)",
    border: "1px solid var(--edge)",
    borderRadius: "6px",
    font: "13px/18px var(--sans)",
  },
  ".cm-panels label": { font: "12px/16px var(--sans)" },
  ".cm-panels .cm-button": { backgroundImage: "none", padding: "2px 8px" },
  ".cm-changedLine": { backgroundColor: "var(--ok-soft) !important" },
  ".cm-deletedChunk": { backgroundColor: "var(--fail-soft) !important" },
  ".cm-changedText": { background: "color-mix(in srgb, var(--ok) 10%, transparent) !important" },
  ".cm-deletedChunk .cm-deletedText": { background: "none !important", textDecoration: "line-through" },
  ".cm-collapsedLines": { background: "var(--sunken) !important", color: "var(--muted) !important" },
  ".cm-collapsedLines::before, .cm-collapsedLines::after": { content: '"···" !important' },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
});

function common(label: string): Extension[] {
  return [
    EditorState.readOnly.of(true),
    EditorView.contentAttributes.of({ "aria-label": label, "aria-readonly": "true", role: "textbox", tabindex: "0" }),
    lineNumbers(),
    codeFolding({ placeholderText: "…" }),
    foldGutter(),
    json(),
    syntaxHighlighting(colours),
    search({ top: true }),
    highlightSelectionMatches(),
    keymap.of([...searchKeymap, ...foldKeymap]),
    EditorView.lineWrapping,
    look,
  ];
}

export interface Editor {
  find(): void;
  destroy(): void;
}

function open(host: HTMLElement, doc: string, extensions: Extension[]): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  const view = new EditorView({ state: EditorState.create({ doc, extensions }), parent: root, root });
  return { find: () => void openSearchPanel(view), destroy: () => view.destroy() };
}

/** Show JSON, folded where one wants, searchable. */
export function show(host: HTMLElement, text: string, label: string): Editor {
  return open(host, text, common(label));
}

/** Show what changed between two documents; what is equal is folded. */
export function compare(host: HTMLElement, before: string, after: string, label: string): Editor {
  const merge = unifiedMergeView({
    original: before,
    mergeControls: false,
    gutter: true,
    collapseUnchanged: { margin: 3, minSize: 6 },
    diffConfig: { scanLimit: 2000, timeout: 300 },
  });
  return open(host, after, [...common(label), merge]);
}
