// Browse a topic from any position, follow it live, look into a message, publish one.

import { at, events, get, query, send } from "./api.js";
import { asCurl, asMosquitto, asPython } from "./copying.js";
import { button, copy, dialog, facts, field, form, h, input, link, repeat, say, select, table } from "./dom.js";
import { bytes, count, offsets, plural, time } from "./format.js";

export const title = "Messages";

const PAGE = 50;
const NEWEST = "newest";
const LOOKED_MAX = 20_000; // records that are searched at once for the newest that match
const READ_MAX = 10_000; // of one request
const RETRY_MS = 2000;
const LIVE_MAX = 500; // shown at once; older ones leave the page
const TEXT_MAX = 120;

export async function show(root, context) {
  const { parts, fields, signal, me, guard } = context;
  const topics = (await get("/v1/topics", signal)).topics.map((one) => one.topic);
  if (!topics.length) {
    root.append(h("p", { class: "none" }, "There is no topic yet. Publish the first message:"),
      h("section", { class: "card" }, publishing(() => "", [])));
    return;
  }
  if (parts[0] && !topics.includes(parts[0])) return root.append(missing(parts[0]));
  const topic = select(topics, parts[0] || topics[0]);
  const from = input({ value: fields.get("from") ?? NEWEST, size: 12 });
  const names = input({ value: fields.get("names") ?? "", placeholder: "sensors/+/temp" });
  const where = input({ value: fields.get("where") ?? "", placeholder: "payload.celsius > 30", class: "wide" });
  const namesField = field("Names", names, "A filter with + and #");
  const whereField = field("Where", where, "A filter expression: payload, name, headers, offset, timestamp");
  const fromField = field("From", from, "newest, earliest, an offset, -24h, or a time");
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  let isSplit = false; // the topic has several partitions: offsets count in each of them
  const placeOf = (one) => (isSplit ? `${one.partition ?? 0}:${one.offset}` : one.offset);
  const list = table("Messages", [
    { title: "Offset", text: (one) => placeOf(one), number: true },
    { title: "Time (UTC)", text: (one) => time(one.timestamp), fixed: true },
    { title: "Name", text: (one) => one.name },
    { title: "Payload", text: (one) => preview(one), node: (one) => h("code", {}, preview(one)) },
    { title: "Size", text: (one) => bytes(contentOf(one).length), number: true },
    { title: "", text: () => "", node: (one) => button("Open", () => open(topic.value, one, me, isSplit), "plain") },
  ], placeOf, "No message matches.");
  const state = h("p", { class: "state" });
  const further = button("Next page", () => browse(next));
  const live = button("Follow live", () => (tail ? pause() : follow()));
  let next = 0;
  let tail = null; // ends the stream that is being read
  let shown = [];
  let seen = ""; // how far the stream was read; empty before the first one

  const filters = () => ({ names: names.value, where: where.value });
  // What is wrong with an entry is said below it; false if the broker is away.
  async function guarded(work) {
    problem.hidden = true;
    [fromField, namesField, whereField].forEach((one) => one.fail(""));
    let isAnswered = true;
    await guard(async () => {
      try {
        await work();
      } catch (wrong) {
        isAnswered = wrong.status !== 0 && wrong.status !== 503;
        if (!isAnswered || wrong.status === 401) throw wrong;
        explain(wrong);
      }
    });
    return isAnswered;
  }
  function explain(wrong) {
    if (wrong.name === "AbortError") return;
    const field = { InvalidExpression: whereField, InvalidFilter: namesField, InvalidPosition: fromField,
      OffsetBeyondEnd: fromField }[wrong.error];
    if (field) return field.fail(wrong.message);
    problem.textContent = wrong.message;
    problem.hidden = false;
  }
  const recordsFrom = (from, limit) =>
    get(`${at("topics", topic.value)}/records${query({ from, limit, ...filters() })}`, signal);
  // The address says what is shown, so that it can be reloaded, kept and sent to somebody.
  const address = () => `#/messages/${encodeURIComponent(topic.value)}${query({ ...filters(), from: from.value === NEWEST ? "" : from.value })}`;
  const begin = () => browse(from.value.trim() || NEWEST);
  // Asks again while the broker is away.
  async function browse(position) {
    stop();
    const isAnswered = await guarded(() => (position === NEWEST || position.ends ? showNewest(position.ends) : showPage(position)));
    if (!isAnswered) setTimeout(() => signal.aborted || tail || browse(position), RETRY_MS);
  }
  const endsAt = (ends) => `the topic ends at offset ${offsets(ends)}${isSplit ? " (partition:offset)" : ""}`;
  async function showPage(position) {
    const page = await recordsFrom(position, PAGE);
    const { next_offset: reached, end_offset: ends } = page;
    isSplit = typeof ends === "object";
    next = isSplit ? JSON.stringify(reached) : reached;
    list.update(page.records);
    further.textContent = "Next page";
    further.hidden = isSplit ? Object.keys(ends).every((one) => reached[one] >= ends[one]) : reached >= ends;
    state.textContent = `${plural(page.records.length, "message")}; ${endsAt(ends)}.`;
  }
  async function showNewest(below) {
    const about = await get(at("topics", topic.value), signal);
    isSplit = Boolean(about.partitions?.length);
    const parts = isSplit ? about.partitions : [{ ...about, partition: 0 }];
    const ends = endsOf(parts, (one) => one.end_offset);
    const read = (starts) => recordsFrom(isSplit ? JSON.stringify(starts) : starts[0], READ_MAX);
    const { found, older } = await findNewest(parts, below ?? ends, read);
    list.update(found);
    next = { ends: older };
    further.textContent = "Older messages";
    further.hidden = parts.every((one) => older[one.partition] <= one.first_offset);
    const searched = found.length < PAGE && !further.hidden ? ` in the ${count(LOOKED_MAX)} records that were searched` : "";
    state.textContent = `${plural(found.length, "message")}${searched}, the newest first; ${endsAt(isSplit ? ends : ends[0])}.`;
  }
  function end(label) {
    tail?.abort();
    tail = null;
    live.textContent = label;
    live.setAttribute("aria-pressed", "false");
  }
  function stop() {
    end("Follow live");
    shown = [];
    seen = "";
  }
  function pause() {
    end("Continue");
    state.textContent = "Paused. Continue to see what has arrived since.";
  }
  // Goes on behind the last message that was seen, also after a pause or when the broker was away.
  async function follow() {
    const mine = (tail = new AbortController());
    signal.addEventListener("abort", () => mine.abort());
    live.textContent = "Pause";
    live.setAttribute("aria-pressed", "true");
    further.hidden = true;
    let isWaiting = false;
    list.update(shown);
    const draw = () => {
      isWaiting = false;
      if (!mine.signal.aborted) list.update(shown);
    };
    await repeat(1000, mine.signal, () => guarded(async () => {
      state.textContent = "Following. New messages appear at the top.";
      for await (const event of events(`${at("topics", topic.value)}/stream${query(filters())}`, mine.signal, seen)) {
        if (mine.signal.aborted) return;
        if (event.id) seen = event.id;
        if (event.type !== "message" || !event.data) continue;
        shown = [JSON.parse(event.data), ...shown].slice(0, LIVE_MAX);
        if (!isWaiting) requestAnimationFrame(draw);
        isWaiting = true;
      }
    }));
  }
  const search = () => { history.replaceState(null, "", address()); begin(); };
  const asked = h("form", { class: "row search", onsubmit: (event) => { event.preventDefault(); search(); } },
    field("Topic", topic), fromField, namesField, whereField,
    h("div", { class: "row" }, h("button", { type: "submit" }, "Browse"), live));
  topic.addEventListener("change", search);
  const published = () => (tail ? null : begin());
  root.append(h("section", { class: "card" }, asked, problem), h("details", { class: "card" },
    h("summary", {}, "Publish a message"), publishing(() => topic.value, topics, published)), state, list, further);
  await begin();
  if (fields.get("live")) await follow();
}

