// Numbers and times in words.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function count(number) {
  return number < 100000 ? whole.format(number) : compact.format(number);
}

function exact(number) {
  return whole.format(number);
}

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${number.toFixed(unit > 0 && number < 100 ? 1 : 0)} ${units[unit]}`;
}

// A measure that may be missing or not a number.
function measure(value, digits = 4) {
  return Number.isFinite(value) ? value.toFixed(digits) : "–";
}

function percent(share, digits = 0) {
  return Number.isFinite(share) ? `${(share * 100).toFixed(digits)} %` : "–";
}

function duration(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

function shortTime(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  return seconds < 1 ? `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;
}
