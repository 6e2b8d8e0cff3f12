// The page Streams, and the tab of a flow or a recovery: on Airflow's own React and Chakra, without a build.
// This is what Airflow loads; the other files beside it are its parts.
const { createElement: h, useMemo, useState } = globalThis.React;
const { Box, Button, Heading, Input, Table, Text } = globalThis.ChakraUI;
const { Link, useLocation, useNavigate } = globalThis.ReactRouterDOM;
import { COLOURS, Page, Problem, Small, State, WELL, Waiting, Wide, age, behind, dash, segment, since, size, trend, useLook, whole }
  from "./common.js";
import { Flow } from "./flow.js";
import { Run } from "./recovery.js";

const ORDER = ["parked", "unreadable", "down", "retrying", "change refused", "slow", "held", "stopping",
  "starting", "running", "idle", "stopped", "declared", "done"];
const SHOWN = 100; // rows that are drawn; more on demand, so that a thousand flows stay quick

const COLUMNS = [
  ["flow", "Flow", (row) => row.flow],
  ["state", "State", (row) => ORDER.indexOf(row.state)],
  ["since", "Since", (row) => -(Date.parse(row.since || 0) || 0)],
  ["generation", "Generation", (row) => row.generation ?? -1],
  ["age", "Last commit", (row) => row.age ?? Infinity],
  ["behind", "Behind", (row) => -(row.lag?.seconds ?? (row.waiting_since ? Date.now() / 1000 - row.waiting_since : -1))],
  ["rows", "Rows/s", (row) => -(row.rows_per_second ?? -1)],
  ["took", "Batch", (row) => -(row.batch_numbers?.seconds ?? -1)],
  ["kept", "State size", (row) => -(row.batch_numbers?.state_bytes ?? -1)],
  ["recovery", "Last recovery", (row) => row.last_recovery],
];

const SAYS = { age: "The last committed batch, and how long ago", rows: "Rows of the last batch, for each second that it took",
  took: "How long the last batch took, and the trigger", behind: "Age of the oldest input that waits, how much waits, and the trend" };

const page = (row) => `/plugin/streams?dag=${segment(row.dag_id)}&flow=${segment(row.flow)}`;

const NARROW = { whiteSpace: "nowrap" };

function Behind({ row, now }) {
  const moves = trend(row);
  return [behind(row, now), moves && h("span", { key: "trend", title: moves.text, role: "img", "aria-label": moves.text }, ` ${moves.arrow}`),
    moves && moves.text.startsWith("caught") && h(Small, { key: "when" }, moves.text)];
}

const TITLES = Object.fromEntries(COLUMNS.map(([key, title]) => [key, title]));

