// A chart over time: lines or stacked areas, axes, vertical marks, and a moment that can be picked.
const { createElement: h, useEffect, useRef, useState } = globalThis.React;
const { Box, Text } = globalThis.ChakraUI;
import { dash, moment } from "./common.js";

const LEFT = 64, RIGHT = 8, TOP = 8, BOTTOM = 22, HEIGHT = 150;
export const COLOURS = ["#3182ce", "#dd6b20", "#38a169", "#d53f8c", "#805ad5", "#b7791f", "#718096"];
const GAP = 300; // seconds without a row after which a line is broken
const none = (value) => value === null || value === undefined;

// Steps between labels of an axis: 1, 2 or 5 times a power of ten; of durations and times, parts of an hour or of a day.
const DURATIONS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
function step(most, count, lasts) {
  const rough = most / count, even = lasts && rough > 1 && DURATIONS.find((one) => one >= rough);
  if (even) return even;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((one) => one * power >= rough);
}
const TIMES = [300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const clock = (at) => new Date(at * 1000).toLocaleTimeString("sv", { hour: "2-digit", minute: "2-digit" });

function useWidth() {
  const ref = useRef(null), [width, setWidth] = useState(480);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(200, Math.floor(entry.contentRect.width))));
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

// `series` are {name, values} over the times `at`; `said` puts a value in words, `lasts` says that it is in seconds; `onPick` gets a moment in seconds.
export function Chart({ title, at, series, said, from, to, marks = [], stacked = false, lasts = false, onPick }) {
  const [ref, width] = useWidth();
  const [place, setPlace] = useState(null);
  const shown = stacked ? stack(series) : series.map((one) => ({ ...one, low: null, high: one.values }));
  const most = Math.max(0, ...shown.flatMap((one) => one.high.filter((value) => !none(value)))) || 1;
  const x = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const time = (px) => from + ((px - LEFT) / (width - LEFT - RIGHT)) * (to - from);
  const every = step(most, 3, lasts), hours = TIMES.find((one) => (to - from) / one <= width / 70) || 86400;
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const heights = Array.from({ length: Math.floor(most / every + 1e-9) + 1 }, (_, number) => number * every);
  const times = [];
  for (let one = Math.ceil((from - zone) / hours) * hours + zone; one <= to; one += hours) times.push(one);
  const near = place === null || !at.length ? null
    : at.reduce((best, one, number) => (Math.abs(one - place) < Math.abs(at[best] - place) ? number : best), 0);
  const last = lastOf(series);
  const under = (event) => Math.min(to, Math.max(from, time(event.clientX - event.currentTarget.getBoundingClientRect().left)));
  const pick = (moment) => { if (onPick && moment !== null) onPick(moment); };
  const onKeyDown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) {
      event.preventDefault();
      setPlace((now) => Math.min(to, Math.max(from, (now ?? to) + (move * (to - from)) / 60)));
    } else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(place); }
  };
  const legend = near === null ? (last === null ? dash : `${said(last)} now`)
    : `${moment(at[near])}: ${series.map((one) => `${series.length > 1 ? `${one.name} ` : ""}${none(one.values[near]) ? dash : said(one.values[near])}`).join(", ")}`;
  return h(Box, { borderWidth: 1, borderRadius: "md", p: 2, minW: 0, flex: "1 1 20rem", maxW: "100%" },
    h(Text, { fontSize: "sm" }, h("strong", null, title), " ", h("span", { "data-legend": title }, legend)),
    series.length > 1 && h(Text, { fontSize: "xs" }, series.map((one, number) => h("span", { key: one.name, style: { marginRight: "0.8em", whiteSpace: "nowrap", display: "inline-block" } },
      h("span", { "aria-hidden": true, style: { color: COLOURS[number % COLOURS.length] } }, "■ "), one.name))),
    h("div", { ref }, h("svg", {
      width, height: HEIGHT, role: onPick ? "slider" : "img", tabIndex: 0, "data-chart": title,
      "aria-label": `${title}, ${legend}${onPick ? ". Arrow keys move, Enter plans a rewind to that moment." : ""}`,
      ...(onPick ? { "aria-valuemin": from, "aria-valuemax": to, "aria-valuenow": place ?? to, "aria-valuetext": moment(place ?? to) } : {}),
      style: { display: "block", cursor: onPick ? "crosshair" : "default" },
      onMouseMove: (event) => setPlace(under(event)),
      onMouseLeave: () => setPlace(null), onClick: (event) => pick(under(event)), onKeyDown,
    },
    heights.map((one) => h("g", { key: `y${one}` },
      h("line", { x1: LEFT, x2: width - RIGHT, y1: y(one), y2: y(one), stroke: "currentColor", opacity: 0.15 }),
      h("text", { x: LEFT - 6, y: y(one) + 4, textAnchor: "end", fontSize: 11, fill: "currentColor" }, said(one)))),
    times.map((one) => h("g", { key: `x${one}` },
      h("line", { x1: x(one), x2: x(one), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, stroke: "currentColor" }),
      h("text", { x: x(one), y: HEIGHT - 5, textAnchor: "middle", fontSize: 11, fill: "currentColor" }, clock(one)))),
    h("line", { x1: LEFT, x2: width - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, stroke: "currentColor", opacity: 0.6 }),
    shown.map((one, number) => h("path", {
      key: one.name, d: path(at, one, x, y), fill: one.low ? COLOURS[number % COLOURS.length] : "none",
      fillOpacity: 0.7, stroke: COLOURS[number % COLOURS.length], strokeWidth: one.low ? 0.5 : 1.5,
    })),
    marks.filter((one) => one.at >= from && one.at <= to).map((one, number) => h("g", { key: `m${number}`, "data-mark": one.kind },
      h("title", null, `${moment(one.at)}: ${one.title}`),
      h("line", { x1: x(one.at), x2: x(one.at), y1: TOP, y2: HEIGHT - BOTTOM, stroke: one.kind === "restart" ? "#718096" : "#e53e3e",
        strokeDasharray: one.kind === "restart" ? "3 3" : "none", strokeWidth: 1.5 }),
      h("rect", { x: x(one.at) - 4, y: TOP, width: 8, height: HEIGHT - TOP - BOTTOM, fill: "transparent" }))),
    place !== null && h("line", { x1: x(place), x2: x(place), y1: TOP, y2: HEIGHT - BOTTOM, stroke: "currentColor", pointerEvents: "none" }))));
}

const lastOf = (series) => {
  if (series.length !== 1) return null;
  const known = series[0].values.filter((value) => !none(value));
  return known.length ? known[known.length - 1] : null;
};

function stack(series) {
  let low = series[0]?.values.map(() => 0) || [];
  return series.map((one) => {
    const base = low, high = low.map((value, at) => value + (one.values[at] || 0));
    low = high;
    return { ...one, low: base, high };
  });
}

function path(at, one, x, y) {
  const runs = [];
  let run = [];
  one.high.forEach((value, number) => {
    const broken = none(value) || (number && at[number] - at[number - 1] > GAP);
    if (broken && run.length) { runs.push(run); run = []; }
    if (!none(value)) run.push(number);
  });
  if (run.length) runs.push(run);
  const point = (number, values) => `${x(at[number]).toFixed(1)},${y(values[number]).toFixed(1)}`;
  return runs.map((points) => {
    const there = points.map((number) => point(number, one.high));
    if (!one.low) return points.length > 1 ? `M${there.join("L")}` : `M${there[0]}h1`;
    return `M${[...there, ...points.map((number) => point(number, one.low)).reverse()].join("L")}Z`;
  }).join("");
}
