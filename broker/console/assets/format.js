// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
export const DASH = "–";

export function number(value) {
  return value === null || value === undefined ? DASH : whole.format(value);
}

export function rate(value) {
  return value === null || value === undefined ? DASH : `${(value < 10 ? tenths : whole).format(value)}/s`;
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return DASH;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${(unit && bytes < 100 ? tenths : whole).format(bytes)} ${units[unit]}`;
}

export function part(value) {
  return value === null || value === undefined ? DASH : `${tenths.format(value * 100)} %`;
}

/** How long something takes, or is ago: 340 ms, 12.5 s, 3 min 20 s, 2 h 5 min, 4 d 3 h. */
export function duration(ms) {
  if (ms === null || ms === undefined) return DASH;
  if (ms < 0) return `-${duration(-ms)}`;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${tenths.format(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const two = (value) => String(value).padStart(2, "0");

/** A moment in this browser's zone: 14:03:22 today, 2030-01-31 14:03:22 else; with milliseconds if asked. */
export function moment(ms, milliseconds = false) {
  if (!ms || ms < 0) return DASH;
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const exact = milliseconds ? `${time}.${String(at.getMilliseconds()).padStart(3, "0")}` : time;
  return new Date().toDateString() === at.toDateString() ? exact : `${day} ${exact}`;
}

/** The value of an input of the type datetime-local for a moment, and back. */
export function toInput(ms) {
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function fromInput(text) {
  const ms = text ? new Date(text).getTime() : NaN;
  return Number.isFinite(ms) ? ms : null;
}

/** One of something, or several. */
export function count(value, one, several = `${one}s`) {
  return `${number(value)} ${value === 1 ? one : several}`;
}