function Row({ row, now }) {
  const navigate = useNavigate();
  const last = row.batch_numbers;
  const cell = (key, ...children) => h(Table.Cell, { key, verticalAlign: "top", "data-title": TITLES[key],
    ...(children[0] === dash ? { "data-empty": "" } : {}) }, ...children);
  const open = (event) => { if (!event.target.closest("a")) navigate(page(row)); };
  return h(Table.Row, { "data-flow": row.flow, onClick: open },
    cell("flow", h(Link, { to: page(row) }, row.flow)),
    cell("state", h(State, { state: row.state }), h(Small, { maxW: "30em", overflowWrap: "anywhere", title: row.detail, "data-detail": "" },
      WELL.includes(row.state) ? "" : row.detail)),
    cell("since", row.since ? h("span", { style: NARROW }, since(row.since, now)) : dash),
    cell("generation", row.generation ?? dash),
    cell("age", row.batch === null ? dash : h("span", { style: NARROW }, `${row.batch}, ${age(row.age)} ago`)),
    cell("behind", h(Behind, { row, now })),
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
  const [most, setMost] = useState(SHOWN);
  const texts = useMemo(() => new Map((found?.flows || []).map((row) =>
    [row.flow, `${row.flow} ${row.state} ${row.detail} ${row.table}`.toLowerCase()])), [found]);
  const rows = useMemo(() => {
    const value = COLUMNS.find(([key]) => key === sort.by)[2], wanted = text.toLowerCase();
    const shown = (found?.flows || []).filter((row) => (!state || row.state === state)
      && (!pipeline || row.pipeline === pipeline) && texts.get(row.flow).includes(wanted))
      .map((row) => [value(row), row]);
    shown.sort(([a, one], [b, other]) => (a < b ? -1 : a > b ? 1 : one.flow < other.flow ? -1 : 1));
    if (sort.down) shown.reverse();
    return shown.map(([, row]) => row);
  }, [found, texts, sort, text, state, pipeline]);
  if (!found) return h(Waiting, { error });
  const pipelines = [...new Set(found.flows.map((row) => row.pipeline))].sort();
  const choose = (label, value, set, values) => h("label", null, `${label} `, h("select",
    { value, onChange: (event) => set(event.target.value), "aria-label": label, style: { background: "var(--chakra-colors-bg)" } },
    h("option", { value: "" }, "all"), values.map((one) => h("option", { key: one, value: one }, one))));
  return h(Page, null,
    h(Heading, { as: "h2", size: "lg", mb: 2 }, "Streams"),
    error && h(Problem, { text: `${error} What is shown is ${old ? `${age(old)} old` : "older"}.` }),
    Object.entries(found.errors).map(([file, why]) => h(Problem, { key: file, text: why })),
    h(Box, { display: "flex", gap: 3, flexWrap: "wrap", alignItems: "center", mb: 3 },
      Object.entries(found.counts).map(([name, count]) => h(Button, {
        key: name, size: "xs", variant: state === name ? "solid" : "outline", colorPalette: COLOURS[name] || "gray",
        "aria-pressed": state === name, onClick: () => setState(state === name ? "" : name),
      }, `${count} ${name}`)),
      h(Input, { size: "sm", maxW: "16em", placeholder: "Search", "aria-label": "Search", value: text,
        onChange: (event) => { setText(event.target.value); setMost(SHOWN); } }),
      choose("Pipeline", pipeline, setPipeline, pipelines)),
    h(Box, { "data-list": "" }, h(Wide, null, h(Table.Root, { size: "sm" },
      h(Table.Header, null, h(Table.Row, null, COLUMNS.map(([key, title]) => h(Table.ColumnHeader, {
        key, "aria-sort": sort.by === key ? (sort.down ? "descending" : "ascending") : "none",
      }, h("button", { type: "button", style: { textAlign: "left", cursor: "pointer" }, onClick: () => setSort({ by: key, down: sort.by === key && !sort.down }), title: SAYS[key] },
        title, sort.by === key ? (sort.down ? " ▼" : " ▲") : ""))))),
      h(Table.Body, null, rows.slice(0, most).map((row) => h(Row, { key: row.flow, row, now: found.at })))))),
    rows.length > most && h(Box, { mt: 2 }, h(Small, null, `${most} of ${rows.length} are shown. `),
      h(Button, { size: "sm", variant: "outline", onClick: () => setMost(most + SHOWN) }, `Show ${Math.min(SHOWN, rows.length - most)} more`)),
    rows.length === 0 && h(Text, { p: 2 }, found.flows.length ? "No stream fits." : "No stream is declared, or you may read none."));
}

function Tab({ dagId, runId, flow }) {
  const { found, error } = useLook(`streamkeeper/api/dags/${segment(dagId)}?flow=${segment(flow)}`);
  if (!found) return h(Waiting, { error });
  if (found.row) {
    return h("div", null, error && h(Problem, { text: error }), h(Flow, { key: found.row.flow, found }));
  }
  if (found.recovery && runId) return h(Run, { key: runId, dagId, runId });
  return h(Text, { p: 4 }, found.recovery
    ? "A recovery's plan and steps are shown with each of its runs."
    : "There is no stream here: this DAG runs none.");
}

// In the navigation: the list, or one flow of it, which has the whole window.
function Streams({ dagId, runId }) {
  const asked = new URLSearchParams(useLocation().search);
  const dag = dagId || asked.get("dag"), flow = asked.get("flow") || "";
  if (!dag) return h(List);
  return h("div", null, !dagId && h(Box, { px: 4, pt: 3 }, h(Link, { to: "/plugin/streams" }, "All streams"), " · ",
    h(Link, { to: `/dags/${segment(dag)}` }, "its DAG")), h(Tab, { key: flow, dagId: dag, runId, flow }));
}

// Airflow looks for each app by its name, and forgets the last one's before it loads the next.
for (const name of ["Streams", "Stream", "Stream of the run"]) globalThis[name] = Streams;
globalThis.AirflowPlugin = Streams;
