// Runs of pipeline jobs.

import { get } from "./api.js";
import { h, repeat, table } from "./dom.js";
import { count, duration, time } from "./format.js";

export const title = "Pipelines";
export const needsAdmin = true;

const REFRESH_MS = 4000;

export async function show(root, { signal, guard }) {
  const list = table("Runs", [
    { title: "Run", text: (one) => one.run_id },
    { title: "Job", text: (one) => [one.job, ...one.arguments].join(" ") },
    { title: "State", text: (one) => one.state },
    { title: "Started (UTC)", text: (one) => time(one.started_at).slice(0, 19) },
    { title: "Took", text: (one) => duration(((one.ended_at || one.updated_at) - one.started_at) / 1e6) },
    { title: "Rows", text: (one) => count(one.rows), number: true },
    { title: "Batches", text: (one) => count(one.batches), number: true },
    { title: "Behind by", text: (one) => count(one.lag), number: true },
    { title: "Error", text: (one) => one.error },
  ], (one) => one.run_id, "No job has run yet. `penstock pipeline run --help` lists the jobs.");
  root.append(list, h("p", { class: "state" }, "Jobs run with `penstock pipeline run`, or by the schedule in the settings file."));
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    list.update((await get("/v1/pipelines?limit=200", signal)).runs);
  }));
}
