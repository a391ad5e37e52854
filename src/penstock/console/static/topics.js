// All topics with their rates and bounds; one topic with its settings, readers and bindings.

import { at, get, query, send } from "./api.js";
import { button, clear, confirmed, dialog, field, form, h, input, link, pill, repeat, say, section, select, table, tile } from "./dom.js";
import { bytes, count, duration, offsets, rate, time } from "./format.js";
import { missing, open, preview } from "./messages.js";
import { lag } from "./readers.js";

export const title = "Topics";

const REFRESH_MS = 3000;
const NEWEST = 5;
const href = (topic) => `#/topics/${encodeURIComponent(topic)}`;
const messagesOf = (topic) => `#/messages/${encodeURIComponent(topic)}`;

export function show(root, context) {
  return context.parts[0] ? showOne(root, context, context.parts[0]) : showAll(root, context);
}

async function showAll(root, { signal, guard, me }) {
  const rates = new Map(); // by topic id: what was seen last, and the rate since
  const list = table("Topics", [
    { title: "Topic", of: (one) => one.topic, node: (one) => link(href(one.topic), one.topic) },
    { title: "Stored per second", text: (one) => rate(rates.get(one.id)?.rate ?? 0), number: true },
    { title: "Records", text: (one) => count(one.records), number: true },
    { title: "Offsets", text: (one) => (one.partitions?.length ? `${one.partitions.length} partitions` : rangeOf(one)), number: true },
    { title: "Size", text: (one) => bytes(one.bytes), number: true },
    { title: "Kept", text: (one) => kept(one) },
    { title: "Durability", text: (one) => one.durability },
    { title: "State", text: (one) => stateOf(one), node: (one) => pill(stateOf(one), one.is_available ? "good" : "bad") },
    { title: "", of: (one) => one.topic, node: (one) => link(messagesOf(one.topic), "Browse") },
  ], (one) => one.id, "There is no topic yet. Create one, or publish a message: it creates the topic default.");
  const search = input({ type: "search", "aria-label": "Show topics that contain", placeholder: "Filter topics" });
  let topics = [];
  const update = () => list.update(topics.filter((one) => one.topic.includes(search.value)));
  search.addEventListener("input", update);
  root.append(h("div", { class: "row" }, search, button("Create a topic", () => create())), list);
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    topics = (await get("/v1/topics", signal)).topics.sort((one, other) => (one.topic < other.topic ? -1 : 1));
    const now = performance.now();
    for (const one of topics) {
      const before = rates.get(one.id);
      const speed = before ? ((one.end_offset - before.end) / (now - before.now)) * 1000 : 0;
      rates.set(one.id, { end: one.end_offset, now, rate: Math.max(0, speed) });
    }
    update();
  }));
}

const rangeOf = (one) => (one.end_offset > one.first_offset ? `${count(one.first_offset)} – ${count(one.end_offset - 1)}` : "–");
const stateOf = (one) => (one.is_available ? "available" : one.trouble);
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
  const age = input({ value: topic ? ageText(topic.retention_age) : "7d" });
  const size = input({ value: topic?.retention_bytes ?? "", placeholder: "10 GiB" });
  const durability = select(topic?.durability === "replicated" ? ["replicated"] : ["fsync", "os"], topic?.durability ?? "fsync");
  return {
    parts: [
      field("Keep records for", age, "Seconds, or 12h, 7d; empty: for ever"),
      field("Keep at most", size, "Bytes, or 10 GiB; empty: no limit"),
      field("Durability", durability, durability.value === "replicated" ? "Kafka's brokers hold what was acknowledged" : "fsync: an acknowledgement waits for the disk"),
    ],
    read: () => ({ retention_age: value(age), retention_bytes: value(size), durability: durability.value }),
  };
};

const value = (element) => {
  const text = element.value.trim();
  if (!text) return null;
  return /^\d+(\.\d+)?$/.test(text) ? Number(text) : text;
};

function create(known = "", created = () => null) {
  const name = input({ required: true, value: known });
  const settings = settingsFields(null);
  const close = dialog("Create a topic", form("Create", [field("Name", name), ...settings.parts], async () => {
    await send("PUT", at("topics", name.value), settings.read());
    close();
    say(`Topic ${name.value} was created.`);
    created();
  }));
}

