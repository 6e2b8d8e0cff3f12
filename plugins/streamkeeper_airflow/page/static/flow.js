// The tab of a flow: how it does, what fits, its last hours, and what is known of it.
const { createElement: h, useState } = globalThis.React;
const { Box, Button, Heading, Text } = globalThis.ChakraUI;
const { Link } = globalThis.ReactRouterDOM;
import { Chart } from "./chart.js";
import { Actions } from "./forms.js";
import { Card, Grid, Lines, Page, Problem, Small, State, WELL, Whole, age, behind, counted, dash, moment, segment, since, size, trend, useLook, whole }
  from "./common.js";

const RANGES = [1, 6, 48];
const HISTORY = 30000;
const seconds = (value) => (value < 10 ? `${Number(value.toFixed(1))} s` : age(value));
const over = (some, other) => some.map((value, at) => (other[at] ? value / other[at] : null));

// Restarts and new generations, as vertical marks of every chart.
function marksOf(columns, generations) {
  const restarts = columns.at.flatMap((at, row) => (columns.drivers[row] > 0 ? [{ at, kind: "restart",
    title: columns.drivers[row] > 1 ? `${columns.drivers[row]} drivers started` : "a driver started" }] : []));
  const lives = generations.filter((life) => life.previous !== null).map((life) => ({ at: Date.parse(life.began || life.at) / 1000,
    kind: "recovery", title: `generation ${life.number}: ${life.reason}, by ${life.by}` }));
  return [...restarts, ...lives];
}

function Charts({ row, generations, onPick }) {
  const [hours, setHours] = useState(6);
  const { found, error } = useLook(
    `streamkeeper/api/dags/${segment(row.dag_id)}/history?flow=${segment(row.flow)}&hours=${hours}`, HISTORY);
  const range = h(Box, { display: "flex", gap: 2, mb: 2, role: "group", "aria-label": "Hours shown" }, RANGES.map((one) => h(Button, {
    key: one, size: "xs", variant: one === hours ? "solid" : "outline", "aria-pressed": one === hours,
    onClick: () => setHours(one) }, `${one} h`)));
  if (!found) return h(Card, { title: "Last hours" }, range, error ? h(Problem, { text: error }) : "Looking …");
  const { columns, phases } = found;
  const common = { at: columns.at, from: found.now - found.hours * 3600, to: found.now, onPick, marks: marksOf(columns, generations) };
  const line = (name, values) => [{ name, values }];
  const delay = columns.watermark.map((mark, at) => (mark === null ? null : Math.max(0, columns.at[at] - mark)));
  const known = (values) => values.some((value) => value !== null);
  return h(Card, { title: "Last hours" }, range,
    error && h(Problem, { text: error }),
    columns.at.length === 0 && h(Text, null, "No minute is kept yet: the monitor keeps one row a minute of a flow that has a driver."),
    columns.at.length > 0 && h(Box, { display: "flex", gap: 3, flexWrap: "wrap" },
      h(Chart, { ...common, title: "Behind", lasts: true, series: line("behind", columns.lag_seconds), said: seconds }),
      h(Chart, { ...common, title: "Rows/s", series: line("rows", over(columns.rows, columns.seconds)), said: (value) => (value < 10 ? String(Number(value.toFixed(1))) : whole(value)) }),
      h(Chart, { ...common, title: "Batch time", lasts: true, stacked: true, said: seconds,
        series: Object.entries(phases).map(([name, values]) => ({ name: PHASES[name] || name, values: over(values, columns.batches).map((value) => value ?? 0) })) }),
      known(columns.state_rows) && h(Chart, { ...common, title: "State rows", series: line("rows", columns.state_rows), said: whole }),
      known(columns.state_bytes) && h(Chart, { ...common, title: "State size", series: line("bytes", columns.state_bytes), said: (value) => (value ? size(value) : "0") }),
      known(delay) && h(Chart, { ...common, title: "Watermark delay", lasts: true, series: line("delay", delay), said: age })),
    columns.at.length > 0 && h(Small, { mt: 2 },
      "Dashed: a driver started. Red: a new generation.", onPick ? " Click on a chart to rewind to that moment." : ""));
}

// Spark's names of the parts of a batch, in words.
const PHASES = { addBatch: "run and write", commitOffsets: "commit", getBatch: "prepare", latestOffset: "find input",
  queryPlanning: "plan", walCommit: "write the log", commitBatch: "commit" };

const positions = (found) => Object.entries(found).map(([name, text]) => `${name}: ${text}`).join("; ");

