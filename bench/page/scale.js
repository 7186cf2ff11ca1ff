// Scales from values to pixels, and their ticks.

/** A linear scale: a function of a value, with the properties domain and ticks(count). */
export function linear(domain, range) {
  const [low, high] = domain[0] === domain[1] ? [domain[0] - 0.5, domain[1] + 0.5] : domain;
  const scale = (value) => range[0] + ((value - low) / (high - low)) * (range[1] - range[0]);
  scale.domain = [low, high];
  scale.ticks = (count) => niceTicks(low, high, count);
  return scale;
}

/** A logarithmic scale of base 2, with ticks at powers of 2. */
export function binaryLog(domain, range) {
  const inner = linear(domain.map(Math.log2), range);
  const scale = (value) => inner(Math.log2(value));
  scale.domain = domain;
  scale.ticks = (count) => {
    const from = Math.ceil(Math.log2(domain[0]) - 1e-9);
    const to = Math.floor(Math.log2(domain[1]) + 1e-9);
    const every = Math.max(1, Math.ceil((to - from + 1) / count));
    const ticks = [];
    for (let power = from; power <= to; power += every) ticks.push(2 ** power);
    return ticks;
  };
  return scale;
}

/** The smallest and largest number, extended on each side by a share of their distance. */
export function extent(values, margin = 0, including = []) {
  const all = [...values, ...including];
  if (!all.length) return [0, 1];
  const [low, high] = [all.reduce((a, b) => Math.min(a, b)), all.reduce((a, b) => Math.max(a, b))];
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) {
    ticks.push(Number((at * step).toPrecision(12)));
  }
  return ticks;
}
