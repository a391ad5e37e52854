// Elements, tables, forms and messages. Text is always set as text, never as HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((one) => one !== null && one !== undefined));
  return element;
}

export const clear = (element, ...children) => {
  element.replaceChildren(...children.flat().filter(Boolean));
  return element;
};

export const button = (text, onclick, kind = "") =>
  h("button", { type: "button", class: kind, onclick }, text);

export const link = (href, text) => h("a", { href }, text);

// A state in a few letters; `kind` is good, bad, warn or info.
export const pill = (text, kind = "") => h("span", { class: `pill ${kind}` }, text);

export const section = (name, ...content) => h("section", { class: "card" }, h("h2", {}, name), ...content);

export const tile = (name, value, says = "", kind = "") =>
  h("div", { class: `tile ${kind}` }, h("span", { class: "name" }, name), h("strong", {}, value), h("small", {}, says));

// Names and their values, below each other.
export const facts = (values) => h("dl", { class: "facts" }, ...Object.entries(values).flatMap(([key, value]) =>
  [h("dt", {}, key), h("dd", {}, value instanceof Node ? value : String(value))]));

// A table whose rows are kept while their key stays: a button in it does not lose its focus.
// A column is {title, text | node, of, number, fixed}; a node is made anew when its text, or what `of` gives, changes.
export function table(caption, columns, keyOf, empty = "There is nothing here yet.") {
  const body = h("tbody");
  const none = h("p", { class: "none" }, empty);
  const head = h("tr", {}, ...columns.map((one) =>
    h("th", { scope: "col", class: one.number ? "number" : "" }, one.title)));
  const grid = h("table", {}, h("caption", { class: "hidden" }, caption), h("thead", {}, head), body);
  const element = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, grid, none);
  let kept = new Map();
  element.update = (rows) => {
    const next = new Map();
    for (const row of rows) {
      const key = String(keyOf(row));
      const shown = kept.get(key) ?? { tr: h("tr"), texts: [] };
      columns.forEach((column, index) => fill(shown, index, column, row));
      next.set(key, shown);
    }
    body.replaceChildren(...[...next.values()].map((one) => one.tr));
    kept = next;
    none.hidden = next.size > 0;
    grid.hidden = next.size === 0;
    return element;
  };
  return element.update([]);
}

function fill(shown, index, column, row) {
  const text = column.text ? String(column.text(row) ?? "") : JSON.stringify(column.of?.(row) ?? row);
  if (shown.texts[index] === text) return;
  shown.texts[index] = text;
  const content = column.node ? [column.node(row)].flat() : [text];
  const cell = h("td", { class: column.number ? "number" : column.fixed ? "fixed" : "", "data-title": column.title },
    ...content.filter(Boolean));
  const before = shown.tr.children[index];
  if (before) before.replaceWith(cell);
  else shown.tr.append(cell);
}

let fields = 0;

// A labelled input; `hint` says what may be entered. `fail` shows what is wrong with it, below it.
export function field(label, input, hint = "") {
  input.id ||= `field-${(fields += 1)}`;
  const says = hint ? h("small", { id: `${input.id}-hint` }, hint) : null;
  const problem = h("p", { class: "problem", role: "alert", id: `${input.id}-problem`, hidden: true });
  if (says) input.setAttribute("aria-describedby", says.id);
  const element = h("div", { class: "field" }, h("label", { for: input.id }, label), input, problem, says);
  element.fail = (text) => {
    problem.textContent = text;
    problem.hidden = !text;
    if (text) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    input.setAttribute("aria-describedby", text ? problem.id : says?.id ?? problem.id);
  };
  return element;
}

export const input = (attributes = {}) => h("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });

export function select(options, value) {
  const element = h("select", {}, ...options.map((one) => h("option", { value: one }, one)));
  if (value !== undefined) element.value = value;
  return element;
}

// A form that shows what went wrong under its button and keeps what was entered.
export function form(text, parts, submit) {
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const element = h("form", { onsubmit: async (event) => {
    event.preventDefault();
    problem.hidden = true;
    try {
      await submit(element);
    } catch (wrong) {
      if (wrong.name === "AbortError") return;
      problem.textContent = wrong.message;
      problem.hidden = false;
    }
  } }, ...parts, h("button", { type: "submit" }, text), problem);
  return element;
}

let timer = 0;

const status = document.getElementById("status");

export function say(text, kind = "") {
  status.textContent = text;
  status.className = kind;
  clearTimeout(timer);
  timer = setTimeout(() => (status.textContent = ""), 6000);
}

// An error of one page says nothing about the next one.
export function forgetProblem() {
  if (status.className === "bad") say("");
}

// Asks before something cannot be undone, with a button that says what it does; what went wrong is said.
export function confirmed(verb, question, action) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-label": question }, h("p", {}, question), h("div", { class: "row" },
      button("Cancel", () => dialog.close()),
      button(verb, async () => {
        try {
          await action();
        } catch (wrong) {
          say(wrong.message, "bad");
        }
        dialog.close();
      }, "danger")));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// A dialog around any content; returns how to close it.
export function dialog(title, ...content) {
  const element = h("dialog", { "aria-label": title },
    h("div", { class: "row" }, h("h2", {}, title), button("Close", () => element.close(), "plain")), ...content);
  element.addEventListener("close", () => element.remove());
  document.body.append(element);
  element.showModal();
  return () => element.close();
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    dialog("Copy this", h("pre", { tabindex: 0 }, text));
  }
}

// Calls `work` now and again after each pause, until the page is left.
export async function repeat(pause_ms, signal, work) {
  while (!signal.aborted) {
    await work();
    await new Promise((resolve) => {
      const waiting = setTimeout(resolve, pause_ms);
      signal.addEventListener("abort", () => { clearTimeout(waiting); resolve(); }, { once: true });
    });
  }
}
