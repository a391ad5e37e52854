// "Where is my message?": follow a name or a client live, or ask who has passed a stored record.

import { at, get, query, send } from "./api.js";
import { button, clear, facts, field, form, h, input, link, pill, repeat, section, table } from "./dom.js";
import { count, plural, time } from "./format.js";

export const title = "Trace";
export const needsAdmin = true;

const WAIT_S = 10;
const SHOWN_MAX = 500;
const SECONDS = 600;
const RECORD = /^([^/]+)(?:\/(\d{1,9}))?@(\d{1,18})$/; // a partition is named where there are several
const placeOf = (one) => `${one.topic}${one.partition ? `/${one.partition}` : ""}@${one.offset}`;
const KINDS = { received: "info", stored: "good", sent: "info", "sent again": "warn", acknowledged: "good", read: "info", "given back": "warn",
  waiting: "warn", dropped: "bad", removed: "bad", refused: "bad", passed: "good", unacknowledged: "warn" };
const isFilter = (text) => !/#./.test(text) && !/[^/][+#]|\+[^/]/.test(text);

const eventTable = () => table("Events", [
  { title: "Time (UTC)", text: (one) => time(one.at).slice(11), fixed: true },
  { title: "What", text: (one) => one.what, node: (one) => pill(one.what, KINDS[one.what]) },
  { title: "Name", text: (one) => one.name },
  { title: "Record", text: (one) => (one.offset === undefined ? "–" : placeOf(one)), node: (one) =>
    (one.offset === undefined || !one.topic ? "–" : link(`#/trace/${encodeURIComponent(placeOf(one))}`, placeOf(one))) },
  { title: "Client", text: (one) => one.client ?? "" },
  { title: "QoS", text: (one) => one.qos ?? "–", number: true },
  { title: "Messages", text: (one) => count(one.count ?? 1), number: true },
  { title: "Detail", text: (one) => one.detail ?? "" },
], (one) => one.number, "Nothing has happened yet. Publish a message.");

export async function show(root, context) {
  const { parts, signal, guard } = context;
  const what = input({ required: true, class: "wide", value: parts[0] ?? "", placeholder: "sensors/#, device-7 or orders@42" });
  const shown = h("div");
  let running = null;
  const stop = async () => {
    const path = running?.path;
    running?.leaving.abort();
    running = null;
    if (path) await send("DELETE", path).catch(() => null); // it ends by itself
  };
  signal.addEventListener("abort", stop);
  const ask = form("Trace", [field("Name, client or record", what,
    "A name or a filter, a client id, or TOPIC@OFFSET for a stored record (orders/3@42 in partition 3)")], async () => {
    await stop();
    const subject = what.value.trim();
    history.replaceState(null, "", `#/trace/${encodeURIComponent(subject)}`);
    const found = RECORD.exec(subject);
    if (found && (await showRecord(shown, found, signal))) return;
    const note = found ? `There is no topic ${found[1]}: ${subject} is taken for a name or a client id.` : "";
    running = await follow(shown, subject, note, context, stop);
    await refresh();
  });
  const traces = table("Traces that are on", [
    { title: "Names", text: (one) => one.names || "–" },
    { title: "Client", text: (one) => one.client || "–" },
    { title: "Events", text: (one) => count(one.last_number), number: true },
    { title: "Ends (UTC)", text: (one) => (one.is_on ? time(one.ends_at).slice(11, 19) : "is over") },
    { title: "", of: (one) => one.trace, node: (one) => button("Delete", async () => {
      await guard(() => send("DELETE", at("traces", one.trace)));
      await refresh();
    }, "plain") },
  ], (one) => one.trace, "No trace is on. Without one, tracing costs nothing.");
  const refresh = () => guard(async () => traces.update((await get("/v1/traces", signal)).traces));
  root.append(h("section", { class: "card" }, ask), shown, section("All traces", traces));
  if (parts[0]) ask.requestSubmit();
  await repeat(5000, signal, refresh);
}

async function follow(shown, subject, note, { signal, guard }, stop) {
  const names = isFilter(subject) ? { names: subject } : {};
  const begun = await send("POST", "/v1/traces", { ...names, client: subject, seconds: SECONDS });
  const path = at("traces", begun.trace);
  const leaving = new AbortController();
  signal.addEventListener("abort", () => leaving.abort());
  const list = eventTable();
  list.classList.add("events");
  const state = h("p", { class: "state", role: "status" });
  const pause = button("Stop", async () => {
    await stop();
    pause.hidden = true;
    state.textContent = "Stopped.";
  });
  clear(shown, h("div", { class: "row" }, h("h2", {}, subject), pause), note ? h("p", {}, note) : null, state, list);
  let events = [];
  let after = 0;
  repeat(100, leaving.signal, () => guard(async () => {
    const now = await get(`${path}${query({ after, wait: after ? WAIT_S : 0 })}`, leaving.signal);
    events = [...now.events.reverse(), ...events].slice(0, SHOWN_MAX);
    after = now.last_number;
    list.update(events);
    state.textContent = `${plural(after, "event")}${now.skipped ? `; ${plural(now.skipped, "event")} came too fast to be kept` : ""}. ` +
      (now.is_on ? `Follows until ${time(now.ends_at).slice(11, 19)} UTC; newest first.` : "The trace is over.");
    if (!now.is_on) leaving.abort();
    else if (!after) await new Promise((resolve) => setTimeout(resolve, 400));
  }));
  return { path, leaving };
}

// False if there is no such topic: then the text is a name or a client.
async function showRecord(shown, [place, topic, partition, offset], signal) {
  let known;
  try {
    known = await get(`${at("topics", topic)}/records/${offset}/trace${query({ partition })}`, signal);
  } catch (wrong) {
    if (wrong.status === 404) return false;
    throw wrong;
  }
  const record = known.record;
  const readers = table("Readers of the record", [
    { title: "Reader", text: (one) => one.reader },
    { title: "Kind", text: (one) => one.kind + (one.is_connected === null ? "" : one.is_connected ? ", connected" : ", away") },
    { title: "State", text: (one) => one.state, node: (one) => pill(one.state, KINDS[one.state]) },
    { title: "Next offset", text: (one) => count(one.next_offset), number: true },
  ], (one) => `${one.kind} ${one.reader} ${one.state}`, "No consumer, group or subscription reads this record.");
  readers.update(known.readers);
  const events = eventTable();
  events.update(known.events);
  clear(shown, section(place, facts({
    Name: record.name, Received: `${time(record.timestamp)} UTC`, Publisher: record.publisher || "–", QoS: record.qos ?? 1,
    Topic: `offsets ${count(known.first_offset)} to ${count(known.end_offset - 1)}`,
    Message: link(`#/messages/${encodeURIComponent(topic)}${query(partition ? { from: new Date(record.timestamp / 1000).toISOString(), names: record.name } : { from: offset })}`, "Show the payload"),
  })), section("Which readers have passed it", readers),
  known.events.length ? section("What traces saw of it", events) : null);
  return true;
}
