/** Requests to the server: one place for its address, the key and its errors. */

import type { Json } from "./types";

export class ApiError extends Error {
  constructor(
    readonly code: number,
    message: string,
    readonly body: { [key: string]: Json },
  ) {
    super(message);
  }
}

const KEY = "upcall-token";

function kept(): string {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

let token = kept();

/** Take the key out of the address, so that nobody copies it with the address. */
export function takeToken(): void {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  token = given;
  try {
    sessionStorage.setItem(KEY, given);
  } catch {
    // Storage is switched off: the key lasts until this page is left.
  }
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function address(path: string): string {
  return new URL(path.replace(/^\//, ""), document.baseURI).href;
}

export function headers(more: Record<string, string> = {}): Record<string, string> {
  return token ? { Authorization: `Bearer ${token}`, ...more } : more;
}

async function failure(response: Response): Promise<ApiError> {
  let body: { [key: string]: Json } = {};
  try {
    body = (await response.json()) as { [key: string]: Json };
  } catch {
    // Not JSON: a proxy answered.
  }
  const known = response.status === 401 ? "this page's token is no longer valid, so the server refused this" : body.error;
  const said = typeof known === "string" ? known : `the server answered ${response.status}`;
  return new ApiError(response.status, said, body);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await fetch(address(path), { headers: headers(), cache: "no-store", signal: signal ?? null });
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const response = await fetch(address(path), {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
  });
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

/** Fetch a file with the key and hand it to the browser's downloads. */
export async function download(path: string, name: string): Promise<void> {
  const response = await fetch(address(path), { headers: headers() });
  if (!response.ok) throw await failure(response);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

export function path(...parts: (string | number)[]): string {
  return parts.map((part) => encodeURIComponent(String(part))).join("/");
}
