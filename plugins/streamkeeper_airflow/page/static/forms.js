// Forms of our own for what the page starts, made from the same fields as Airflow's forms: those that this flow
// needs, with values filled in. They start the DAG through Airflow's API, with the rights of whoever clicks.
const { createElement: h, useEffect, useRef, useState } = globalThis.React;
const { Box, Button, Heading, Text } = globalThis.ChakraUI;
const { Link, useNavigate } = globalThis.ReactRouterDOM;
import { Problem, Small, Waiting, ask, segment } from "./common.js";

const flow = (row) => ({ flow: row.flow }), flows = (row) => ({ flows: [row.flow] });
const table = (row) => ({ table: `${row.pipeline}.${row.table}` });

// What can be started: the DAG, what names the flow in its form, and whether it has a plan that is approved.
export const STARTS = [
  { dag: "reset_checkpoint", title: "Reset", names: flow, plan: true },
  { dag: "rewind", title: "Rewind", names: flow, plan: true },
  { dag: "full_refresh", title: "Full refresh", names: table, plan: true },
  { dag: "backfill", title: "Backfill", names: flow, plan: true },
  { dag: "backup_table", title: "Backup", names: table, plan: true },
  { dag: "hold_flows", title: "Hold", names: flows, verb: "Hold" },
  { dag: "release_flows", title: "Release", names: flows, verb: "Release" },
];

// Fields that the page answers itself: it names the flow, and a plan always waits for approval.
const NEVER = ["approval", "dry_run", "rehearsal", "all", "pipeline"];
const LATER = ["infer_schemas", "rehearse", "deadline", "chunk", "kept_days", "keep_last", "owner", "any_person"];
const start = (value) => (values) => values.start === value;
const read = (...allowed) => (values) => allowed.includes(values.read);
const IF = {
  reset_checkpoint: { timestamp: start("timestamp"), offsets: start("offsets"), generation: start("generation") },
  backfill: { path: read("files", "table"), table: read("table"), backup: read("backup"),
    from_offsets: read("history"), to_offsets: read("history"),
    from_version: read("history"), to_version: read("history"), source: read("history", "files", "table") },
  rewind: { along: (values) => values.target === "restored" },
};

