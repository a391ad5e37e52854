// Tenants, users, roles, rules, keys and what the audit topic recorded.

import { at, get, query, send } from "./api.js";
import { button, confirmed, copy, dialog, field, form, h, input, pill, say, section, select, table } from "./dom.js";
import { time } from "./format.js";

export const title = "Access";
export const needsAdmin = true;

const AUDIT = "$audit";
const ACTIONS = ["publish", "subscribe", "receive", "read", "manage"];
const day = (us) => time(us).slice(0, 16);
const split = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);
const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);

export async function show(root, { signal, guard, me }) {
  const remove = (what, path) => button("Remove", () => confirmed("Remove", `Remove ${what}?`, async () => {
    await send("DELETE", path);
    await refresh();
  }), "plain");
  const users = table("Users", [
    { title: "User", text: (one) => one.user },
    { title: "Roles", text: (one) => one.roles.join(", "), node: (one) => h("span", {}, ...one.roles.flatMap((role) => [pill(role), " "])) },
    { title: "Added (UTC)", text: (one) => day(one.created_at), fixed: true },
    { title: "", of: (one) => one, node: (one) => [
      button("Roles", () => changeRoles(one, refresh), "plain"), button("Password", () => changePassword(one, refresh), "plain"),
      button("New key", () => addKey(one, refresh), "plain"), remove(`user ${one.user} and its keys`, at("users", one.user))] },
  ], (one) => one.user, "There is no user: clients of this machine need no login.");
  const roles = table("Roles", [
    { title: "Role", text: (one) => one.role },
    { title: "Kind", text: (one) => one.kind },
    { title: "Rules", text: (one) => one.rules.join("\n"), node: (one) => one.rules.map((rule) => h("div", {}, h("code", {}, rule))) },
    { title: "", of: (one) => one, node: (one) => (one.kind === "added" ? [button("Change", () => changeRole(one, refresh), "plain"),
      remove(`role ${one.role}, also from its users`, at("roles", one.role))] : null) },
  ], (one) => one.role);
  const rules = table("Rules", [
    { title: "Rule", text: (one) => one.rule, node: (one) => h("code", {}, one.rule) },
    { title: "Applies to", text: (one) => (one.role ? `role ${one.role}` : one.user ? `user ${one.user}` : "everybody") },
    { title: "", of: (one) => one.id, node: (one) => (one.id ? remove(`the rule “${one.rule}”`, at("rules", one.id)) : "of the settings file") },
  ], (one) => `${one.id} ${one.rule}`, "There are no rules besides those of the built-in roles.");
  const keys = table("Keys", [
    { title: "Key", text: (one) => one.key_id },
    { title: "User", text: (one) => one.user },
    { title: "Roles", text: (one) => one.roles.join(", ") || "those of the user" },
    { title: "Created (UTC)", text: (one) => day(one.created_at), fixed: true },
    { title: "", of: (one) => one.key_id, node: (one) => remove(`key ${one.key_id}`, at("keys", one.key_id)) },
  ], (one) => one.key_id, "There is no key.");
  const tenants = table("Tenants", [
    { title: "Tenant", text: (one) => one.tenant },
    { title: "Contact", text: (one) => [one.first_name, one.last_name, one.email].filter(Boolean).join(" ") || "–" },
    { title: "Added (UTC)", text: (one) => day(one.created_at), fixed: true },
    { title: "", of: (one) => one.tenant, node: (one) => (one.tenant === "default" ? null : remove(`tenant ${one.tenant}`, at("tenants", one.tenant))) },
  ], (one) => one.tenant);
  const audit = table("Audit", [
    { title: "Time (UTC)", text: (one) => time(one.timestamp), fixed: true },
    { title: "What happened", text: (one) => acted(one) },
  ], (one) => one.offset, "Nothing was recorded in the last 24 hours.");
  const adding = addUser(() => refresh());
  const refresh = () => guard(async () => {
    const known = (await get("/v1/users", signal)).users;
    users.update(known);
    adding.expect(!known.length);
    roles.update((await get("/v1/roles", signal)).roles);
    rules.update((await get("/v1/rules", signal)).rules);
    keys.update((await get("/v1/keys", signal)).keys);
    if (me.is_operator) tenants.update((await get("/v1/tenants", signal)).tenants);
    if (!known.length) return; // the first user begins the audit
    const page = await get(`${at("topics", AUDIT)}/records${query({ from: "-24h", limit: 1000 })}`, signal);
    audit.update(page.records.reverse().slice(0, 200));
  });
  root.append(section("Users", users, adding), section("Keys", keys),
    section("Roles", roles, addRole(refresh)), section("Rules", rules, addRule(refresh)), section("May somebody do this?", question()));
  if (me.is_operator) root.append(section("Tenants", tenants, addTenant(refresh)));
  root.append(section("Audit, last 24 hours", audit));
  await refresh();
}

