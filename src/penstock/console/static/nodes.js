// The nodes that share one catalog: which are there, what they carry, and sending their clients away.

import { at, get, send } from "./api.js";
import { button, confirmed, h, pill, repeat, table } from "./dom.js";
import { count, duration, time } from "./format.js";

export const title = "Nodes";
export const needsAdmin = true;
export const isOffered = (me) => me.nodes > 1;

const REFRESH_MS = 2000;
const KINDS = { live: "good", draining: "warn", dead: "bad" };

// How many there are; a broker that shares its catalog with nobody has none.
export async function countNodes() {
  try {
    return (await get("/v1/nodes")).nodes.length;
  } catch (wrong) {
    if (wrong.status === 403 || wrong.status === 404) return 0;
    throw wrong;
  }
}

export async function show(root, { signal, guard }) {
  const drain = async (one, isDraining) => {
    await send("POST", `${at("nodes", String(one.incarnation))}/drain`, { drain: isDraining });
    await refresh();
  };
  const list = table("Nodes", [
    { title: "Name", text: (one) => (one.is_self ? `${one.name} (this one)` : one.name) },
    { title: "State", text: (one) => one.state, node: (one) => pill(one.state, KINDS[one.state]) },
    { title: "Address", text: (one) => one.address || "–", fixed: true },
    { title: "Clients", text: (one) => count(one.clients), number: true },
    { title: "Sessions", text: (one) => count(one.sessions), number: true },
    { title: "Version", text: (one) => one.version },
    { title: "Since (UTC)", text: (one) => time(one.since).slice(0, 19), fixed: true },
    { title: "Lease", text: (one) => (one.lease > 0 ? `${duration(one.lease)} left` : "expired"), fixed: true },
    { title: "", of: (one) => one.state, node: (one) => (one.state === "live"
      ? button("Drain", () => confirmed("Drain",
        `Send the clients of ${one.name} to other nodes? It takes none until you let it again.`,
        () => drain(one, true)), "plain")
      : one.state === "draining" ? button("Take clients again", () => drain(one, false), "plain") : h("span")) },
  ], (one) => String(one.incarnation), "This broker is the only node.");
  const refresh = () => guard(async () => list.update((await get("/v1/nodes", signal)).nodes));
  root.append(list);
  await repeat(REFRESH_MS, signal, refresh);
}