const endsOf = (parts, offsetOf) => Object.fromEntries(parts.map((one) => [one.partition, offsetOf(one)]));

// The last messages below `ends` that match, the newest first, and the ends of the messages before them.
async function findNewest(parts, ends, read) {
  let found = [];
  let starts = ends;
  for (let span = PAGE; span <= LOOKED_MAX; span *= 20) { // looks further back until there are enough
    const each = Math.ceil(span / parts.length);
    starts = endsOf(parts, (one) => Math.max(one.first_offset, ends[one.partition] - each));
    found = await readBetween(starts, ends, read);
    if (found.length >= PAGE || parts.every((one) => starts[one.partition] <= one.first_offset)) break;
  }
  if (found.length <= PAGE) return { found, older: starts };
  found = found.slice(0, PAGE);
  const lowest = ({ partition }) => Math.min(ends[partition],
    ...found.filter((one) => (one.partition ?? 0) === partition).map((one) => one.offset));
  return { found, older: endsOf(parts, lowest) };
}

async function readBetween(starts, ends, read) {
  const found = [];
  for (let reached = starts; Object.keys(ends).some((one) => reached[one] < ends[one]);) {
    const page = await read(reached);
    found.push(...page.records.filter((one) => one.offset < ends[one.partition ?? 0]));
    reached = typeof page.next_offset === "object" ? page.next_offset : { 0: page.next_offset };
  }
  return found.sort((one, other) => other.timestamp - one.timestamp || other.offset - one.offset);
}

