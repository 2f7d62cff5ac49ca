/** What the reader chose for this browser. */

function read(name: string, fallback: boolean): boolean {
  try {
    return (localStorage.getItem(`upcall-${name}`) ?? String(fallback)) === "true";
  } catch {
    return fallback;
  }
}

function keep(name: string, value: boolean): void {
  try {
    localStorage.setItem(`upcall-${name}`, String(value));
  } catch {
    // Storage is switched off: the choice lasts until this page is left.
  }
}

class Settings {
  /** Keys of a single letter. */
  letters = $state(read("letters", true));
  /** The reader said no to desktop notifications, here and not in the browser. */
  quiet = $state(read("quiet", false));
  /** Notifications were asked for. */
  notify = $state(read("notify", false));

  set(name: "letters" | "quiet" | "notify", value: boolean): void {
    this[name] = value;
    keep(name, value);
  }
}

export const settings = new Settings();
