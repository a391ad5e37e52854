// Consumers, groups and dead letters of all topics.

import { at, get, send } from "./api.js";
import { button, confirmed, dialog, field, form, h, input, link, pill, repeat, say, section, table } from "./dom.js";
import { count, duration, offsets, plural } from "./format.js";

export const title = "Consumers and groups";
export const menu = "Consumers, groups";

const REFRESH_MS = 5000;
const OTHERS_MAX = 20; // topics without readers that one refresh asks about: there may be thousands
const DEAD = ".dead";
const topicLink = (one) => link(`#/topics/${encodeURIComponent(one.topic)}`, one.topic);
export const lag = (value) => pill(value ? count(value) : "up to date", value ? "warn" : "good");

export async function show(root, { signal, guard }) {
  const remove = (kind, one, path) => button("Remove", () => confirmed("Remove",
    `Remove ${kind} ${one[kind]} of topic ${one.topic}? Its position is lost.`, async () => {
      await send("DELETE", path);
      await refresh();
    }), "plain");
  const consumers = table("Consumers", [
    { title: "Consumer", text: (one) => one.consumer },
    { title: "Topic", of: (one) => one.topic, node: topicLink },
    { title: "Next offset", text: (one) => offsets(one.next_offset), number: true },
    { title: "Behind by", text: (one) => one.waiting, node: (one) => lag(one.waiting), number: true },
    { title: "", of: (one) => one, node: (one) => [button("Move to", () => move(one, refresh), "plain"),
      remove("consumer", one, at("topics", one.topic, "consumers", one.consumer))] },
  ], (one) => `${one.topic}/${one.consumer}`, "There is no consumer. The command penstock consume TOPIC --consumer NAME creates one.");
  const groups = table("Groups", [
    { title: "Group", text: (one) => one.group },
    { title: "Topic", of: (one) => one.topic, node: topicLink },
    { title: "Next offset", text: (one) => offsets(one.next_offset), number: true },
    { title: "Unacknowledged", text: (one) => count(one.pending.length), number: true },
    { title: "Behind by", text: (one) => one.lag, node: (one) => lag(one.lag), number: true },
    { title: "Lease", text: (one) => duration(one.lease_s) },
    { title: "Deliveries", text: (one) => (one.deliveries_max ? `at most ${one.deliveries_max}` : "no limit") },
    { title: "", of: (one) => one, node: (one) => [button("Settings", () => change(one), "plain"),
      remove("group", one, at("topics", one.topic, "groups", one.group))] },
  ], (one) => `${one.topic}/${one.group}`, "There is no group. The first fetch over HTTP creates one, or the command penstock group create.");
  const dead = table("Dead letters", [
    { title: "Topic", of: (one) => one.topic, node: topicLink },
    { title: "Group", text: (one) => one.group || "–" },
    { title: "Dead letters of the topic", text: (one) => count(one.count), number: true },
    { title: "", of: (one) => one, node: (one) => [link(`#/messages/${encodeURIComponent(one.topic + DEAD)}?from=earliest`, "Browse"), " ",
      one.group ? button("Redrive", () => redrive(one, refresh), "plain") : null] },
  ], (one) => `${one.topic}/${one.group}`, "No group has given up on a record.");
  let known = new Map(); // by topic: its readers, as of the last answer
  let first = 0; // of the topics without readers, the next one to ask about
  const refresh = () => guard(async () => {
    const topics = (await get("/v1/topics", signal)).topics;
    const names = topics.map((one) => one.topic);
    const others = names.filter((one) => known.has(one) && !known.get(one).count);
    const later = [...others.slice(first), ...others.slice(0, first)].slice(OTHERS_MAX);
    first = Math.max(0, others.indexOf(later[0]));
    const kept = new Set(later);
    const found = await Promise.all(names.map(async (one) => [one, kept.has(one) ? known.get(one) : await readersOf(one, signal)]));
    known = new Map(found);
    const grouped = found.flatMap(([, one]) => one.groups);
    consumers.update(found.flatMap(([, one]) => one.consumers));
    groups.update(grouped);
    dead.update(topics.filter((one) => one.topic.endsWith(DEAD)).flatMap((one) => {
      const topic = one.topic.slice(0, -DEAD.length);
      const mine = grouped.filter((group) => group.topic === topic).map((group) => group.group);
      return (mine.length ? mine : [""]).map((group) => ({ topic, group, count: one.records }));
    }));
  });
  const change = (one) => {
    const lease = input({ value: one.lease_s, inputmode: "decimal" });
    const deliveries = input({ value: one.deliveries_max, inputmode: "numeric" });
    const close = dialog(`Group ${one.group}`, form("Save", [
      field("Lease", lease, "Seconds in which a record has to be acknowledged"),
      field("Deliveries", deliveries, "Before a record becomes a dead letter; 0: no limit"),
    ], async () => {
      await send("PATCH", at("topics", one.topic, "groups", one.group),
        { lease_s: Number(lease.value), deliveries_max: Number(deliveries.value) });
      close();
      await refresh();
    }));
  };
  root.append(section("Consumers", consumers), section("Groups", groups), section("Dead letters", dead));
  await repeat(REFRESH_MS, signal, refresh);
}

