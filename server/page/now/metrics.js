/** Read Prometheus' text format. */

/** Return the samples by name: [{labels, value}]. */
export function parse(text) {
  const samples = {};
  for (const line of text.split("\n")) {
    const found = /^([a-z_]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = Object.fromEntries([...(found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((one) => [one[1], one[2]]));
    (samples[found[1]] ??= []).push({ labels, value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

/** Return the sum of a metric over all labels. */
export const sum = (samples, name) => (samples[name] ?? []).reduce((total, { value }) => total + value, 0);

/** Return the sums of a metric by one of its labels: [[label's value, sum]]. */
export function sumBy(samples, name, label) {
  const sums = new Map();
  for (const { labels, value } of samples[name] ?? []) sums.set(labels[label], (sums.get(labels[label]) ?? 0) + value);
  return [...sums];
}

/** Return the upper end of the bucket in which a share of what a histogram counted ends; null if it is empty. */
export function quantile(samples, name, share) {
  const buckets = sumBy(samples, `${name}_bucket`, "le")
    .map(([limit, count]) => [limit === "+Inf" ? Infinity : Number(limit), count])
    .sort(([a], [b]) => a - b);
  const all = buckets.at(-1)?.[1] ?? 0;
  return all ? buckets.find(([, count]) => count >= share * all)[0] : null;
}
