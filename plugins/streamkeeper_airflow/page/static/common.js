// What all parts of the page share: how it asks, how it says numbers, and small elements.
// Texts of users are children of elements, so that they are shown as text.
const { createElement: h, useCallback, useEffect, useState } = globalThis.React;
const { Badge, Box, Heading, Table, Text } = globalThis.ChakraUI;

const EVERY = 5000;
export const COLOURS = {
  running: "green", idle: "green", done: "gray", starting: "blue", "slow": "yellow", retrying: "orange",
  down: "red", parked: "red", unreadable: "red", held: "purple", stopping: "purple", "change refused": "orange",
};
export const dash = "–";

// A URL below the path of Airflow's base URL.
export const url = (path) => new URL(path, document.baseURI).toString();
export const segment = encodeURIComponent;

// Marks in users' texts that change the direction of writing: what comes after them would be read backwards.
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

export async function ask(path, method = "GET", body = undefined) {
  const answer = await fetch(url(path), {
    method, credentials: "same-origin",
    ...(body === undefined ? {} : { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
  });
  const found = await answer.text().then((text) => JSON.parse(text.replace(TURNS, ""))).catch(() => ({}));
  if (!answer.ok) throw new Error(said(found.detail) || `${answer.status} ${answer.statusText}`);
  return found;
}

// Airflow says what is wrong as a text, or as a list with a place and a message for each.
function said(detail) {
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((one) => `${(one.loc || []).slice(1).join(".")}: ${one.msg}`).join("; ");
  return detail ? JSON.stringify(detail) : "";
}

// Ask for something now and every few seconds, but not while nobody looks; `again` asks at once.
export function useLook(path, every = EVERY) {
  const [seen, setSeen] = useState({});
  const again = useCallback(async () => {
    if (!path) return;
    try {
      const found = await ask(path);
      const age = found.overdue && Date.now() / 1000 - found.at;
      setSeen({ path, found, error: found.overdue || undefined, age });
    }
    catch (error) { setSeen((before) => ({ ...before, path, error: String(error.message || error) })); }
  }, [path]);
  useEffect(() => {
    again();
    const timer = setInterval(() => { if (!document.hidden) again(); }, every);
    return () => clearInterval(timer);
  }, [again, every]);
  return { ...seen, again };
}

const none = (value) => value === null || value === undefined;
export const whole = (value) => (none(value) ? dash : Math.round(value).toLocaleString("en"));
export const age = (seconds) => {
  if (none(seconds) || Number.isNaN(seconds)) return dash;
  if (seconds < 120) return `${Math.round(Math.max(0, seconds))} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
};
// Ages are taken by the clock of who looked, not by that of this machine.
export const since = (text, now) => (text ? age(now - Date.parse(text) / 1000) : dash);
export const counted = (number, what) => `${whole(number)} ${number === 1 ? what.replace(/s$/, "") : what}`;
export const size = (bytes) => {
  if (!bytes) return dash;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** step).toFixed(step ? 1 : 0)} ${units[step]}`;
};
// A moment, as a text or in seconds since 1970, in the zone of whoever looks.
export const moment = (at) => (at ? new Date(typeof at === "number" ? at * 1000 : at).toLocaleString("sv") : dash);

const STALE = 300; // seconds after which it is said how old a measure is

// How far a flow is behind, in words; `now` is when the look was taken, in seconds since 1970.
export function behind(row, now) {
  const lag = row.lag;
  if (!lag) return row.waiting_since ? `input waits for ${age(now - row.waiting_since)}` : dash;
  const old = now - lag.at > STALE ? ` (${age(now - lag.at)} ago)` : "";
  if (lag.seconds === 0 && !lag.partly_unknown) return `nothing waits${old}`;
  const parts = lag.seconds ? [age(lag.seconds)] : [];
  const counts = ["records", "files", "versions"].find((name) => !none(lag[name]));
  if (counts) parts.push(counted(lag[counts], counts));
  if (lag.partly_unknown) parts.push(parts.length ? "the rest is unknown" : "unknown");
  return (parts.join(", ") || "unknown") + old;
}
export const WELL = ["running", "idle", "slow"]; // states whose detail is the driver alone
const READS = ["running", "slow", "change refused"]; // states in which a flow has something to catch up with
const ARROWS = { grows: "↗", steady: "→", shrinks: "↘" };
export function trend(row) {
  const { moves, caught_up_in: left } = row.lag || {};
  return moves ? { arrow: ARROWS[moves], text: moves === "shrinks" && !none(left) && READS.includes(row.state) ? `caught up in ${age(left)}` : moves } : null;
}

export const State = ({ state }) => h(Badge, { colorPalette: COLOURS[state] || "gray" }, state);
export const Problem = ({ text }) => h(Box, { role: "alert", color: "fg.error", p: 2, overflowWrap: "anywhere" }, text);
export const Card = ({ title, children, ...more }) => h(Box, { as: "section", borderWidth: 1, borderRadius: "md", p: 3,
  mb: 3, minW: 0, "aria-label": title, ...more }, h(Heading, { as: "h3", size: "sm", mb: 2 }, title), children);
export const Lines = ({ text }) => h("pre", { style: { whiteSpace: "pre-wrap", overflowWrap: "anywhere", fontSize: "0.85em" } }, text);
export const Small = ({ children, ...more }) => h(Text, { fontSize: "xs", color: "fg.muted", ...more }, children);
export const Waiting = ({ error }) => (error ? h(Problem, { text: error }) : h(Text, { p: 4 }, "Looking …"));

// What is wider than the window scrolls by itself; the page does not.
export const Wide = ({ children }) => h("div", { style: { overflowX: "auto", maxWidth: "100%" }, tabIndex: 0, role: "region", "aria-label": "Table" }, children);
export const Grid = ({ titles, rows }) => h(Wide, null, h(Table.Root, { size: "sm" },
  h(Table.Header, null, h(Table.Row, null, titles.map((title) => h(Table.ColumnHeader, { key: title }, title)))),
  h(Table.Body, null, rows.map((row, at) => h(Table.Row, { key: at },
    row.map((cell, place) => h(Table.Cell, { key: place, verticalAlign: "top", overflowWrap: "anywhere" },
      typeof cell === "string" && cell.length > 30 ? h("div", { style: { minWidth: "14em" } }, cell) : cell)))))));
export const Whole = ({ text }) => h("span", { style: { whiteSpace: "nowrap" } }, text);

// In a narrow window a flow of the list is a card, with a name before each number.
const STYLE = `
.streamkeeper :focus-visible { outline: 2px solid currentColor; outline-offset: 2px; }
.streamkeeper a { text-decoration: underline; }
.streamkeeper tr[data-flow] { cursor: pointer; }
.streamkeeper tr[data-flow] td:first-child { min-width: 11em; max-width: 24em; overflow-wrap: anywhere; }
.streamkeeper tr[data-flow] td:nth-child(2) { min-width: 13em; }
.streamkeeper tr[data-flow] td:nth-child(n + 6) { min-width: 6.5em; }
.streamkeeper [data-detail] { display: -webkit-box; -webkit-line-clamp: 3; -webkit-box-orient: vertical; overflow: hidden; }
@media (max-width: 800px) {
  .streamkeeper [data-list] :is(table, tbody, thead, tr, td, th) { display: block; }
  .streamkeeper [data-list] thead tr { display: flex; flex-wrap: wrap; }
  .streamkeeper [data-list] tr[data-flow] { border-bottom: 1px solid var(--chakra-colors-border); padding: 0.4em 0; }
  .streamkeeper [data-list] tr[data-flow] td { border: 0; padding: 0.1em 0.5em; max-width: none; }
  .streamkeeper [data-list] td[data-title]:nth-child(n + 3)::before { content: attr(data-title) ": "; opacity: 0.7; }
  .streamkeeper [data-list] td[data-empty] { display: none; }
}`;

// The window of Airflow around the page may be wider than the page's own part of it.
export const Page = ({ children }) => h("div", { className: "streamkeeper", style: { padding: "1rem", minWidth: 0, maxWidth: "100%", overflowX: "hidden" } },
  h("style", null, STYLE),
  children);
