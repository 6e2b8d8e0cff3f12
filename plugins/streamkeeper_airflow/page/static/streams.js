// The page Streams, and the tab of a flow or a recovery: on Airflow's own React and Chakra, without a build.
// Texts of users are children of elements, so that they are shown as text.
const { createElement: h, useCallback, useEffect, useMemo, useState } = globalThis.React;
const { Badge, Box, Button, Heading, Input, Table, Text } = globalThis.ChakraUI;
const { Link, useNavigate } = globalThis.ReactRouterDOM;

const EVERY = 5000;
const COLOURS = {
  running: "green", idle: "green", done: "gray", starting: "blue", "catching up": "yellow", retrying: "orange",
  down: "red", parked: "red", unreadable: "red", held: "purple", stopping: "purple", "change refused": "orange",
};
const ORDER = ["parked", "unreadable", "down", "retrying", "change refused", "catching up", "held", "stopping",
  "starting", "running", "idle", "stopped", "declared", "done"];

const url = (path) => new URL(path, document.baseURI).toString();
const get = async (path) => {
  const answer = await fetch(url(path), { credentials: "same-origin" });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(found.detail || `${answer.status} ${answer.statusText}`);
  return found;
};

// Ask for something now and every few seconds, but not while nobody looks.
function useLook(path) {
  const [seen, setSeen] = useState({});
  const look = useCallback(async () => {
    try {
      const found = await get(path);
      setSeen({ found, error: found.overdue || undefined, age: found.overdue && Date.now() / 1000 - found.at });
    }
    catch (error) { setSeen((before) => ({ ...before, error: String(error.message || error) })); }
  }, [path]);
  useEffect(() => {
    look();
    const timer = setInterval(() => { if (!document.hidden) look(); }, EVERY);
    return () => clearInterval(timer);
  }, [look]);
  return seen;
}

