// The tab of a recovery's run: its plan and impact, the answer that it waits for, its steps as they go, its ledger.
const { createElement: h, useState } = globalThis.React;
const { Badge, Box, Button, Heading, Text } = globalThis.ChakraUI;
const { Link } = globalThis.ReactRouterDOM;
import { Card, Grid, Lines, Page, Problem, Small, Waiting, age, ask, moment, segment, size, useLook, whole } from "./common.js";

const COLOURS = { done: "green", failed: "red", started: "blue" };
const WORDS = { started: "running" };

// One call of Airflow's API behind a button; what it refuses is said below.
function Act({ label, act, then, solid = false, colour = "gray", ...more }) {
  const [state, setState] = useState({});
  const press = async () => {
    setState({ busy: true });
    try { await act(); setState({}); } catch (error) { setState({ error: error.message }); }
    then();
  };
  return h(Box, { display: "inline-block", mr: 2 },
    h(Button, { size: "sm", variant: solid ? "solid" : "outline", colorPalette: colour, disabled: !!state.busy, onClick: press, ...more }, label),
    state.error && h(Problem, { text: state.error }));
}

// The question that Airflow asks of a person: approve the plan, or reject it.
function Question({ asked, may, where, again }) {
  const [approve, ...others] = asked.options, task = asked.task_instance;
  const answer = (option) => () => ask(`${where}/taskInstances/${segment(task.task_id)}/${task.map_index ?? -1}/hitlDetails`,
    "PATCH", { chosen_options: [option], params_input: {} });
  return h(Card, { title: asked.subject, role: "region" },
    task.task_id !== "approve" && asked.body && h(Lines, { text: asked.body }),
    may ? h(Box, null, h(Act, { label: approve, act: answer(approve), then: again, solid: true, colour: "green", "data-answer": 0 }),
      others.map((option) => h(Act, { key: option, label: option, act: answer(option), then: again, "data-answer": 1 })))
      : h(Text, null, "It waits for somebody who may approve it."));
}

// What is left of a step: from its own progress, or else from how long it took before.
function left(step, now) {
  if (step.state !== "started" || !step.began) return "";
  const passed = now - step.began, { chunk, of } = step.progress || {};
  const parts = [`for ${age(passed)}`];
  if (chunk > 0 && of >= chunk) parts.push(`${age((passed / chunk) * (of - chunk))} left`);
  else if (step.usual > passed) parts.push(`about ${age(step.usual - passed)} left`);
  else if (step.usual) parts.push(`usually ${age(step.usual)}`);
  return parts.join(", ");
}

const numbers = (progress) => Object.entries(progress).map(([name, value]) => `${name} ${typeof value === "number" ? whole(value) : JSON.stringify(value)}`).join(", ");

function Steps({ steps, now }) {
  return h(Card, { title: "Steps" }, h("ol", { style: { paddingLeft: "1.4em", listStyle: "decimal" } }, steps.map((step) => h("li", { key: step.name, "data-step": step.name, style: { marginBottom: "0.4em" } },
    h("strong", null, step.name.replaceAll("_", " ")), " ", h(Badge, { colorPalette: COLOURS[step.state] || "gray" }, WORDS[step.state] || step.state),
    " ", step.state === "done" && step.began ? `in ${age(step.ended - step.began)}` : left(step, now),
    step.progress && h(Box, null,
      step.progress.of > 0 && h("progress", { value: step.progress.chunk, max: step.progress.of, "aria-label": `Progress of ${step.name}`, style: { width: "12em", marginRight: "0.6em" } }),
      h("span", null, numbers(step.progress))),
    h(Small, null, step.does),
    step.error && h(Problem, { text: step.error })))));
}

