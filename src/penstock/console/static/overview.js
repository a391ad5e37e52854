// Rates, latencies, slow readers, disk: live, with the last hour.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { clear, h, link, repeat, section, table, tile } from "./dom.js";
import { bytes, count, duration, ms, plural, rate } from "./format.js";

export const title = "Overview";

const REFRESH_MS = 5000;

export async function show(root, { signal, guard, me }) {
  const tiles = h("div", { class: "tiles" });
  const troubles = h("div");
  const charts = [
    chart("Messages per second", [{ key: "published", name: "stored" }, { key: "delivered", name: "delivered" }], rate),
    chart("By protocol, per second", [
      { key: "mqtt_in", name: "MQTT in" }, { key: "mqtt_out", name: "MQTT out" },
      { key: "http_in", name: "HTTP in" }, { key: "http_out", name: "HTTP out" }], rate),
    chart("Latency", [
      { key: "ack_ms", name: "publish to ack" }, { key: "ack_p99_ms", name: "ack, 99 %" },
      { key: "commit_ms", name: "commit" }, { key: "commit_p99_ms", name: "commit, 99 %" }], ms),
    chart("Event loop lag", [{ key: "loop_lag_ms", name: "longest" }], ms),
    chart("Connected clients", [{ key: "clients", name: "clients" }], (value) => count(Math.round(value * 10) / 10)),
    chart("Memory of the process", [{ key: "memory_bytes", name: "resident" }], bytes),
  ];
  const slowest = table("Readers that are furthest behind", [
    { title: "Reader", text: (one) => one.reader },
    { title: "Kind", text: (one) => one.kind },
    { title: "Topic", of: (one) => one.topic, node: (one) => link(`#/topics/${encodeURIComponent(one.topic)}`, one.topic) },
    { title: "Behind by", text: (one) => count(one.lag), number: true },
  ], (one) => `${one.kind} ${one.topic} ${one.reader}`, "No reader is behind.");
  const reasons = table("Dropped and refused", [
    { title: "What", text: (one) => one.what },
    { title: "Reason", text: (one) => one.reason.replaceAll("_", " ") },
    { title: "Since the start", text: (one) => count(one.count), number: true },
  ], (one) => `${one.what} ${one.reason}`, "Nothing was dropped or refused since the start.");
  root.append(tiles, troubles, h("div", { class: "charts" }, ...charts), h("div", { class: "columns" },
    me.is_admin ? section("Slowest readers", slowest) : null, section("Dropped and refused", reasons)));

  let series = null;
  await repeat(REFRESH_MS, signal, () => guard(async () => {
    const now = await get(`/v1/overview?after=${series?.at.at(-1) ?? 0}`, signal);
    series = joined(series, now.series);
    charts.forEach((one) => one.update(series));
    clear(tiles, tilesOf(now, series));
    clear(troubles, [now.disk.refusal, ...now.troubles].filter(Boolean).map((text) =>
      h("p", { class: "problem", role: "alert" }, text)));
    slowest.update(now.slowest);
    reasons.update([
      ...Object.entries(now.dropped).map(([reason, number]) => ({ what: "dropped", reason, count: number })),
      ...Object.entries(now.refused).map(([reason, number]) => ({ what: "refused", reason, count: number })),
    ]);
  }));
}

// An hour at most, with what is new at its end.
function joined(before, added) {
  if (!before || (added.at.length && added.at[0] < before.at.at(-1))) return added;
  const keep = 3600 / added.interval_s;
  const at = [...before.at, ...added.at].slice(-keep);
  const values = Object.fromEntries(Object.entries(added.values).map(([name, list]) =>
    [name, [...before.values[name], ...list].slice(-keep)]));
  return { ...added, at, values };
}

function tilesOf(now, series) {
  const last = (name) => series.values[name].at(-1) ?? 0;
  const disk = now.disk;
  const isFull = disk.size_bytes && disk.free_bytes / disk.size_bytes < 0.1;
  return [
    tile("Stored", rate(last("published")), `${plural(now.records, "record")} in ${plural(now.topics, "topic")}`),
    tile("Delivered", rate(last("delivered")), `${bytes(last("published_bytes"))}/s stored`),
    tile("Clients", count(now.clients), `${plural(now.sessions_away, "session")} away, ${plural(now.subscriptions, "subscription")}`),
    tile("Publish to ack", last("ack_ms") ? ms(last("ack_ms")) : "–", last("ack_ms")
      ? `99 % within ${ms(last("ack_p99_ms"))}; commit ${ms(last("commit_ms"))}` : "nobody waited for an ack"),
    tile("Disk used", bytes(disk.used_bytes), [
      disk.size_bytes ? `${bytes(disk.free_bytes)} of ${bytes(disk.size_bytes)} free` : "",
      disk.expiring_bytes === null ? "" : `retention removes ${disk.expiring_bytes ? `about ${bytes(disk.expiring_bytes)}` : "nothing"} within a day`,
    ].filter(Boolean).join("; "), isFull ? "bad" : ""),
    tile("Running for", duration((now.now - now.started_at) / 1e6), `version ${now.version}, ${now.engine} engine`),
  ];
}
