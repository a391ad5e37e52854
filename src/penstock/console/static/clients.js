// MQTT clients: connected and away, what they read, what waits for them.

import { at, get, query, send } from "./api.js";
import { button, confirmed, dialog, h, input, repeat, table } from "./dom.js";
import { count, duration, time } from "./format.js";

export const title = "Clients";
export const needsAdmin = true;

const REFRESH_MS = 4000;
const PAGE = 200;
const ENDLESS = 0xffffffff;

export async function show(root, { signal, guard }) {
  let after = "";
  const list = table("Clients and sessions", [
    { title: "Client id", text: (one) => one.client_id },
    { title: "User", text: (one) => one.user || "anonymous" },
    { title: "State", text: (one) => (one.is_connected ? "connected" : "away") },
    { title: "Subscriptions", text: (one) => count(one.subscriptions), number: true },
    { title: "In flight", text: (one) => count(one.outstanding), number: true },
    { title: "Waiting", text: (one) => (one.is_exact ? "" : "at least ") + count(one.waiting), number: true },
    { title: "Kept", text: (one) => (one.expiry_s === ENDLESS ? "for ever" : duration(one.expiry_s)) },
    { title: "", of: (one) => one.client_id + one.is_connected, node: (one) => [
      button("Show", () => open(one.client_id), "plain"),
      one.is_connected ? button("Disconnect", () => kick(one, false), "plain") : null,
      button("End session", () => kick(one, true), "plain")] },
  ], (one) => one.client_id, "No MQTT client is connected or has a session.");
  const start = input({ type: "search", "aria-label": "Begin after client id", placeholder: "Begin after client id" });
  start.addEventListener("change", () => { after = start.value; refresh(); });
  const more = button("Next page", () => { after = more.dataset.after; refresh(); });
  const refresh = () => guard(async () => {
    const page = await get(`/v1/sessions${query({ limit: PAGE, after })}`, signal);
    list.update(page.sessions);
    more.hidden = page.after === null;
    more.dataset.after = page.after ?? "";
  });
  const kick = (one, forget) => confirmed(forget
    ? `End the session of ${one.client_id}? Its subscriptions and ${count(one.waiting)} waiting messages are lost.`
    : `Close the connection of ${one.client_id}? The client may connect again.`, async () => {
    await send("POST", `${at("sessions", one.client_id)}/kick`, { forget });
    await refresh();
  });
  root.append(h("div", { class: "row" }, start, more), list);
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
  const facts = known ? { "Logged in with": known.credential_type, "Last address": known.last_address,
    "First seen": time(known.first_seen), "Last seen": time(known.last_seen) } : {};
  dialog(clientId, h("dl", { class: "facts" }, ...Object.entries(facts).flatMap(([key, text]) =>
    [h("dt", {}, key), h("dd", {}, text)])), filters);
}
