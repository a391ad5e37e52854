// Which page is shown, who is signed in, and what happens when the broker is away.

import { get, isSignedIn, Problem, signIn, signOut } from "./api.js";
import { button, clear, field, forgetProblem, form, h, input, say } from "./dom.js";
import * as access from "./access.js";
import * as clients from "./clients.js";
import * as messages from "./messages.js";
import * as nodes from "./nodes.js";
import * as overview from "./overview.js";
import * as pipelines from "./pipelines.js";
import * as readers from "./readers.js";
import * as retained from "./retained.js";
import * as topics from "./topics.js";
import * as trace from "./trace.js";

const RETRY_MS = 2000;
const GROUPS = {
  Monitor: { overview, trace },
  Data: { topics, messages, retained },
  Readers: { clients, readers },
  Manage: { pipelines, access, nodes },
};
const PAGES = Object.assign({}, ...Object.values(GROUPS));

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const menu = document.getElementById("menu");
const who = document.getElementById("who");
let me = null;
let leaving = new AbortController();

function route() {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("?")[0].split("/");
  const fields = new URLSearchParams(location.hash.split("?")[1] ?? "");
  return { name: name in PAGES ? name : "overview", parts: rest.map(decodeURIComponent), fields };
}

function showNav(current) {
  clear(nav, Object.entries(GROUPS).map(([group, pages]) => {
    const offered = Object.entries(pages).filter(([, page]) =>
      (!page.needsAdmin || me.is_admin) && (!page.isOffered || page.isOffered(me)));
    return offered.length ? [h("h2", {}, group), h("ul", {}, ...offered.map(([name, page]) =>
      h("li", {}, h("a", { href: `#/${name}`, "aria-current": name === current ? "page" : null }, page.menu ?? page.title))))] : [];
  }).flat());
  const name = me.user || "anonymous";
  clear(who, h("span", {}, me.tenant === "default" ? name : `${me.tenant}/${name}`),
    isSignedIn() ? button("Sign out", () => { signOut(); start(); }, "plain") : null);
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("penstock.theme", root.dataset.theme);
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  const { name, parts, fields } = route();
  const page = PAGES[name];
  showNav(name);
  forgetProblem();
  nav.classList.remove("open");
  menu.setAttribute("aria-expanded", "false");
  document.title = `${[...parts.slice(0, 1), page.title].join(" – ")} – Penstock`;
  const root = h("div", { class: `page ${name}` });
  clear(main, h("h1", {}, page.title), root);
  if (page.needsAdmin && !me.is_admin) {
    root.append(h("p", { class: "none" }, `${me.user || "You"} may not see this page: it needs the role admin.`));
    return;
  }
  try {
    await page.show(root, { parts, fields, signal, me, guard: (work) => guard(signal, work) });
  } catch (wrong) {
    if (wrong.name === "AbortError") return;
    if ([0, 401, 503].includes(wrong.status)) {
      await guard(signal, () => { throw wrong; });
      setTimeout(() => signal.aborted || show(), RETRY_MS);
    } else root.append(h("p", { class: "problem", role: "alert" }, wrong.message));
  }
}

// Runs work of a page that is repeated: it survives a broker that is away for a while.
async function guard(signal, work) {
  try {
    await work();
    offline(false);
  } catch (wrong) {
    if (wrong.name === "AbortError" || signal.aborted) return;
    if (!(wrong instanceof Problem)) throw wrong;
    if (wrong.status === 401) {
      leaving.abort();
      askLogin(isSignedIn() ? wrong.message : "");
    } else if (wrong.status === 0 || wrong.status === 503) offline(true);
    else say(wrong.message, "bad");
  }
}

function offline(isAway) {
  let banner = document.getElementById("offline");
  if (!isAway) banner?.remove();
  else if (!banner) {
    banner = h("p", { id: "offline", role: "alert" }, "The broker does not answer. Trying again …");
    main.before(banner);
  }
}

function askLogin(problem) {
  signOut();
  clear(nav);
  clear(who);
  document.title = "Sign in – Penstock";
  const user = input({ autocomplete: "username" });
  const secret = input({ type: "password", autocomplete: "current-password" });
  const login = form("Sign in", [
    field("User", user, "For another tenant: tenant/user. Empty if you sign in with a key or token."),
    field("Password, key or token", secret),
  ], async () => {
    signIn(user.value, secret.value);
    try {
      await get("/v1/me");
    } catch (wrong) {
      signOut();
      throw wrong;
    }
    start();
  });
  clear(main, h("h1", {}, "Sign in"), problem ? h("p", { class: "problem", role: "alert" }, problem) : null,
    h("div", { class: "card narrow" }, login));
  user.focus();
}

async function start() {
  leaving.abort();
  try {
    me = await get("/v1/me");
    me.nodes = me.is_admin ? await nodes.countNodes() : 0;
  } catch (wrong) {
    if (wrong.status === 401) return askLogin(isSignedIn() ? wrong.message : "");
    offline(wrong.status === 0 || wrong.status === 503);
    if (wrong.status && wrong.status !== 503) say(wrong.message, "bad");
    setTimeout(start, RETRY_MS);
    return;
  }
  offline(false);
  say(""); // what was said to somebody else
  show();
}

document.getElementById("theme").addEventListener("click", switchTheme);
menu.addEventListener("click", () => {
  const isOpen = nav.classList.toggle("open");
  menu.setAttribute("aria-expanded", String(isOpen));
});
addEventListener("hashchange", () => {
  if (!me) return;
  show();
  main.focus({ preventScroll: true });
});
const theme = localStorage.getItem("penstock.theme");
if (theme) document.documentElement.dataset.theme = theme;
start();
