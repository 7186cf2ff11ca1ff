/** Figures as words. */

const MIB = 2 ** 20;
const GIB = 2 ** 30;

/** Return "12 ms", "0.12 s", "4.2 s", "46 s" or "2 min 5 s". */
export function seconds(value) {
  if (value < 0.0995) return `${Math.round(1000 * value)} ms`;
  if (value < 0.995) return `${value.toFixed(2)} s`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  return whole < 120 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

export const percent = (part, whole = 1) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

export function bytes(count) {
  if (!count) return "";
  if (count >= GIB) return `${(count / GIB).toFixed(1)} GiB`;
  return `${(count / MIB).toFixed(count < 100 * MIB ? 1 : 0)} MiB`;
}

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Return "812" or "12.3K". */
export const compact = (count) => COMPACT.format(count);

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** An id that nothing else has. Browsers have randomUUID over HTTPS and on this machine only. */
export const newId = () =>
  [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