// A run that failed goes on where it stopped, or is abandoned; one that waits is ended by rejecting.
function Ways({ found, run, again }) {
  if (found.over || !run) return null;
  const resume = () => ask(`api/v2/dags/${segment(run.dag_id)}/clearTaskInstances`, "POST",
    { dry_run: false, dag_run_id: run.dag_run_id, only_failed: true, reset_dag_runs: true });
  const failed = run.state === "failed";
  const abandon = () => ask(`api/v2/dags/${segment(found.may_abandon)}/dagRuns`, "POST",
    { logical_date: null, conf: { recovery: found.recovery, reason: "From its page." } });
  return h(Card, { title: "Resume or abandon" },
    failed && h(Text, { mb: 2 }, "It stopped. What it did stays, and is not done again."),
    failed && found.may_resume && h(Act, { label: "Resume", act: resume, then: again, solid: true, colour: "blue" }),
    failed && found.may_abandon && h(Act, { label: "Abandon", act: abandon, then: again, colour: "red" }),
    h(Text, { mt: 2, fontSize: "sm" }, found.past_return
      ? "It has changed something. Whoever abandons it removes its holds and locks, and what it changed stays."
      : "It has changed nothing yet: whoever abandons it removes its holds and locks. While it waits, reject its plan."));
}

function Ledger({ events }) {
  return h(Card, { title: "Ledger and evidence" }, h("ol", { style: { listStyle: "none", padding: 0 } }, events.map((one, at) => h("li", { key: at },
    Object.keys(one.evidence).length === 0 ? h(Text, { fontSize: "sm" }, `${moment(one.at)}  ${one.event}`)
      : h("details", null, h("summary", { style: { fontSize: "0.875em" } }, `${moment(one.at)}  ${one.event}`),
        h(Lines, { text: JSON.stringify(one.evidence, null, 2) }))))));
}

export function Run({ dagId, runId }) {
  const where = `api/v2/dags/${segment(dagId)}/dagRuns/${segment(runId)}`;
  const { found, error, again } = useLook(`streamkeeper/api/dags/${segment(dagId)}/runs/${segment(runId)}`);
  const { found: run, again: againRun } = useLook(where);
  const { found: asks, again: againAsks } = useLook(`${where}/hitlDetails?response_received=false`);
  if (!found) return h(Waiting, { error });
  const all = () => { again(); againRun(); againAsks(); };
  const ended = run && ["success", "failed"].includes(run.state);
  // Airflow 3.3 may lose an answer that comes before the asking task has come to rest; it then asks again.
  const rests = (one) => ["awaiting_input", "deferred"].includes(one.task_instance.state);
  const questions = ended ? [] : (asks?.hitl_details || []).filter((one) => !one.response_received && rests(one));
  const refused = run?.note && run.note.startsWith("Refused");
  if (!found.recovery) {
    return h(Page, null, error && h(Problem, { text: error }),
      refused ? h(Card, { title: "It was refused" }, h(Lines, { text: run.note }))
        : h(Text, null, ended ? "This run made no plan that is kept: see its log." : "The plan is being made …"));
  }
  const copies = found.copies || [];
  return h(Page, null,
    h(Heading, { as: "h2", size: "lg", mb: 2, overflowWrap: "anywhere" }, found.headline),
    error && h(Problem, { text: error }),
    h(Text, { mb: 3 }, `Asked by ${found.by}${found.reason ? `: ${found.reason}` : ""}. `, { ended: "It is done.", given_up: "It was given up." }[found.over] || "",
      " ", Object.entries(found.dags).map(([flow, dag]) => h(Link, { key: flow, style: { marginRight: "1em" },
        to: `/plugin/streams?dag=${segment(dag)}&flow=${segment(flow)}` }, flow))),
    refused && h(Lines, { text: run.note }),
    found.refusals.length > 0 && h(Card, { title: "What must be accepted" }, found.refusals.map((text, at) => h(Text, { key: at }, text))),
    found.impacts.length > 0 && h(Card, { title: "Impact" }, h(Grid, {
      titles: ["Flow", "Source", "Position", "Starts", "Lost", "Repeated"],
      rows: found.impacts.map((one) => [one.flow, one.source, one.from, one.to, one.lost, one.repeated]) })),
    copies.length > 0 && h(Card, { title: "Copies" }, h(Grid, { titles: ["What", "Rows", "Size", "Files"],
      rows: copies.map((one) => [one.label, whole(one.rows), size(one.bytes), whole(one.files)]) })),
    questions.map((asked) => h(Question, { key: `${asked.task_instance.id}`, asked, may: found.may_answer, where, again: all })),
    h(Steps, { steps: found.steps, now: found.now }),
    h(Ways, { found, run, again: all }),
    h(Card, { title: "Plan" }, h(Lines, { text: found.plan })),
    h(Ledger, { events: found.events }));
}
