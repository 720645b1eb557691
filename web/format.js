// Number formatting.
function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}
function scaled(value, units, base) {
  if (!value) return "0";
  let i = 0;
  while (Math.abs(value) >= base && i + 1 < units.length) { value /= base; ++i; }
  return `${Number(value.toPrecision(3))} ${units[i]}`;
}
const bytes = (value) => value === null || value === undefined ? "–" : scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
const count = (value) => value === null || value === undefined ? "–" : scaled(value, ["", "K", "M", "B", "T"], 1000).trim();
const percent = (part, digits = 1) => part === null || part === undefined || !Number.isFinite(part) ? "–" : `${(100 * part).toFixed(digits)} %`;
function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3) return `${number(value * 1e6, 3)} µs`;
  if (size < 1) return `${number(value * 1e3, 3)} ms`;
  if (size < 120) return `${number(value, 3)} s`;
  if (size < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round(value % 3600 / 60)} min`;
}
const clock = (unix) => unix ? new Date(unix * 1000).toLocaleString() : "–";

// Round tick values that divide a range into about `about` parts.
function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((by) => by * power >= raw) * power;
  const all = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) all.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return all;
}
function byteTicks(low, high, about) {  // round in the displayed unit
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)));
  return ticks(low / unit, high / unit, about).map((at) => at * unit);
}
function logTicks(low, high) {
  const all = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power)
    for (const by of high / low > 30 ? [1] : [1, 2, 3, 5, 7]) {
      const at = by * 10 ** power;
      if (at >= low * 0.999 && at <= high * 1.001) all.push(at);
    }
  return all.length >= 2 ? all : ticks(low, high, 4);
}