async function showOne(root, { signal, guard, me }, name) {
  const tiles = h("div", { class: "tiles" });
  const consumers = table("Consumers", [
    { title: "Consumer", text: (one) => one.consumer },
    { title: "Next offset", text: (one) => offsets(one.next_offset), number: true },
    { title: "Behind by", text: (one) => one.waiting, node: (one) => lag(one.waiting), number: true },
  ], (one) => one.consumer, "No consumer reads this topic.");
  const groups = table("Groups", [
    { title: "Group", text: (one) => one.group },
    { title: "Next offset", text: (one) => offsets(one.next_offset), number: true },
    { title: "Unacknowledged", text: (one) => count(one.pending.length), number: true },
    { title: "Behind by", text: (one) => one.lag, node: (one) => lag(one.lag), number: true },
  ], (one) => one.group, "No group reads this topic.");
  const sessions = table("Sessions that are behind", [
    { title: "Client id", text: (one) => one.reader },
    { title: "State", text: (one) => (one.kind === "session" ? "connected" : "away") },
    { title: "Behind by", text: (one) => one.lag, node: (one) => lag(one.lag), number: true },
  ], (one) => one.reader, "No session of an MQTT client is behind in this topic.");
  let isSplit = false; // it has several partitions: offsets count in each of them
  const placeOf = (one) => (isSplit ? `${one.partition ?? 0}:${one.offset}` : one.offset);
  const newest = table("Newest messages", [
    { title: "Offset", text: placeOf, number: true },
    { title: "Time (UTC)", text: (one) => time(one.timestamp).slice(0, 19), fixed: true },
    { title: "Name", text: (one) => one.name },
    { title: "Payload", text: (one) => preview(one), node: (one) => h("code", {}, preview(one)) },
    { title: "", text: () => "", node: (one) => button("Open", () => open(name, one, me, isSplit), "plain") },
  ], placeOf, "The topic is empty.");
  const bindings = table("Bindings", [
    { title: "Names that match", text: (one) => one.filter },
    { title: "", of: (one) => one.filter, node: (one) => button("Remove", () => confirmed(
      "Remove", `Store names that match ${one.filter} elsewhere from now on?`, async () => {
        await send("DELETE", `/v1/bindings${query({ filter: one.filter })}`);
        await refresh();
      }), "plain") },
  ], (one) => one.filter, "No filter is bound to this topic. MQTT messages with its name, or below it, are stored in it anyway.");
  const settings = h("section", { class: "card" });
  root.previousElementSibling.textContent = name;
  let before = null;
  const content = h("div");
  const gone = h("div", { hidden: true }, missing(name), button("Create it", () => create(name, refresh)));
  const refresh = () => guard(async () => {
    const topic = await get(at("topics", name), signal).catch((wrong) => {
      if (wrong.status !== 404) throw wrong;
    });
    [content.hidden, gone.hidden] = [!topic, Boolean(topic)];
    if (!topic) return;
    const parts = topic.partitions ?? [];
    isSplit = parts.length > 0;
    const now = performance.now();
    const speed = before ? Math.max(0, (topic.end_offset - before.end) / (now - before.now) * 1000) : 0;
    if (!before) showSettings(settings, topic);
    before = { end: topic.end_offset, now };
    clear(tiles, tile("Stored", rate(speed), "in the last seconds"),
      tile("Records", count(topic.records), isSplit ? `in ${parts.length} partitions` : `offsets ${rangeOf(topic)}`),
      tile("Size", bytes(topic.bytes), `kept ${kept(topic)}`),
      tile("State", stateOf(topic), `${topic.durability}, epoch ${topic.epoch}`, topic.is_available ? "" : "bad"));
    consumers.update((await get(`${at("topics", name)}/consumers`, signal)).consumers);
    groups.update((await get(`${at("topics", name)}/groups`, signal)).groups);
    const last = (one) => Math.max(one.first_offset, one.end_offset - NEWEST);
    const from = isSplit ? JSON.stringify(Object.fromEntries(parts.map((one) => [one.partition, last(one)]))) : last(topic);
    const limit = NEWEST * Math.max(1, parts.length);
    const page = await get(`${at("topics", name)}/records${query({ from, limit })}`, signal);
    newest.update(page.records.sort((one, other) => other.timestamp - one.timestamp || other.offset - one.offset).slice(0, NEWEST));
    bindings.update((await get("/v1/bindings", signal)).bindings.filter((one) => one.topic === name));
    const slowest = await get(`/v1/overview?after=${Date.now() * 1000}`, signal).then((one) => one.slowest, () => []);
    sessions.update(slowest.filter((one) => one.kind.startsWith("session") && one.topic === name));
  });
  root.append(content, gone);
  content.append(
    h("div", { class: "row" }, link("#/topics", "All topics"),
      link(messagesOf(name), "Browse and publish messages"),
      button("Delete the topic", () => confirmed("Delete the topic",
        `Delete topic ${name} with all its records and readers? This cannot be undone.`, async () => {
          await send("DELETE", at("topics", name));
          location.hash = "#/topics";
        }), "danger")),
    tiles, settings, section("Newest messages", newest),
    h("div", { class: "columns" }, section("Consumers", consumers), section("Groups", groups),
      section("Sessions that are behind", sessions), section("Bindings", bindings, addBinding(name, refresh))));
  await repeat(REFRESH_MS, signal, refresh);
}

function addBinding(topic, refresh) {
  const filter = input({ required: true, placeholder: "plant/+/alarms" });
  return form("Bind", [field("Store names that match", filter, "With + and #")], async (element) => {
    await send("POST", "/v1/bindings", { filter: filter.value, topic });
    element.reset();
    await refresh();
  });
}

function showSettings(section, topic) {
  const settings = settingsFields(topic);
  clear(section, h("h2", {}, "Settings"), form("Save the settings", settings.parts, async () => {
    await send("PATCH", at("topics", topic.topic), settings.read());
    say("The settings were saved.");
  }));
}