const dash = "–";
const whole = (value) => (value === null || value === undefined ? dash : Math.round(value).toLocaleString("en"));
const age = (seconds) => {
  if (seconds === null || seconds === undefined) return dash;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
};
const sinceTime = (text) => (text ? age((Date.now() - Date.parse(text)) / 1000) : dash);
const size = (bytes) => {
  if (!bytes) return dash;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const step = Math.min(units.length - 1, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** step).toFixed(step ? 1 : 0)} ${units[step]}`;
};
const State = ({ state }) => h(Badge, { colorPalette: COLOURS[state] || "gray" }, state);
const Problem = ({ text }) => h(Box, { role: "alert", color: "fg.error", p: 2 }, text);

const COLUMNS = [
  ["flow", "Flow", (row) => row.flow],
  ["state", "State", (row) => ORDER.indexOf(row.state)],
  ["since", "Since", (row) => -(Date.parse(row.since || 0) || 0)],
  ["generation", "Generation", (row) => row.generation ?? -1],
  ["age", "Last commit", (row) => row.age ?? Infinity],
  ["waits", "Input waits", (row) => -(row.waiting_since || Infinity)],
  ["rows", "Rows/s", (row) => -(row.rows_per_second ?? -1)],
  ["took", "Batch", (row) => -(row.batch_numbers?.seconds ?? -1)],
  ["kept", "State size", (row) => -(row.batch_numbers?.state_bytes ?? -1)],
  ["recovery", "Last recovery", (row) => row.last_recovery],
];

function Row({ row }) {
  const last = row.batch_numbers;
  const cell = (key, ...children) => h(Table.Cell, { key }, ...children);
  return h(Table.Row, { "data-flow": row.flow },
    cell("flow", h(Link, { to: `/dags/${row.dag_id}/plugin/stream` }, row.flow)),
    cell("state", h(State, { state: row.state }), h(Text, { fontSize: "xs", color: "fg.muted", maxW: "30em" },
      ["running", "idle"].includes(row.state) ? "" : row.detail)),
    cell("since", sinceTime(row.since)),
    cell("generation", row.generation ?? dash),
    cell("age", row.batch === null ? dash : `${row.batch}, ${age(row.age)} ago`),
    cell("waits", row.waiting_since ? age(Date.now() / 1000 - row.waiting_since) : dash),
    cell("rows", whole(row.rows_per_second)),
    cell("took", last ? `${last.seconds.toFixed(1)} s of ${row.trigger}` : dash),
    cell("kept", last && last.state_rows ? `${whole(last.state_rows)} rows, ${size(last.state_bytes)}` : dash),
    cell("recovery", row.last_recovery || dash));
}

function List() {
  const { found, error, age: old } = useLook("streamkeeper/api/flows");
  const [sort, setSort] = useState({ by: "state", down: false });
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const [pipeline, setPipeline] = useState("");
  const rows = useMemo(() => {
    const value = COLUMNS.find(([key]) => key === sort.by)[2];
    const shown = (found?.flows || []).filter((row) => (!state || row.state === state)
      && (!pipeline || row.pipeline === pipeline)
      && `${row.flow} ${row.detail} ${row.table}`.toLowerCase().includes(text.toLowerCase()));
    shown.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : a.flow.localeCompare(b.flow)));
    return sort.down ? shown.reverse() : shown;
  }, [found, sort, text, state, pipeline]);
  if (!found) return error ? h(Problem, { text: error }) : h(Text, { p: 4 }, "Looking …");
  const pipelines = [...new Set(found.flows.map((row) => row.pipeline))].sort();
  const choose = (label, value, set, values) => h("label", null, `${label} `, h("select",
    { value, onChange: (event) => set(event.target.value), "aria-label": label },
    h("option", { value: "" }, "all"), values.map((one) => h("option", { key: one, value: one }, one))));
  return h(Box, { p: 4, overflowX: "auto" },
    h(Heading, { size: "lg", mb: 2 }, "Streams"),
    error && h(Problem, { text: `${error} What is shown is ${old ? `${age(old)} old` : "older"}.` }),
    Object.entries(found.errors).map(([file, why]) => h(Problem, { key: file, text: why })),
    h(Box, { display: "flex", gap: 3, flexWrap: "wrap", alignItems: "center", mb: 3 },
      Object.entries(found.counts).map(([name, count]) => h(Button, {
        key: name, size: "xs", variant: state === name ? "solid" : "outline", colorPalette: COLOURS[name] || "gray",
        "aria-pressed": state === name, onClick: () => setState(state === name ? "" : name),
      }, `${count} ${name}`)),
      h(Input, { size: "sm", maxW: "16em", placeholder: "Search", "aria-label": "Search", value: text,
        onChange: (event) => setText(event.target.value) }),
      choose("Pipeline", pipeline, setPipeline, pipelines)),
    h(Table.Root, { size: "sm" },
      h(Table.Header, null, h(Table.Row, null, COLUMNS.map(([key, title]) => h(Table.ColumnHeader, {
        key, "aria-sort": sort.by === key ? (sort.down ? "descending" : "ascending") : "none",
      }, h("button", { onClick: () => setSort({ by: key, down: sort.by === key && !sort.down }) }, title))))),
      h(Table.Body, null, rows.map((row) => h(Row, { key: row.flow, row })))),
    rows.length === 0 && h(Text, { p: 2 }, "No stream fits."));
}

// A line of values over the recent batches.
function Chart({ title, batches, value, said }) {
  const values = batches.map(value);
  const most = Math.max(...values, 0);
  const points = values.map((one, at) => `${(at * 300) / Math.max(values.length - 1, 1)},${58 - (most ? (one / most) * 54 : 0)}`);
  return h(Box, { borderWidth: 1, borderRadius: "md", p: 2, minW: "320px" },
    h(Text, { fontSize: "sm", color: "fg.muted" }, `${title}: ${values.length ? said(values[values.length - 1]) : dash}`),
    h("svg", { viewBox: "0 0 300 60", width: "100%", height: 60, role: "img",
      "aria-label": `${title} of the last ${values.length} batches, at most ${said(most)}` },
    h("polyline", { points: points.join(" "), fill: "none", stroke: "currentColor", strokeWidth: 1.5 })));
}

const Card = ({ title, children }) => h(Box, { borderWidth: 1, borderRadius: "md", p: 3, mb: 3 },
  h(Heading, { size: "sm", mb: 2 }, title), children);
const Lines = ({ text }) => h("pre", { style: { whiteSpace: "pre-wrap", fontSize: "0.85em" } }, text);

// Start a DAG through Airflow's API, with the rights of whoever clicks, and go to its run.
function Start({ dag, conf, label }) {
  const navigate = useNavigate();
  const [state, setState] = useState("");
  const start = async () => {
    setState("…");
    const answer = await fetch(url(`api/v2/dags/${dag}/dagRuns`), {
      method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ logical_date: null, conf, note: "From the page Streams." }),
    });
    const found = await answer.json().catch(() => ({}));
    if (answer.ok) navigate(`/dags/${dag}/runs/${encodeURIComponent(found.dag_run_id)}`);
    else setState(typeof found.detail === "string" ? found.detail : JSON.stringify(found.detail || answer.status));
  };
  return h(Box, { display: "inline-block", mr: 2 },
    h(Button, { size: "sm", variant: "outline", onClick: start, disabled: state === "…" }, label),
    state && state !== "…" && h(Problem, { text: state }));
}

function Actions({ row, may, held }) {
  const table = `${row.pipeline}.${row.table}`;
  const starts = [
    ["reset_checkpoint", { flow: row.flow }, "Plan a reset"],
    ["full_refresh", { table }, "Plan a full refresh"],
    held ? ["release_flows", { flows: [row.flow] }, "Release"] : ["hold_flows", { flows: [row.flow] }, "Hold"],
  ].filter(([dag]) => may.includes(dag));
  const forms = ["rewind", "backfill", "backup_table"].filter((dag) => may.includes(dag));
  if (!starts.length && !forms.length) return null;
  return h(Card, { title: "What fits" },
    starts.map(([dag, conf, label]) => h(Start, { key: dag, dag, conf, label })),
    forms.map((dag) => h(Link, { key: dag, to: `/dags/${dag}`, style: { marginRight: "1em" } }, dag)),
    h(Text, { fontSize: "xs", color: "fg.muted", mt: 2 }, "A plan changes nothing until somebody approves it."));
}

function Flow({ found }) {
  const { row, batches, holds, verdict, sources, may } = found;
  const generations = [...found.generations].reverse();
  const last = row.batch_numbers;
  return h(Box, { p: 4 },
    h(Heading, { size: "lg", mb: 2 }, row.flow, " ", h(State, { state: row.state })),
    h(Text, { mb: 3 }, row.detail),
    h(Card, { title: "Now" }, h(Text, null, [
      `Generation ${row.generation ?? dash}`,
      row.batch === null ? "no batch committed" : `batch ${row.batch}, ${age(row.age)} ago`,
      last ? `${whole(row.rows_per_second)} rows/s, ${last.seconds.toFixed(1)} s a batch (every ${row.trigger})` : null,
      last && last.state_rows ? `state ${whole(last.state_rows)} rows, ${size(last.state_bytes)}` : null,
      row.totals.late ? `${whole(row.totals.late)} rows dropped as late` : null,
      row.waiting_since ? `input waits for ${age(Date.now() / 1000 - row.waiting_since)}` : null,
    ].filter(Boolean).join(" · "))),
    holds.length > 0 && h(Card, { title: "Why it does not run" }, holds.map((one) => h(Box, { key: one.owner },
      h(Text, { fontWeight: "bold" }, `${one.owner}, by ${one.by}, ${one.at}`), h(Lines, { text: one.reason })))),
    verdict && h(Card, { title: "Change of the declaration" }, h(Lines, { text: verdict })),
    h(Actions, { row, may, held: holds.some((one) => one.owner.startsWith("person-")) }),
    h(Box, { display: "flex", gap: 3, flexWrap: "wrap", mb: 3 },
      h(Chart, { title: "Rows/s", batches, value: (one) => (one.seconds ? one.rows / one.seconds : 0), said: whole }),
      h(Chart, { title: "Batch", batches, value: (one) => one.seconds, said: (one) => `${one.toFixed(1)} s` }),
      h(Chart, { title: "State", batches, value: (one) => one.state_rows, said: (one) => `${whole(one)} rows` })),
    last && Object.keys(last.expectations).length > 0 && h(Card, { title: "Expectations, last batch" },
      Object.entries(last.expectations).map(([name, [passed, failed]]) => h(Text, { key: name },
        `${name}: ${whole(passed)} passed, ${whole(failed)} failed`))),
    h(Card, { title: "Sources" }, sources.map((one) => h(Text, { key: one.name }, `${one.name} (${one.kind}): ${one.position}`))),
    h(Card, { title: "Generations" }, generations.map((one) => h(Box, { key: one.number, borderLeftWidth: 2, pl: 3, mb: 2 },
      h(Text, { fontWeight: "bold" }, `${one.number} · ${one.at}${one.began ? "" : " · decided, not begun"}`),
      h(Text, null, `${one.why}, by ${one.by}; start ${one.start}, state ${one.state}`)))));
}

function Recovery({ found }) {
  if (!found.recovery) return h(Text, { p: 4 }, "This run has no plan yet.");
  return h(Box, { p: 4 },
    h(Heading, { size: "lg", mb: 2 }, found.headline),
    found.prices.length > 0 && h(Table.Root, { size: "sm", mb: 3 },
      h(Table.Header, null, h(Table.Row, null, ["Source", "Position", "Starts", "Lost", "Repeated"].map(
        (title) => h(Table.ColumnHeader, { key: title }, title)))),
      h(Table.Body, null, found.prices.map((one) => h(Table.Row, { key: `${one.flow} ${one.source}` },
        [one.source, one.from, one.to, one.lost, one.repeated].map((cell, at) => h(Table.Cell, { key: at }, cell)))))),
    h(Card, { title: "Steps" }, found.steps.map((one) => h(Text, { key: one.name },
      `${one.name} `, h(Badge, { colorPalette: { done: "green", failed: "red", started: "blue" }[one.state] || "gray" }, one.state)))),
    h(Card, { title: "Plan" }, h(Lines, { text: found.plan })),
    h(Card, { title: "Ledger" }, found.events.map((one, at) => h(Text, { key: at, fontSize: "sm" }, `${one.at}  ${one.event}`))));
}

function Run({ dagId, runId }) {
  const { found, error } = useLook(`streamkeeper/api/dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}`);
  if (!found) return error ? h(Problem, { text: error }) : h(Text, { p: 4 }, "Looking …");
  return h(Recovery, { found });
}

function Tab({ dagId, runId }) {
  const { found, error } = useLook(`streamkeeper/api/dags/${encodeURIComponent(dagId)}`);
  if (!found) return error ? h(Problem, { text: error }) : h(Text, { p: 4 }, "Looking …");
  if (found.row) return h(Flow, { found });
  if (found.recovery && runId) return h(Run, { dagId, runId });
  return h(Text, { p: 4 }, found.recovery
    ? "A recovery's plan and steps are shown with each of its runs."
    : "There is no stream here: this DAG runs none.");
}

function Streams({ dagId, runId }) {
  return dagId ? h(Tab, { dagId, runId }) : h(List);
}

// Airflow looks for each app by its name, and forgets the last one's before it loads the next.
for (const name of ["Streams", "Stream", "Stream of the run"]) globalThis[name] = Streams;
globalThis.AirflowPlugin = Streams;
