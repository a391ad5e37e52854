// Consumers, groups and dead letters of all topics.

import { at, get, send } from "./api.js";
import { button, confirmed, h, link, repeat, table } from "./dom.js";
import { count } from "./format.js";

export const title = "Readers";

const REFRESH_MS = 5000;
const DEAD = ".dead";
const topicLink = (one) => link(`#/topics/${encodeURIComponent(one.topic)}`, one.topic);

export async function show(root, { signal, guard }) {
  const consumers = table("Consumers", [
    { title: "Consumer", text: (one) => one.consumer },
    { title: "Topic", of: (one) => one.topic, node: topicLink },
    { title: "Next offset", text: (one) => count(one.next_offset), number: true },
    { title: "Behind by", text: (one) => count(one.waiting), number: true },
    { title: "", of: (one) => one.consumer, node: (one) => button("Remove", () => confirmed(
      `Remove consumer ${one.consumer} of topic ${one.topic}? Its position is lost.`,
      () => send("DELETE", at("topics", one.topic, "consumers", one.consumer))), "plain") },
  ], (one) => `${one.topic}/${one.consumer}`, "There is no consumer.");
  const groups = table("Groups", [
    { title: "Group", text: (one) => one.group },
    { title: "Topic", of: (one) => one.topic, node: topicLink },
    { title: "Next offset", text: (one) => count(one.next_offset), number: true },
    { title: "Unacknowledged", text: (one) => count(one.pending.length), number: true },
    { title: "Behind by", text: (one) => count(one.lag), number: true },
    { title: "", of: (one) => one.group, node: (one) => button("Remove", () => confirmed(
      `Remove group ${one.group} of topic ${one.topic}? Its position is lost.`,
      () => send("DELETE", at("topics", one.topic, "groups", one.group))), "plain") },
  ], (one) => `${one.topic}/${one.group}`, "There is no group.");
  const dead = table("Dead letters", [
    { title: "Topic", text: (one) => one.topic.slice(0, -DEAD.length) },
    { title: "Dead letters", text: (one) => count(one.end_offset - one.first_offset), number: true },
    { title: "", of: (one) => one.topic, node: (one) =>
      link(`#/messages/${encodeURIComponent(one.topic)}?from=earliest`, "Browse") },
  ], (one) => one.topic, "No group has given up on a record.");
  root.append(h("section", { class: "card" }, h("h2", {}, "Consumers"), consumers),
    h("section", { class: "card" }, h("h2", {}, "Groups"), groups),
    h("section", { class: "card" }, h("h2", {}, "Dead letters"), dead));
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    const topics = (await get("/v1/topics", signal)).topics;
    const found = await Promise.all(topics.map(async ({ topic }) => ({
      consumers: (await get(at("topics", topic, "consumers"), signal)).consumers.map((one) => ({ ...one, topic })),
      groups: (await get(at("topics", topic, "groups"), signal)).groups.map((one) => ({ ...one, topic })),
    })));
    consumers.update(found.flatMap((one) => one.consumers));
    groups.update(found.flatMap((one) => one.groups));
    dead.update(topics.filter((one) => one.topic.endsWith(DEAD)));
  }));
}