// A form in a dialog that closes when it succeeded.
function asking(title, text, parts, submit, refresh) {
  const close = dialog(title, form(text, parts, async () => {
    await submit();
    close();
    await refresh();
  }));
}

function addUser(refresh) {
  const user = input({ required: true });
  const password = input({ type: "password", required: true, autocomplete: "new-password" });
  const roles = input();
  const first = h("p", { class: "state", hidden: true }, "From the first user on, everybody has to log in. Give it the role admin: only an admin sees this page.");
  const element = form("Add a user", [field("User", user), field("Password", password), field("Roles", roles, "Separated by commas"), first], async () => {
    await send("PUT", at("users", user.value), { password: password.value, roles: split(roles.value) });
    say(`User ${user.value} was added.`);
    element.reset();
    await refresh();
  });
  element.expect = (isFirst) => {
    first.hidden = !isFirst;
    roles.value ||= isFirst ? "admin" : "client";
  };
  return element;
}

function changeRoles(one, refresh) {
  const roles = input({ value: one.roles.join(", "), class: "wide" });
  asking(`Roles of ${one.user}`, "Save", [field("Roles", roles, "Separated by commas; the user has exactly these")],
    () => send("PUT", at("users", one.user), { roles: split(roles.value) }), refresh);
}

function changePassword(one, refresh) {
  const password = input({ type: "password", required: true, autocomplete: "new-password" });
  asking(`Password of ${one.user}`, "Save", [field("New password", password, "It revokes the keys of the user")],
    () => send("PUT", at("users", one.user), { password: password.value }), refresh);
}

function addKey(one, refresh) {
  const roles = input({ placeholder: "those of the user" });
  asking(`New key of ${one.user}`, "Create", [field("Roles", roles, "Fewer than the user has, separated by commas")], async () => {
    const made = await send("POST", at("users", one.user, "keys"), roles.value ? { roles: split(roles.value) } : {});
    dialog("The new key", h("p", {}, "It is shown once. Whoever has it is ", h("strong", {}, one.user), "."),
      h("pre", { tabindex: 0 }, made.key), button("Copy", () => copy(made.key)));
  }, refresh);
}

const RULES_HINT = "One per line: allow or deny, actions, a filter over names or topic:NAME";

function addRole(refresh) {
  const role = input({ required: true });
  const rules = h("textarea", { rows: 2, spellcheck: "false", required: true, placeholder: "allow publish sensors/%u/#" });
  return form("Add a role", [field("Role", role), field("Rules of the role", rules, RULES_HINT)], async (element) => {
    await send("PUT", at("roles", role.value), { rules: lines(rules.value) });
    say(`Role ${role.value} was added.`);
    element.reset();
    await refresh();
  });
}

function changeRole(one, refresh) {
  const rules = h("textarea", { rows: 6, spellcheck: "false", required: true });
  rules.value = one.rules.join("\n");
  asking(`Role ${one.role}`, "Save", [field("Rules", rules, RULES_HINT)],
    () => send("PUT", at("roles", one.role), { rules: lines(rules.value) }), refresh);
}

function addRule(refresh) {
  const rule = input({ required: true, placeholder: "allow publish sensors/%u/#", class: "wide" });
  const whom = select(["everybody", "role", "user"], "everybody");
  const name = input({ required: true, disabled: true });
  whom.addEventListener("change", () => (name.disabled = whom.value === "everybody"));
  return form("Add a rule", [field("Rule", rule, "allow or deny, actions, a filter over names or topic:NAME"),
    field("Applies to", whom), field("Its name", name, "Of the role or user")], async (element) => {
    await send("POST", "/v1/rules", { rules: [rule.value], ...(whom.value === "everybody" ? {} : { [whom.value]: name.value }) });
    say("The rule was added.");
    element.reset();
    name.disabled = true;
    await refresh();
  });
}

function question() {
  const user = input({ required: true });
  const action = select(ACTIONS, "publish");
  const name = input({ required: true, placeholder: "sensors/42/temp" });
  const answer = h("p", { role: "status" });
  const asked = form("Check", [field("User", user), field("Action", action), field("Name", name)], async () => {
    const said = await get(`/v1/access/check${query({ user: user.value, action: action.value, name: name.value })}`);
    answer.replaceChildren(pill(said.allowed ? "allowed" : "denied", said.allowed ? "good" : "bad"), said.rule ? ` ${said.rule} (${said.source})` : " No rule allows it.");
  });
  return h("div", {}, asked, answer);
}

function addTenant(refresh) {
  const name = input({ required: true });
  const email = input({ type: "email" });
  return form("Add a tenant", [field("Tenant", name), field("Contact", email, "An e-mail address")], async (element) => {
    await send("PUT", at("tenants", name.value), { email: email.value });
    say(`Tenant ${name.value} was added.`);
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