function Cost({ impacts }) {
  return impacts.map((impact) => h(Text, { key: impact.source, fontSize: "sm" },
    `${impact.source}: lost ${impact.lost}, repeated ${impact.repeated}`));
}

function Generations({ generations }) {
  const lives = [...generations].reverse();
  return h(Card, { title: "Generations" }, lives.length === 0 && h(Text, null, "There is none: it has never started."), h("ol", { reversed: true, style: { listStyle: "none", padding: 0 } }, lives.map((life, at) => h("li", {
    key: life.number, "data-generation": life.number,
    style: { position: "relative", paddingLeft: "1.6em", paddingBottom: "0.8em", borderLeft: "2px solid", marginLeft: "0.4em" } },
  h("span", { "aria-hidden": true, style: { position: "absolute", left: "-0.42em", top: "0.35em", width: "0.7em", height: "0.7em",
    borderRadius: "50%", background: at === 0 ? "#38a169" : "currentColor" } }),
  h(Text, { fontWeight: "bold" }, `${life.number} · ${moment(life.began || life.at)}${life.began ? "" : " · decided, not begun"}`),
  h(Text, null, `${life.reason}, by ${life.by}`),
  h(Text, { fontSize: "sm", overflowWrap: "anywhere" },
    `Start ${life.start}, state ${life.state}. From ${positions(life.positions) || "the beginning"}`
    + (life.last_batch === null ? "." : ` to batch ${life.last_batch}.`)),
  h(Cost, { impacts: life.impacts })))));
}

function Log({ log }) {
  if (!log.location) return null;
  return h(Card, { title: "Log of the driver" }, h("details", null, h("summary", null, `Last lines of ${log.location}`),
    h(Lines, { text: log.lines.join("\n") || "It cannot be read here, or is empty." })));
}

const EMPTY = ["null", '""', "[]", "{}"];
const OURS = ["code", "kind"]; // of no use to a person
const told = (of) => Object.entries(of).filter(([name, value]) => !OURS.includes(name) && !EMPTY.includes(JSON.stringify(value)));

// A declared value in words: lists by commas, where it is declared as a line of its file.
function plain(value) {
  if (Array.isArray(value)) return value.map(plain).join("; ");
  if (value === null || typeof value !== "object") return String(value);
  if (value.file && value.line) return `${value.file}, line ${value.line}`;
  return told(value).map(([name, of]) => `${name} ${plain(of)}`).join(", ");
}
const Declared = ({ title, of }) => h(Box, { mb: 2 }, h(Text, { fontWeight: "bold" }, title),
  told(of).map(([name, value]) => h(Text, { key: name, fontSize: "sm", overflowWrap: "anywhere" }, `${name}: ${plain(value)}`)));