const types = (field) => [field.schema.type].flat();
const local = (seconds) => {
  const at = new Date(seconds * 1000);
  return new Date(at - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
};

// What is known of the flow, as choices of a field that Airflow's form leaves open.
function choices(name, field, found) {
  const listed = field.schema.enum || field.schema.items?.enum || field.schema.examples;
  if (name === "source") return found.read;
  if (name === "generation") return found.generations.map((life) => life.number).slice(0, -1);
  if (name === "backup") return ["newest", ...found.backups.map((backup) => backup.id)];
  if (name === "along" || name === "flows") return found.others;
  return listed || null;
}

function fieldsOf(start, params, found) {
  const named = start.names(found.row);
  return Object.entries(params).filter(([name, field]) => !(name in named) && !NEVER.includes(name)
    && !(name === "state" && found.stateful === false)
    && !(["along", "flows"].includes(name) && !found.others.length)
    && !(["from_offsets", "to_offsets"].includes(name) && !found.sources.some((source) => source.kind === "kafka"))
    && !(["from_version", "to_version"].includes(name) && !found.sources.some((source) => source.kind === "delta"))
    && field.schema);
}

function filled(start, fields, found, given) {
  const values = Object.fromEntries(fields.map(([name, field]) => [name, field.value ?? (types(field).includes("array") ? [] : "")]));
  if ("source" in values && found.read.length === 1) values.source = found.read[0];
  return { ...values, ...given };
}

const isEmpty = (value) => value == null || value === "" || (Array.isArray(value) && !value.length);

// The values that are sent, in the field's type: Airflow fills in the default of what is left out, so where a default
// was emptied and the field may be empty, null is sent.
function toSend(fields, values, shown) {
  const sent = {};
  for (const [name, field] of fields) {
    const value = values[name];
    if (!shown(name) || (isEmpty(value) && (isEmpty(field.value) || !types(field).includes("null")))) continue;
    if (isEmpty(value)) sent[name] = null;
    else if (field.schema.format === "date-time") sent[name] = new Date(value).toISOString();
    else if (types(field).includes("object")) sent[name] = JSON.parse(value);
    else if (types(field).some((type) => ["number", "integer"].includes(type))) sent[name] = Number(value);
    else sent[name] = value;
  }
  return sent;
}

function Field({ name, field, value, set, allowed }) {
  const id = `streamkeeper-${name}`, kinds = types(field), schema = field.schema;
  const help = field.description || schema.description_md;
  const more = { id, name, "aria-describedby": `${id}-help` };
  const box = { width: "100%", padding: "0.3em 0.5em", border: "1px solid", borderRadius: "4px", background: "var(--chakra-colors-bg)", color: "inherit" };
  let input;
  if (kinds.includes("boolean")) {
    input = h("input", { ...more, type: "checkbox", checked: !!value, onChange: (event) => set(event.target.checked) });
  } else if (kinds.includes("array") && allowed) {
    input = h("div", { role: "group", "aria-labelledby": `${id}-label` }, allowed.map((item) => h("label", { key: item, style: { marginRight: "1em" } },
      h("input", { type: "checkbox", checked: value.includes(item),
        onChange: (event) => set(event.target.checked ? [...value, item] : value.filter((other) => other !== item)) }), " ", String(item))));
  } else if (allowed) {
    const empty = kinds.includes("null") || !allowed.includes(value);
    input = h("select", { ...more, value: value ?? "", onChange: (event) => set(event.target.value), style: box },
      empty && h("option", { value: "" }, "–"),
      allowed.map((item) => h("option", { key: item, value: item }, schema.values_display?.[item] || String(item))));
  } else if (kinds.includes("object")) {
    input = h("textarea", { ...more, value, rows: 2, placeholder: "{}", onChange: (event) => set(event.target.value), style: { ...box, fontFamily: "monospace" } });
  } else {
    const type = schema.format === "date-time" ? "datetime-local" : kinds.some((kind) => ["number", "integer"].includes(kind)) ? "number" : "text";
    input = h("input", { ...more, type, step: type === "datetime-local" ? 1 : "any", value, onChange: (event) => set(event.target.value), style: box });
  }
  return h(Box, { mb: 3 },
    h("label", { htmlFor: id, id: `${id}-label`, style: { fontWeight: "bold", display: "block" } }, schema.title || name,
      schema.format === "date-time" && h("span", { style: { fontWeight: "normal" } }, ` (${Intl.DateTimeFormat().resolvedOptions().timeZone})`)),
    input, help && h(Small, { id: `${id}-help` }, help));
}

// The form of one start. What follows: a plan's run, where it is approved; a hold shows on the flow itself.
export function Form({ start, found, given, close }) {
  const navigate = useNavigate();
  const [params, setParams] = useState(null), [values, setValues] = useState({}), [state, setState] = useState({});
  const place = useRef(null), id = found.may[start.dag];
  useEffect(() => {
    let gone = false;
    ask(`api/v2/dags/${segment(id)}/details`).then((details) => {
      if (gone) return;
      const fields = fieldsOf(start, details.params || {}, found);
      setParams(fields);
      setValues(filled(start, fields, found, given));
    }).catch((error) => !gone && setState({ error: error.message }));
    return () => { gone = true; };
  }, [id, found.row.flow, JSON.stringify(given)]);
  useEffect(() => { if (params) { place.current?.scrollIntoView({ block: "nearest" }); place.current?.focus(); } }, [params]);
  if (!params) return h(Waiting, { error: state.error });
  const shown = (name) => (IF[start.dag]?.[name] || (() => true))(values);
  const visible = params.filter(([name]) => shown(name));
  const draw = (all) => all.map(([name, field]) => h(Field, { key: name, name, field, value: values[name],
    allowed: choices(name, field, found), set: (value) => setValues((before) => ({ ...before, [name]: value })) }));
  const send = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      const conf = { ...toSend(params, values, shown), ...start.names(found.row) };
      const run = await ask(`api/v2/dags/${segment(id)}/dagRuns`, "POST",
        { logical_date: null, conf, note: "From the page Streams." });
      const where = `/dags/${segment(id)}/runs/${segment(run.dag_run_id)}`;
      if (start.plan) navigate(`${where}/plugin/stream_run`);
      else setState({ done: where });
    } catch (error) {
      setState({ error: error instanceof SyntaxError ? `Positions are not JSON: ${error.message}` : error.message });
    }
  };
  const later = visible.filter(([name]) => LATER.includes(name));
  return h(Box, { as: "form", onSubmit: send, borderWidth: 1, borderRadius: "md", p: 3, mt: 3, maxW: "46rem", "aria-label": start.title },
    h(Heading, { as: "h4", size: "sm", mb: 2, ref: place, tabIndex: -1 }, `${start.title} of ${Object.values(start.names(found.row)).flat().join(", ")}`),
    draw(visible.filter(([name]) => !LATER.includes(name))),
    later.length > 0 && h("details", { style: { marginBottom: "0.8em" } }, h("summary", null, "More"), draw(later)),
    h(Box, { display: "flex", gap: 2 },
      h(Button, { type: "submit", size: "sm", disabled: !!state.busy }, start.plan ? "Make the plan" : start.verb),
      h(Button, { type: "button", size: "sm", variant: "outline", onClick: close }, "Cancel")),
    start.plan && h(Small, { mt: 2 }, "A plan changes nothing. It shows the impact, and waits until somebody approves it."),
    state.done && h(Text, { mt: 2, role: "status" }, "Asked: ", h(Link, { to: state.done }, "its run"), "."),
    state.error && h(Problem, { text: state.error }));
}

// Buttons for what fits the flow and the person; one form at a time.
export function Actions({ found, picked }) {
  const [open, setOpen] = useState(null);
  useEffect(() => { if (picked) setOpen("rewind"); }, [picked]);
  const held = found.holds.some((hold) => hold.owner.startsWith("person-"));
  const left = held ? "hold_flows" : "release_flows";
  const starts = STARTS.filter(({ dag }) => found.may[dag] && dag !== left);
  if (!starts.length) return null;
  const fits = found.holds.map((hold) => hold.recovery).find((name) => starts.some(({ dag }) => dag === name));
  const chosen = starts.find(({ dag }) => dag === open);
  const given = chosen?.dag === "rewind" && picked ? { timestamp: local(picked.at) } : {};
  return h(Box, { mb: 3 },
    h(Box, { display: "flex", gap: 2, flexWrap: "wrap", role: "group", "aria-label": "What to do" }, starts.map(({ dag, title }) => h(Button, {
      key: dag, size: "sm", variant: open === dag || fits === dag ? "solid" : "outline", "aria-expanded": open === dag, "data-start": dag,
      ...(fits === dag ? { colorPalette: "green", title: "It ends what the flow is parked for" } : {}),
      onClick: () => setOpen(open === dag ? null : dag) }, title))),
    chosen && h(Form, { key: chosen.dag, start: chosen, found, given, close: () => setOpen(null) }));
}
