/** The address of the page: which view it shows, below whatever path the server is mounted. */

export type Route =
  | { view: "home" }
  | { view: "inbox"; card: string }
  | { view: "sessions" }
  | { view: "session"; id: string; node: string };

const base = () => new URL(document.baseURI).pathname;

export function parse(pathname: string): Route {
  const below = pathname.startsWith(base()) ? pathname.slice(base().length) : pathname.replace(/^\//, "");
  const [view = "", id = "", ...rest] = below.split("/").map(decoded);
  if (view === "inbox") return { view, card: id };
  if (view === "sessions" && id) return { view: "session", id, node: rest.join("/") };
  return view === "sessions" ? { view } : { view: "home" };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function href(route: Route): string {
  const at = base();
  if (route.view === "inbox") return route.card ? `${at}inbox/${encodeURIComponent(route.card)}` : `${at}inbox`;
  if (route.view === "sessions") return `${at}sessions`;
  if (route.view === "home") return at;
  const node = route.node && route.node !== route.id ? `/${route.node.split("/").map(encodeURIComponent).join("/")}` : "";
  return `${at}sessions/${encodeURIComponent(route.id)}${node}`;
}

class Router {
  route = $state.raw<Route>({ view: "home" });

  start(): void {
    this.route = parse(location.pathname);
    window.addEventListener("popstate", () => (this.route = parse(location.pathname)));
    document.addEventListener("click", (event) => this.clicked(event));
  }

  go(route: Route, replace = false): void {
    if (__EXPORT__) return;
    const to = href(route);
    if (to !== location.pathname) {
      if (replace) history.replaceState(null, "", to);
      else history.pushState(null, "", to);
    }
    this.route = route;
  }

  /** Links inside the page change the view without loading it again. */
  private clicked(event: MouseEvent): void {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element).closest?.("a");
    if (!link || link.target || link.download || link.origin !== location.origin || link.hash) return;
    if (!link.pathname.startsWith(base())) return;
    event.preventDefault();
    this.go(parse(link.pathname));
    window.scrollTo(0, 0);
  }
}

export const router = new Router();