export function Flow({ found }) {
  const { row, holds, verdict, sources, declaration, events, backups, table, beside, spark } = found;
  const [picked, setPicked] = useState(null);
  const last = row.batch_numbers, moves = trend(row);
  return h(Page, null,
    h(Heading, { as: "h2", size: "lg", mb: 2, overflowWrap: "anywhere" }, row.flow, " ", h(State, { state: row.state })),
    beside.length > 1 && h(Text, { mb: 2 }, "One driver runs: ", beside.map((one) => h(Link, { key: one.flow, style: { marginRight: "1em" },
      to: `/plugin/streams?dag=${segment(row.dag_id)}&flow=${segment(one.flow)}`, "aria-current": one.flow === row.flow }, `${one.flow} (${one.state})`))),
    holds.length === 0 && !WELL.includes(row.state) && h(Text, { mb: 3, overflowWrap: "anywhere" }, row.detail),
    h(Card, { title: "Now" }, h(Text, null, [
      row.since ? `${row.state} for ${since(row.since, found.at)}` : row.state,
      row.generation === null ? null : `generation ${row.generation}`,
      row.batch === null ? "no batch committed" : `batch ${row.batch}, ${age(row.age)} ago`,
      `behind: ${behind(row, found.at)}${moves ? ` (${moves.text})` : ""}`,
      last ? `the last batch had ${whole(last.rows)} rows and took ${last.seconds.toFixed(1)} s (${whole(row.rows_per_second)} rows/s; trigger ${row.trigger})` : null,
      last && last.state_rows ? `state ${whole(last.state_rows)} rows, ${size(last.state_bytes)}` : null,
      row.last_recovery ? `last recovery: ${row.last_recovery}` : null,
      row.totals.late ? `${whole(row.totals.late)} rows dropped as late` : null,
      row.totals.skipped_commits ? `${whole(row.totals.skipped_commits)} commits skipped, with at most ${whole(row.totals.skipped_rows)} rows added or changed in them` : null,
      row.totals.ties ? `${whole(row.totals.ties)} upserts that the sequence does not order` : null,
    ].filter(Boolean).join(" · ")), WELL.includes(row.state) && h(Small, null, row.detail)),
    holds.length > 0 && h(Card, { title: "Why it does not run" }, holds.map((one) => h(Box, { key: one.owner },
      h(Text, { fontWeight: "bold", overflowWrap: "anywhere" }, `${owned(one)}, ${moment(one.at)}`),
      h(Lines, { text: one.description })))),
    verdict && h(Card, { title: "Change of the declaration" }, h(Lines, { text: verdict })),
    h(Actions, { found, picked }),
    h(Charts, { row, generations: found.generations, onPick: found.may.rewind ? (at) => setPicked({ at }) : undefined }),
    (spark.ui || spark.history) && h(Card, { title: "Spark" }, [["ui", "Spark's UI of the driver"], ["history", "History server"]].map(([key, text]) =>
      /^https?:/.test(spark[key] || "") && h("a", { key, href: spark[key], target: "_blank", rel: "noreferrer", style: { marginRight: "1em" } }, text))),
    h(Card, { title: "Sources" }, 
      sources.map((one) => h(Text, { key: one.name, overflowWrap: "anywhere" },
        `${one.name} (${one.kind}): ${one.position ?? "nothing is read yet"}${waits(row.lag?.sources?.[one.name])}`))),
    last && Object.keys(last.expectations).length > 0 && h(Card, { title: "Expectations, last batch" },
      Object.entries(last.expectations).map(([name, [passed, failed]]) => h(Text, { key: name },
        `${name}: ${whole(passed)} passed, ${whole(failed)} failed`))),
    h(Generations, { generations: found.generations }),
    h(Card, { title: "Events" }, events.length === 0 ? h(Text, null, "None is kept yet.") : h(Grid, {
      titles: ["When", "What", "Details", "By"], rows: events.map((one) => [h(Whole, { text: moment(one.at) }),
        h(Whole, { text: one.kind.replaceAll("-", " ") }), one.text, h("div", { style: { minWidth: "5em" } }, one.by)]) })),
    h(Card, { title: `Table ${row.pipeline}.${row.table}` }, h(Text, { overflowWrap: "anywhere" }, table.version === null
      ? "Its size is not known, or it is not there yet."
      : `version ${table.version}, ${table.rows === null ? "" : `${whole(table.rows)} rows, `}${size(table.bytes)} in ${whole(table.files)} files`), h(Small, null, table.path)),
    h(Card, { title: "Backups" }, backups.length === 0 ? h(Text, null, "There is none.") : h(Grid, {
      titles: ["Backup", "When", "Rows", "Size", "Version"],
      rows: [...backups].reverse().map((one) => [one.id, moment(one.at), whole(one.rows), size(one.bytes), one.version]) })),
    h(Card, { title: "Declaration" }, h(Small, null, declaration.file), h(Declared, { title: "Flow", of: declaration.flow }),
      Object.keys(declaration.driver).length > 0 && h(Declared, { title: "What its driver needs", of: declaration.driver }),
      declaration.sources.map((one) => h(Declared, { key: one.name, title: `Source ${one.name}`, of: one })),
      h(Declared, { title: "Table", of: declaration.table })),
    h(Log, { log: found.log }));
}

function owned(hold) {
  if (hold.owner === "park") return "Parked after a failure";
  return hold.owner.startsWith("person-") ? `Held by ${hold.by}` : `Held by the recovery ${hold.owner.replace(/^recovery-/, "")}, asked by ${hold.by}`;
}

// What waits of a source; one of which nothing is known says why.
function waits(lag) {
  if (!lag) return "";
  const known = ["records", "files", "bytes", "versions", "seconds"].some((name) => lag[name] !== null);
  const skipped = lag.skipped ? `; ${lag.skipped_reason}` : "";
  if (!known) return `; what waits is unknown: ${lag.reason}${skipped}`;
  const parts = ["records", "files", "versions"].filter((name) => lag[name]).map((name) => counted(lag[name], name));
  if (lag.bytes) parts.push(size(lag.bytes));
  if (lag.seconds) parts.push(`the oldest for ${age(lag.seconds)}`);
  const why = lag.reason ? ` (${lag.reason})` : "";
  return `${parts.length ? `; waits: ${parts.join(", ")}` : why ? "" : "; nothing waits"}${why}${skipped}`;
}