// Of one topic; none if it may not be read, or has just been deleted.
async function readersOf(topic, signal) {
  try {
    const { consumers } = await get(at("topics", topic, "consumers"), signal);
    const { groups } = await get(at("topics", topic, "groups"), signal);
    return { consumers: consumers.map((one) => ({ ...one, topic })), groups: groups.map((one) => ({ ...one, topic })), count: consumers.length + groups.length };
  } catch (wrong) {
    if (wrong.status !== 403 && wrong.status !== 404) throw wrong;
    return { consumers: [], groups: [], count: 0 };
  }
}

// Lets a consumer continue elsewhere.
function move(one, refresh) {
  const from = input({ required: true, value: typeof one.next_offset === "object" ? JSON.stringify(one.next_offset) : one.next_offset });
  const close = dialog(`Move consumer ${one.consumer}`, form("Move", [
    field("Continue at", from, "earliest, latest, an offset, -24h, or a time"),
  ], async () => {
    const moved = await send("POST", `${at("topics", one.topic, "consumers", one.consumer)}/seek`, { from: from.value.trim() });
    close();
    say(`Consumer ${one.consumer} continues at offset ${offsets(moved.offset)}.`);
    await refresh();
  }));
}

// Puts dead letters of a group back into their topic; first it may only count them.
function redrive(one, refresh) {
  const where = input({ class: "wide", placeholder: "headers['penstock.dead.reason'] = 'no boxes'" });
  const whereField = field("Only dead letters with", where, "A filter expression; empty: all of this group");
  const said = h("p", { class: "state", role: "status" });
  async function run(isDry) {
    whereField.fail("");
    let from = 0;
    let records = 0;
    try {
      for (let isComplete = false; !isComplete;) {
        const asked = { from, dry_run: isDry, ...(where.value ? { where: where.value } : {}) };
        const answer = await send("POST", `${at("topics", one.topic, "groups", one.group)}/redrive`, asked);
        records += answer.records;
        [from, isComplete] = [answer.next_offset, answer.is_complete];
      }
    } catch (wrong) {
      whereField.fail(wrong.message);
      return;
    }
    if (isDry) {
      said.textContent = `${plural(records, "dead letter")} would be put back.`;
      return;
    }
    close();
    say(`${plural(records, "dead letter")} of group ${one.group} ${records === 1 ? "was" : "were"} put back into ${one.topic}.`);
    await refresh();
  }
  const close = dialog(`Redrive dead letters of ${one.group}`,
    h("p", {}, `They are published to ${one.topic} again, under their names. Each is put back once.`), whereField, said,
    h("div", { class: "row" }, button("Count them", () => run(true), "plain"), button("Redrive", () => run(false))));
}
