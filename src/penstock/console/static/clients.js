// MQTT clients: connected and away, what they read, what waits for them.

import { at, get, query, send } from "./api.js";
import { button, confirmed, dialog, facts, h, input, link, pill, repeat, section, table } from "./dom.js";
import { count, duration, plural, time } from "./format.js";

export const title = "Clients";
export const needsAdmin = true;

const REFRESH_MS = 4000;
const PAGE = 200;
const ENDLESS = 0xffffffff;

// What all client ids that begin with a text come after.
const before = (text) => (text ? text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) - 1) + "\uffff" : "");
const stateOf = (one) => (one.is_connected ? "connected" : "away");

export async function show(root, { signal, guard, me }) {
  let after = "";
  const list = table("Clients and sessions", [
    { title: "Client id", text: (one) => one.client_id },
    { title: "User", text: (one) => one.user || "anonymous" },
    { title: "State", text: (one) => stateOf(one), node: (one) => pill(stateOf(one), one.is_connected ? "good" : "") },
    { title: "Subscriptions", text: (one) => count(one.subscriptions), number: true },
    { title: "In flight", text: (one) => count(one.outstanding), number: true },
    { title: "Waiting", text: (one) => (one.is_exact ? "" : "at least ") + count(one.waiting), number: true },
    { title: "Kept", text: (one) => (one.expiry_s === ENDLESS ? "for ever" : one.expiry_s ? duration(one.expiry_s) : "while connected") },
    { title: "", of: (one) => one.client_id + one.is_connected, node: (one) => [
      button("Show", () => guard(() => open(one.client_id)), "plain"),
      one.is_connected ? button("Disconnect", () => kick(one, false), "plain") : null,
      button("End session", () => kick(one, true), "plain")] },
  ], (one) => one.client_id, `No MQTT client is connected or has a session.${me.mqtt_port ? ` To connect one: mosquitto_sub -h ${location.hostname} -p ${me.mqtt_port} -t '#' -v` : ""}`);
  const bridges = table("Bridges", [
    { title: "Bridge", text: (one) => one.name },
    { title: "To", text: (one) => one.address },
    { title: "State", text: (one) => one.state, node: (one) => pill(one.state, one.error ? "bad" : "good") },
    { title: "Sent", text: (one) => count(one.forwarded), number: true },
    { title: "Received", text: (one) => count(one.received), number: true },
    { title: "Refused", text: (one) => count(one.refused), number: true },
    { title: "Behind by", text: (one) => count(one.lag), number: true },
    { title: "Error", text: (one) => one.error },
  ], (one) => one.name);
  const bridged = section("Bridges to other brokers", bridges);
  const start = input({ type: "search", "aria-label": "Go to client id", placeholder: "Go to client id" });
  start.addEventListener("input", () => { after = before(start.value); refresh(); });
  const more = button("Next page", () => { after = more.dataset.after; refresh(); });
  const refresh = () => guard(async () => {
    const page = await get(`/v1/sessions${query({ limit: PAGE, after })}`, signal);
    list.update(page.sessions);
    const found = (await get("/v1/bridges", signal)).bridges;
    bridges.update(found);
    bridged.hidden = !found.length;
    more.hidden = page.after === null;
    more.dataset.after = page.after ?? "";
  });
  const kick = (one, forget) => confirmed(forget ? "End session" : "Disconnect", forget
    ? `End the session of ${one.client_id}? Its subscriptions and ${plural(one.waiting, "waiting message")} are lost.`
    : `Close the connection of ${one.client_id}? The client may connect again.`, async () => {
    await send("POST", `${at("sessions", one.client_id)}/kick`, { forget });
    await refresh();
  });
  root.append(h("div", { class: "row" }, start, more), list, bridged);
  await repeat(REFRESH_MS, signal, refresh);
}

async function open(clientId) {
  const session = await get(at("sessions", clientId));
  let known = null;
  try {
    known = await get(at("clients", clientId));
  } catch {
    // it has not been saved yet
  }
  const filters = table("Subscriptions", [
    { title: "Filter", text: (one) => one.filter },
    { title: "QoS", text: (one) => one.qos, number: true },
  ], (one) => one.filter, "It has no subscription.");
  filters.update(session.filters);
  const shown = { State: pill(stateOf(session), session.is_connected ? "good" : ""), User: session.user || "anonymous",
    "Sent and not acknowledged": count(session.outstanding), Waiting: (session.is_exact ? "" : "at least ") + count(session.waiting),
    ...(known ? { "Logged in with": known.credential_type || "–", "Last address": known.last_address,
      "First seen (UTC)": time(known.first_seen), "Last seen (UTC)": time(known.last_seen) } : {}) };
  const trace = link(`#/trace/${encodeURIComponent(clientId)}`, "Trace its messages");
  const close = dialog(clientId, facts(shown), h("h3", {}, "Subscriptions"), filters, h("p", {}, trace));
  trace.addEventListener("click", close);
}
