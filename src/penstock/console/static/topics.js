// All topics with their rates and bounds; one topic with its settings, readers and bindings.

import { at, get, send } from "./api.js";
import { button, clear, confirmed, dialog, field, form, h, input, link, repeat, say, select, table } from "./dom.js";
import { bytes, count, duration, rate } from "./format.js";

export const title = "Topics";

const REFRESH_MS = 3000;
const href = (topic) => `#/topics/${encodeURIComponent(topic)}`;

export function show(root, context) {
  return context.parts[0] ? showOne(root, context, context.parts[0]) : showAll(root, context);
}

async function showAll(root, { signal, guard, me }) {
  const rates = new Map(); // by topic id: what was seen last, and the rate since
  const list = table("Topics", [
    { title: "Topic", of: (one) => one.topic, node: (one) => link(href(one.topic), one.topic) },
    { title: "Stored per second", text: (one) => rate(rates.get(one.id)?.rate ?? 0), number: true },
    { title: "Records", text: (one) => count(one.end_offset - one.first_offset), number: true },
    { title: "Offsets", text: (one) => `${count(one.first_offset)} – ${count(one.end_offset)}`, number: true },
    { title: "Size", text: (one) => bytes(one.bytes), number: true },
    { title: "Kept", text: (one) => kept(one) },
    { title: "State", text: (one) => (one.is_available ? "available" : one.trouble) },
  ], (one) => one.id, "There is no topic yet. The first message brings one.");
  const search = input({ type: "search", "aria-label": "Show topics that contain", placeholder: "Filter topics" });
  let topics = [];
  const update = () => list.update(topics.filter((one) => one.topic.includes(search.value)));
  search.addEventListener("input", update);
  root.append(h("div", { class: "row" }, search, button("Create a topic", () => create())), list);
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    topics = (await get("/v1/topics", signal)).topics;
    const now = performance.now();
    for (const one of topics) {
      const before = rates.get(one.id);
      const speed = before ? ((one.end_offset - before.end) / (now - before.now)) * 1000 : 0;
      rates.set(one.id, { end: one.end_offset, now, rate: Math.max(0, speed) });
    }
    update();
  }));
}

const kept = (one) => {
  const size = one.retention_bytes === null ? "" : `, at most ${bytes(one.retention_bytes)}`;
  return duration(one.retention_age) + size;
};

// As it may be entered again: 7d, 12h, or seconds.
function ageText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const [unit, length] = [["d", 86400], ["h", 3600], ["m", 60]].find(([, one]) => seconds % one === 0) ?? ["", 1];
  return `${seconds / length}${unit}`;
}

const settingsFields = (topic) => {
  const age = input({ value: ageText(topic?.retention_age), placeholder: "7d" });
  const size = input({ value: topic?.retention_bytes ?? "", placeholder: "10GB" });
  const durability = select(["fsync", "os"], topic?.durability ?? "fsync");
  return {
    parts: [
      field("Keep records for", age, "Seconds, or 12h, 7d; empty: for ever"),
      field("Keep at most", size, "Bytes, or 10GB; empty: without a bound"),
      field("Durability", durability, "fsync: an acknowledgement waits for the disk"),
    ],
    read: () => ({ retention_age: value(age), retention_bytes: value(size), durability: durability.value }),
  };
};

const value = (element) => {
  const text = element.value.trim();
  if (!text) return null;
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) : text;
};

function create() {
  const name = input({ required: true });
  const settings = settingsFields(null);
  const close = dialog("Create a topic", form("Create", [field("Name", name), ...settings.parts], async () => {
    await send("PUT", at("topics", name.value), settings.read());
    close();
    say(`Topic ${name.value} was created.`);
  }));
}

async function showOne(root, { signal, guard, me }, name) {
  const facts = h("dl", { class: "facts" });
  const consumers = table("Consumers", [
    { title: "Consumer", text: (one) => one.consumer },
    { title: "Next offset", text: (one) => count(one.next_offset), number: true },
    { title: "Behind by", text: (one) => count(one.waiting), number: true },
  ], (one) => one.consumer, "No consumer reads this topic.");
  const groups = table("Groups", [
    { title: "Group", text: (one) => one.group },
    { title: "Next offset", text: (one) => count(one.next_offset), number: true },
    { title: "Unacknowledged", text: (one) => count(one.pending.length), number: true },
    { title: "Behind by", text: (one) => count(one.lag), number: true },
  ], (one) => one.group, "No group reads this topic.");
  const bindings = table("Bindings", [
    { title: "Names that match", text: (one) => one.filter },
    { title: "are stored in", text: (one) => one.topic },
  ], (one) => one.filter, "No filter is bound to this topic.");
  const settings = h("section", { class: "card" });
  root.previousElementSibling.textContent = name;
  root.append(
    h("div", { class: "row" }, link("#/topics", "All topics"),
      link(`#/messages/${encodeURIComponent(name)}`, "Browse and publish messages"),
      button("Delete the topic", () => confirmed(
        `Delete topic ${name} with all its records and readers? This cannot be undone.`, async () => {
          await send("DELETE", at("topics", name));
          location.hash = "#/topics";
        }), "danger")),
    h("section", { class: "card" }, facts), settings,
    h("section", { class: "card" }, h("h2", {}, "Consumers"), consumers),
    h("section", { class: "card" }, h("h2", {}, "Groups"), groups),
    h("section", { class: "card" }, h("h2", {}, "Bindings"), bindings));
  let isFirst = true;
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    const topic = await get(at("topics", name), signal);
    clear(facts, Object.entries({
      Records: count(topic.end_offset - topic.first_offset),
      Offsets: `${count(topic.first_offset)} to ${count(topic.end_offset)}`,
      Size: bytes(topic.bytes),
      Kept: kept(topic),
      Durability: topic.durability,
      Epoch: topic.epoch,
      State: topic.is_available ? "available" : topic.trouble,
    }).flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, String(text))]));
    if (isFirst) showSettings(settings, topic);
    isFirst = false;
    consumers.update((await get(`${at("topics", name)}/consumers`, signal)).consumers);
    groups.update((await get(`${at("topics", name)}/groups`, signal)).groups);
    const bound = (await get("/v1/bindings", signal)).bindings;
    bindings.update(bound.filter((one) => one.topic === name));
  }));
}

function showSettings(section, topic) {
  const settings = settingsFields(topic);
  clear(section, h("h2", {}, "Settings"), form("Save the settings", settings.parts, async () => {
    await send("PATCH", at("topics", topic.topic), settings.read());
    say("The settings were saved.");
  }));
}
