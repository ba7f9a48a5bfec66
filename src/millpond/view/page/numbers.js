// Formatting of numbers, times and values.
"use strict";

(() => {
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    for (const [scale, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= scale) return `${(value / scale).toPrecision(3)}${unit}`;
    return Number.isInteger(value) ? `${value}` : value.toPrecision(3);
  };

  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 60) return `${Math.ceil(seconds)} s`;
    if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
    return `${Math.round(seconds / 86400)} days`;
  };

  const percent = (share) => `${Math.floor(share * 100)}%`;

  // The time if it was today, else the date.
  const since = (seconds) => {
    const then = new Date(seconds * 1000);
    const today = then.toDateString() === new Date().toDateString();
    return today ? then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }) : then.toLocaleDateString("en-CA");
  };

  // A value as text; floats, also in lists, with four digits.
  const plain = (value) => {
    const digits = (one) => (typeof one === "number" && !Number.isInteger(one) ? Number(one.toPrecision(4)) : one);
    return typeof value === "object" ? JSON.stringify(value, (_, one) => digits(one)) : `${digits(value)}`;
  };

  Object.assign(window.millpond, { short, duration, percent, since, plain });
})();
