/** Values that outlive the tabs of the page, and are drawn again when they change. */

import { useEffect, useState } from "../vendor/preact.js";

export class Observed {
  #followers = new Set();

  constructor(value) {
    this.value = value;
  }

  set(value) {
    this.value = value;
    for (const follow of [...this.#followers]) follow();
  }

  /** Set what a function makes of the value. */
  change(made) {
    this.set(made(this.value));
  }

  /** Set an entry of the value, a map; take it out if there is nothing to set. */
  put(key, entry) {
    const next = new Map(this.value);
    if (entry) next.set(key, entry);
    else next.delete(key);
    this.set(next);
  }

  /** Call a function after each change; return the function that ends it. */
  follow(called) {
    this.#followers.add(called);
    return () => this.#followers.delete(called);
  }
}

/** Return the value of an Observed. isFramed: draw once a frame, for what changes more often. */
export function useObserved(observed, isFramed = false) {
  const [, draw] = useState(0);
  useEffect(() => {
    let frame = 0;
    const next = () => {
      frame = 0;
      draw((count) => count + 1);
    };
    const stop = observed.follow(isFramed ? () => (frame ||= requestAnimationFrame(next)) : next);
    // It may have changed between the drawing and now.
    next();
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [observed]);
  return observed.value;
}
