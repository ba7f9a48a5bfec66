// Curves: smoothing, and the mean of several with its band. Shared by the page and the report.
"use strict";

(() => {
  const POINTS = 300; // of a mean

  // An exponential moving average without the pull of its beginning; 0 leaves all as it is.
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

  // The y of a curve at an x, by straight lines between its points; null before and after it.
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

  // The mean, the lowest and the highest of several curves, of those that reach an x.
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
