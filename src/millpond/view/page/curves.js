// Curves: smoothing, and means of several curves with bands. Shared by page and report.
"use strict";

(() => {
  const POINTS = 300; // points of a mean, roughly

  // A bias-corrected exponential moving average; weight 0 changes nothing.
  function smoothed(y, weight) {
    if (!weight) return y;
    let sum = 0;
    let seen = 0;
    return y.map((value) => {
      if (!Number.isFinite(value)) return value;
      sum = sum * weight + (1 - weight) * value;
      seen += 1;
      return sum / (1 - weight ** seen);
    });
  }

  // The y of a curve at x, linearly interpolated; null outside the curve.
  function valueAt(curve, x) {
    const { x: xs, y: ys } = curve;
    let low = 0;
    let high = xs.length - 1;
    if (high < 0 || x < xs[low] || x > xs[high]) return null;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle;
      else high = middle;
    }
    if (x === xs[high]) return ys[high];
    if (x === xs[low]) return ys[low];
    return ys[low] + (ys[high] - ys[low]) * (x - xs[low]) / (xs[high] - xs[low]);
  }

  // Mean, minimum and maximum of several curves; at each x, of those that reach it.
  function together(curves) {
    const every = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const step = Math.max(1, Math.ceil(every.length / POINTS));
    const found = { x: [], mean: [], low: [], high: [], count: [] };
    every.forEach((x, i) => {
      if (i % step && i !== every.length - 1) return;
      const values = curves.map((curve) => valueAt(curve, x)).filter((value) => Number.isFinite(value));
      if (!values.length) return;
      found.x.push(x);
      found.mean.push(values.reduce((a, b) => a + b, 0) / values.length);
      found.low.push(Math.min(...values));
      found.high.push(Math.max(...values));
      found.count.push(values.length);
    });
    return found;
  }

  Object.assign(window.millpond, { smoothed, valueAt, together });
})();
