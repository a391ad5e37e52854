// Numbers, sizes and times as people read them.

const plain = new Intl.NumberFormat("en");

export const count = (value) => plain.format(value);

export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

// One offset, or one for each of several partitions.
export const offsets = (value) => (typeof value === "object"
  ? Object.entries(value).map(([partition, offset]) => `${partition}:${count(offset)}`).join(" ") : count(value));

export function rate(value) {
  if (value >= 100_000) return `${plain.format(Math.round(value / 1000))} k/s`;
  return `${plain.format(value >= 10 ? Math.round(value) : Math.round(value * 10) / 10)}/s`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export const ms = (value) => `${value && value < 10 ? value.toFixed(2) : Math.round(value)} ms`;

export function time(us) {
  if (!us) return "–";
  return new Date(us / 1000).toISOString().replace("T", " ").slice(0, 23);
}

export const clock = (us) => new Date(us / 1000).toTimeString().slice(0, 8);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "for ever";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= length) return `${Math.round((seconds / length) * 10) / 10} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}
