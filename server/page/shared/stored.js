/** Small things that are kept in this browser by a name, until it is told to forget them. */

import { useState } from "../vendor/preact.js";

/** Return what was kept, or start. storage: localStorage, or sessionStorage for this tab alone. */
export function kept(name, start, storage = localStorage) {
  try {
    return JSON.parse(storage.getItem(name)) ?? start;
  } catch {
    return start;
  }
}

/** Keep a value; forget it if it is null. Return whether the browser had room. */
export function keep(name, value, storage = localStorage) {
  try {
    if (value === null) storage.removeItem(name);
    else storage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    // The browser's storage is full or switched off.
    return false;
  }
}

/** As useState, kept in this browser under a name. */
export function useStored(name, start) {
  const [value, setValue] = useState(() => kept(name, start));
  return [value, (next) => {
    setValue(next);
    keep(name, next);
  }];
}
