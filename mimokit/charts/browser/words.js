// Numbers as they are read.

export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return String(Number(value.toFixed(1)));
  return String(Number(value.toPrecision(3)));
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

export function milliseconds(seconds) {
  return `${short(seconds * 1000)} ms`;
}

/** Seconds on a clock: s from one on, else ms. */
export function clockText(seconds, digits = 4) {
  const [value, unit] = seconds >= 1 ? [seconds, "s"] : [1000 * seconds, "ms"];
  return `${Number(value.toPrecision(digits))} ${unit}`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}

export function memory(bytes) {
  return bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(0)} MB`;
}

/** Round numbers from `bottom` to `top`. */
export function ticks(bottom, top, most) {
  const raw = (top - bottom || 1) / most;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * magnitude).find((s) => s >= raw * 0.9999);
  const found = [];
  for (let at = Math.ceil(bottom / step - 1e-9); at * step <= top + step * 1e-6; at++) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

export function quantile(values, share) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor((sorted.length - 1) * share)] : 0;
}

/**
 * The highest value that a scale has to reach. Few values of more than three times the usual one,
 * as of slow first steps, would flatten all the rest: they end at the top.
 */
export function reach(values, least = 1e-9) {
  const most = Math.max(least, ...values.filter((value) => value !== null));
  const far = most > 3 * quantile(values, 0.5);
  return 1.05 * (far ? Math.min(most, Math.max(least, 1.5 * quantile(values, 0.8))) : most);
}

/** A value of a metric by its kind: rate, seconds, bytes, share or number. */
export function written(value, kind) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const ways = { seconds: milliseconds, bytes: memory, share: percent, rate: whole };
  return (ways[kind] ?? short)(value);
}

const GROUPED = new Intl.NumberFormat("en"); // made once: each toLocaleString makes one

function whole(value) {
  return value >= 100 ? GROUPED.format(Math.round(value)) : short(value);
}
