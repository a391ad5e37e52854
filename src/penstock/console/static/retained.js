// The newest retained message of each name.

import { at, get, query, send } from "./api.js";
import { button, confirmed, field, h, input, link, repeat, table } from "./dom.js";
import { bytes, time } from "./format.js";

export const title = "Retained";

const REFRESH_MS = 5000;
const LIMIT = 500;

export async function show(root, { signal, guard }) {
  const names = input({ value: "#" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const more = h("p", { class: "state", hidden: true }, "More names match: narrow the filter to see them.");
  const list = table("Retained messages", [
    { title: "Name", text: (one) => one.name },
    { title: "Topic", of: (one) => one.topic, node: (one) =>
      link(`#/messages/${encodeURIComponent(one.topic)}?from=${one.offset}`, `${one.topic} @ ${one.offset}`) },
    { title: "Time (UTC)", text: (one) => time(one.timestamp) },
    { title: "Publisher", text: (one) => one.publisher || "–" },
    { title: "Size", text: (one) => bytes(one.payload_bytes), number: true },
    { title: "Expires", text: (one) => (one.expires_at ? time(one.expires_at) : "never") },
    { title: "", of: (one) => one.name, node: (one) => button("Delete", () => confirmed("Delete",
      `Delete the retained message of ${one.name}? Later subscribers will not get it.`, async () => {
        await send("POST", `${at("topics", one.topic)}/records`, { name: one.name, payload: "", retain: true });
        await refresh();
      }), "plain") },
  ], (one) => one.name, "No retained message matches.");
  const refresh = () => guard(async () => {
    problem.hidden = true;
    try {
      const found = await get(`/v1/retained${query({ names: names.value, limit: LIMIT })}`, signal);
      list.update(found.retained);
      more.hidden = !found.has_more;
    } catch (wrong) {
      if (wrong.status !== 400) throw wrong;
      problem.textContent = wrong.message;
      problem.hidden = false;
    }
  });
  names.addEventListener("change", refresh);
  root.append(h("div", { class: "row" }, field("Names that match", names, "With + and #")), problem, more, list);
  await repeat(REFRESH_MS, signal, refresh);
}
