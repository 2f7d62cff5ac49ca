/** Long work in slices, between which the page draws frames and takes keys. */

/** Milliseconds of one slice: with what else a frame needs, it has to fit into one. */
const SLICE = 4;

/** Run work to its end; it stops at each `yield` where its slice is over. */
export async function inSlices<T>(work: Generator<void, T>): Promise<T> {
  for (;;) {
    const until = performance.now() + SLICE;
    do {
      const { done, value } = work.next();
      if (done) return value;
    } while (performance.now() < until);
    await nextTask();
  }
}

/** Let others run. A timer would wait for 4 ms each time. */
function nextTask(): Promise<void> {
  return new Promise((go) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      go();
    };
    port2.postMessage(null);
  });
}
