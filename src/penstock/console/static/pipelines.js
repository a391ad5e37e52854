// Runs of pipeline jobs, with progress and errors, and the schedule.

import { get } from "./api.js";
import { dialog, facts, h, button, pill, repeat, section, table } from "./dom.js";
import { count, duration, time } from "./format.js";

export const title = "Pipelines";
export const needsAdmin = true;

const REFRESH_MS = 3000;
const KINDS = { running: "info", done: "good", failed: "bad", interrupted: "warn" };
const OURS = ["--with-broker"]; // arguments that the broker adds
const words = (one) => [one.job, ...one.arguments.filter((word) => !OURS.includes(word))].join(" ");
const took = (one) => duration(((one.ended_at || one.updated_at) - one.started_at) / 1e6);

// How much of what there was to read has been read.
function progress(one) {
  if (one.state !== "running" && !one.rows) return "–";
  const share = one.rows + one.lag ? one.rows / (one.rows + one.lag) : 1;
  const text = one.lag ? `${count(one.lag)} behind` : "up to date";
  return [h("progress", { max: 1, value: share, "aria-label": `Progress of ${one.run_id}` }), ` ${text}`];
}

function open(one) {
  const offsets = Object.entries(one.offsets);
  dialog(one.run_id, facts({ Job: words(one), State: pill(one.state, KINDS[one.state]), Started: `${time(one.started_at)} UTC`,
    Ended: one.ended_at ? `${time(one.ended_at)} UTC` : "–", Took: took(one), Rows: count(one.rows), Batches: count(one.batches),
    "Behind by": count(one.lag), Offsets: offsets.map(([topic, offset]) => `${topic} ${count(offset)}`).join(", ") || "–" }),
  one.error ? h("h3", {}, "Error") : null, one.error ? h("pre", { tabindex: 0 }, one.error) : null);
}

export async function show(root, { signal, guard }) {
  const list = table("Runs", [
    { title: "Job", text: words, node: (one) => h("code", {}, words(one)) },
    { title: "State", text: (one) => one.state, node: (one) => pill(one.state, KINDS[one.state]) },
    { title: "Progress", text: (one) => `${one.state} ${one.rows} ${one.lag}`, node: progress },
    { title: "Rows", text: (one) => count(one.rows), number: true },
    { title: "Started (UTC)", text: (one) => time(one.started_at).slice(0, 19), fixed: true },
    { title: "Took", text: took, number: true },
    { title: "Error", text: (one) => one.error.split("\n")[0].slice(0, 160) },
    { title: "", of: (one) => one, node: (one) => button("Show", () => open(one), "plain") },
  ], (one) => one.run_id, "No job has run yet.");
  const schedule = table("Schedule", [
    { title: "Name", text: (one) => one.name },
    { title: "Job", text: words, node: (one) => h("code", {}, words(one)) },
    { title: "Every", text: (one) => duration(one.every_s) },
    { title: "Next start (UTC)", text: (one) => (one.next_at ? time(one.next_at).slice(0, 19) : "runs now") },
  ], (one) => one.name, "No job runs by a schedule.");
  root.append(section("Runs", list), section("Schedule", schedule), h("p", { class: "state" },
    "Start a job with ", h("code", {}, "penstock pipeline run"), ", or give it a place in ", h("code", {}, "[spark.schedule]"), " of the settings file."));
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    const now = await get("/v1/pipelines?limit=200", signal);
    list.update(now.runs);
    schedule.update(now.schedule);
  }));
}
