// Tenants, users, roles, rules, keys and what the audit topic recorded.

import { at, get, query, send } from "./api.js";
import { button, confirmed, dialog, field, form, h, input, say, table } from "./dom.js";
import { time } from "./format.js";

export const title = "Access";
export const needsAdmin = true;

const AUDIT = "$audit";

export async function show(root, { signal, guard, me }) {
  const remove = (what, path) => button("Remove", () => confirmed(`Remove ${what}?`, async () => {
    await send("DELETE", path);
    await refresh();
  }), "plain");
  const users = table("Users", [
    { title: "User", text: (one) => one.user },
    { title: "Roles", text: (one) => one.roles.join(", ") },
    { title: "Added (UTC)", text: (one) => time(one.created_at).slice(0, 16) },
    { title: "", of: (one) => one.user, node: (one) => [
      button("New key", () => addKey(one.user), "plain"), remove(`user ${one.user} and its keys`, at("users", one.user))] },
  ], (one) => one.user, "There is no user: clients of this machine need no login.");
  const roles = table("Roles", [
    { title: "Role", text: (one) => one.role },
    { title: "Kind", text: (one) => one.kind },
    { title: "Rules", text: (one) => one.rules.join("; ") },
    { title: "", of: (one) => one.role, node: (one) => (one.kind === "added" ? remove(`role ${one.role}`, at("roles", one.role)) : null) },
  ], (one) => one.role);
  const rules = table("Rules", [
    { title: "Rule", text: (one) => one.rule },
    { title: "Applies to", text: (one) => (one.role ? `role ${one.role}` : one.user ? `user ${one.user}` : "everybody") },
    { title: "", of: (one) => one.id, node: (one) => (one.id ? remove(`the rule “${one.rule}”`, at("rules", one.id)) : null) },
  ], (one) => `${one.id} ${one.rule}`, "There are no rules besides those of the built-in roles.");
  const keys = table("Keys", [
    { title: "Key", text: (one) => one.key_id },
    { title: "User", text: (one) => one.user },
    { title: "Roles", text: (one) => one.roles.join(", ") || "those of the user" },
    { title: "Created (UTC)", text: (one) => time(one.created_at).slice(0, 16) },
    { title: "", of: (one) => one.key_id, node: (one) => remove(`key ${one.key_id}`, at("keys", one.key_id)) },
  ], (one) => one.key_id, "There is no key.");
  const tenants = table("Tenants", [
    { title: "Tenant", text: (one) => one.tenant },
    { title: "Contact", text: (one) => [one.first_name, one.last_name, one.email].filter(Boolean).join(" ") || "–" },
    { title: "Added (UTC)", text: (one) => time(one.created_at).slice(0, 16) },
  ], (one) => one.tenant);
  const audit = table("Audit", [
    { title: "Time (UTC)", text: (one) => time(one.timestamp) },
    { title: "What happened", text: (one) => acted(one) },
  ], (one) => one.offset, "Nothing was recorded in the last 24 hours.");

  async function addKey(user) {
    const made = await send("POST", at("users", user, "keys"), {});
    dialog("The new key", h("p", {}, "It is shown once. Whoever has it is ", h("strong", {}, user), "."),
      h("pre", { tabindex: 0 }, made.key));
    await refresh();
  }
  const refresh = () => guard(async () => {
    const known = (await get("/v1/users", signal)).users;
    users.update(known);
    roles.update((await get("/v1/roles", signal)).roles);
    rules.update((await get("/v1/rules", signal)).rules);
    keys.update((await get("/v1/keys", signal)).keys);
    if (me.is_operator) tenants.update((await get("/v1/tenants", signal)).tenants);
    if (!known.length) return; // the first user begins the audit
    const page = await get(`${at("topics", AUDIT)}/records${query({ from: "-24h", limit: 1000 })}`, signal);
    audit.update(page.records.reverse().slice(0, 200));
  });
  const section = (name, ...content) => h("section", { class: "card" }, h("h2", {}, name), ...content);
  root.append(section("Users", users, addUser(refresh)), section("Keys", keys), section("Roles", roles),
    section("Rules", rules, addRule(refresh)));
  if (me.is_operator) root.append(section("Tenants", tenants));
  root.append(section("Audit, last 24 hours", audit));
  await refresh();
}

function addUser(refresh) {
  const user = input({ required: true });
  const password = input({ type: "password", required: true, autocomplete: "new-password" });
  const roles = input({ value: "client" });
  return form("Add a user", [field("User", user), field("Password", password), field("Roles", roles, "Separated by commas")], async (element) => {
    const names = roles.value.split(",").map((one) => one.trim()).filter(Boolean);
    await send("PUT", at("users", user.value), { password: password.value, roles: names });
    say(`User ${user.value} was added.`);
    element.reset();
    await refresh();
  });
}

function addRule(refresh) {
  const rule = input({ required: true, placeholder: "allow publish sensors/%u/#", class: "wide" });
  const role = input({ placeholder: "everybody" });
  return form("Add a rule", [field("Rule", rule, "allow or deny, actions, a filter over names or topic:NAME"),
    field("For the role", role)], async (element) => {
    await send("POST", "/v1/rules", { rules: [rule.value], ...(role.value ? { role: role.value } : {}) });
    say("The rule was added.");
    element.reset();
    await refresh();
  });
}

function acted(record) {
  const fact = typeof record.payload === "string" ? parsed(record.payload) : record.payload;
  if (typeof fact !== "object" || fact === null) return String(fact);
  return Object.values(fact).filter((one) => one !== "" && one !== null).join(" · ");
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
