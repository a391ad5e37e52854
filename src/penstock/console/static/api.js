// Asks the broker. Everything the console shows comes from /v1, so a script can get it as well.

const STORE = "penstock.authorization"; // of this tab only: it is gone when the tab is closed

export class Problem extends Error {
  constructor(status, detail, error = "") {
    super(detail);
    this.status = status; // 0: the broker could not be reached
    this.error = error; // the kind of error, if the broker named one
  }
}

export function signIn(user, secret) {
  const bytes = new TextEncoder().encode(`${user}:${secret}`);
  const text = btoa(String.fromCharCode(...bytes));
  sessionStorage.setItem(STORE, user ? `Basic ${text}` : `Bearer ${secret}`);
}

export function signOut() {
  sessionStorage.removeItem(STORE);
}

export const isSignedIn = () => sessionStorage.getItem(STORE) !== null;

function request(path, options) {
  const headers = { ...options.headers };
  const authorization = sessionStorage.getItem(STORE);
  if (authorization) headers.Authorization = authorization;
  // Without "omit" a browser would ask for the password itself.
  return fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
}

async function answered(path, options) {
  let response;
  try {
    response = await request(path, options);
  } catch (wrong) {
    if (wrong.name === "AbortError") throw wrong;
    throw new Problem(0, "The broker cannot be reached.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let problem = {};
  try {
    problem = JSON.parse(text);
  } catch {
    // not JSON: shown as it is
  }
  throw new Problem(response.status, problem.detail ?? (text || response.statusText), problem.error);
}

export async function get(path, signal) {
  return (await answered(path, { signal })).json();
}

export async function send(method, path, body, signal) {
  const options = { method, signal, headers: {} };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  const response = await answered(path, options);
  return response.status === 204 ? null : response.json();
}

// The path of something below /v1; every part is encoded.
export const at = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

export function query(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value != null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// Server-sent events, read with fetch because EventSource cannot send credentials.
export async function* events(path, signal, seen) {
  const headers = { Accept: "text/event-stream", ...(seen ? { "Last-Event-ID": seen } : {}) };
  const response = await answered(path, { signal, headers });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const event = { id: "", type: "message", data: "" };
      for (const line of part.split("\n")) {
        const [field, ...rest] = line.split(": ");
        if (field === "id") event.id = rest.join(": ");
        else if (field === "event") event.type = rest.join(": ");
        else if (field === "data") event.data += rest.join(": ");
      }
      yield event;
    }
  }
}