export const missing = (topic) => h("p", { class: "none" }, `There is no topic ${topic}, or you may not see it. `, link("#/topics", "All topics"));

// The payload as bytes.
function contentOf(record) {
  if (record.payload_base64 !== undefined) return Uint8Array.from(atob(record.payload_base64), (one) => one.charCodeAt(0));
  const text = typeof record.payload === "string" ? record.payload : JSON.stringify(record.payload);
  return new TextEncoder().encode(text);
}

const textOf = (record) => new TextDecoder().decode(contentOf(record));

export function preview(record) {
  if (record.payload_base64 !== undefined) return `${bytes(contentOf(record).length)} of binary data`;
  const text = textOf(record);
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)} …` : text;
}

function hexOf(content) {
  const lines = [];
  for (let start = 0; start < Math.min(content.length, 65536); start += 16) {
    const part = [...content.slice(start, start + 16)];
    const hex = part.map((one) => one.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((one) => (one >= 32 && one < 127 ? String.fromCharCode(one) : ".")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

function jsonOf(record) {
  try {
    return JSON.stringify(JSON.parse(textOf(record)), null, 2);
  } catch {
    return null;
  }
}

export function open(topic, record, me, isSplit) {
  const content = h("pre", { tabindex: 0 });
  const views = { JSON: jsonOf(record), Text: textOf(record), Hex: hexOf(contentOf(record)) };
  const tabs = Object.entries(views).filter(([, text]) => text !== null).map(([name, text]) =>
    button(name, () => {
      content.textContent = text;
      tabs.forEach((one) => one.setAttribute("aria-pressed", String(one.textContent === name)));
    }, "plain"));
  const partition = isSplit ? { Partition: record.partition ?? 0 } : {};
  const shown = { Topic: topic, ...partition, Offset: record.offset, "Time (UTC)": time(record.timestamp), Name: record.name,
    Publisher: record.publisher || "–", Kind: record.kind ?? "text", QoS: record.qos ?? 1,
    Retained: record.retain ? "yes" : "no", Expires: record.expires_at ? time(record.expires_at) : "never" };
  const headers = Array.isArray(record.headers) ? record.headers : Object.entries(record.headers ?? {});
  const programs = [["Copy as curl", asCurl], ["Copy as Python", asPython], ["Copy as mosquitto_pub", asMosquitto]];
  const place = `${topic}${isSplit ? `/${record.partition ?? 0}` : ""}@${record.offset}`;
  const trace = me.is_admin ? link(`#/trace/${encodeURIComponent(place)}`, "Who has received it?") : null;
  const close = dialog(`Message ${record.offset}`, facts(shown),
    headers.length ? h("h3", {}, "Headers and properties") : null,
    headers.length ? h("dl", { class: "facts" }, ...headers.flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, text)])) : null,
    h("h3", {}, "Payload"), h("div", { class: "row" }, ...tabs), content,
    h("div", { class: "row" }, ...programs.map(([name, make]) => button(name, () => copy(make(topic, record, me)), "plain")), trace));
  trace?.addEventListener("click", close);
  tabs[0].click();
}

function publishing(topicOf, topics, published) {
  const topic = topics.length ? null : input({ required: true });
  const name = input({ placeholder: "as the topic" });
  const payload = h("textarea", { rows: 3, spellcheck: "false", required: true });
  const kind = select(["text", "JSON"], "text");
  const headers = h("textarea", { rows: 2, spellcheck: "false", placeholder: "unit: celsius" });
  const retain = h("input", { type: "checkbox" });
  return form("Publish", [
    topic ? field("Topic", topic, "It is created.") : null,
    field("Name", name, "What MQTT clients call the topic: sensors/42/temp"),
    field("Payload", payload), field("Payload is", kind), field("Headers", headers, "One per line, as key: value"), field("Retain", retain, "Later subscribers get it, too"),
  ], async () => {
    const target = topic ? topic.value : topicOf();
    const message = { payload: kind.value === "JSON" ? parsed(payload.value) : payload.value };
    if (name.value) message.name = name.value;
    if (retain.checked) message.retain = true;
    if (headers.value.trim()) message.headers = pairs(headers.value);
    if (topic) await send("PUT", at("topics", target), {});
    const stored = await send("POST", `${at("topics", target)}/records`, message);
    say(`Stored at offset ${offsets(stored.first_offset)}.`);
    if (topic) location.hash = `#/messages/${encodeURIComponent(target)}`;
    else await published();
  });
}

const pairs = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
  const at = line.indexOf(":");
  if (at < 1) throw new Error(`The header line “${line}” is not key: value.`);
  return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
});

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (wrong) {
    throw new Error(`The payload is not JSON: ${wrong.message}`);
  }
}
