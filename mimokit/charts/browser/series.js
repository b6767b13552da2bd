// Values that follow each other.

/** An exponential mean whose beginning is not pulled to 0; NaN stays where it is. */
export function smooth(values, smoothing) {
  const result = new Float32Array(values.length);
  let [sum, weight] = [0, 0];
  values.forEach((value, at) => {
    const known = value !== null && !Number.isNaN(value);
    if (known) {
      sum = smoothing * sum + (1 - smoothing) * value;
      weight = smoothing * weight + (1 - smoothing);
    }
    result[at] = known ? sum / weight : NaN;
  });
  return result;
}

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}
