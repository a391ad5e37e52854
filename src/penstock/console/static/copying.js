// A message as a program that publishes it again. Passwords are not part of it: each program asks for them, or reads $PASSWORD.

import { at } from "./api.js";

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const pairsOf = (record) => (Array.isArray(record.headers) ? record.headers : Object.entries(record.headers ?? {}));
const loginOf = (me) => (me.tenant === "default" ? me.user : `${me.tenant}/${me.user}`);

export function asCurl(topic, record, me) {
  const body = { name: record.name };
  if (record.payload_base64 !== undefined) body.payload_base64 = record.payload_base64;
  else body.payload = record.payload;
  if (pairsOf(record).length) body.headers = pairsOf(record);
  if (record.retain) body.retain = true;
  const login = me.user ? ` -u ${quoted(loginOf(me))}` : "";
  const url = quoted(location.origin + at("topics", topic) + "/records");
  return `curl${login} -X POST ${url} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body))}`;
}

// A JSON value as Python writes it: strings and numbers look the same in both.
function pythonOf(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${pythonOf(one)}`).join(", ")}}`;
}

export function asPython(topic, record, me) {
  const isBinary = record.payload_base64 !== undefined;
  const imports = [isBinary ? "import base64\n" : "", me.user ? "import getpass\n" : ""].join("");
  const login = me.user ? `, user=${pythonOf(loginOf(me))}, password=getpass.getpass()` : "";
  const payload = isBinary ? `base64.b64decode(${pythonOf(record.payload_base64)})` : pythonOf(record.payload);
  const headers = pairsOf(record).map(([key, text]) => `(${pythonOf(key)}, ${pythonOf(text)})`).join(", ");
  const options = [`name=${pythonOf(record.name)}`, headers ? `headers=[${headers}]` : "", record.retain ? "retain=True" : ""];
  return `${imports}${imports ? "\n" : ""}import penstock\n\n` +
    `with penstock.connect(${pythonOf(location.origin)}${login}) as broker:\n` +
    `    broker.publish(${[payload, pythonOf(topic), ...options].filter(Boolean).join(", ")})\n`;
}

export function asMosquitto(topic, record, me) {
  const login = me.user ? ` -u ${quoted(loginOf(me))} -P "$PASSWORD"` : "";
  const isTls = !me.mqtt_port && me.mqtts_port;
  const port = isTls ? me.mqtts_port : me.mqtt_port ?? 1883;
  const where = `-h ${quoted(location.hostname)}${port === 1883 ? "" : ` -p ${port}`}${isTls ? " --capath /etc/ssl/certs" : ""}`;
  const headers = pairsOf(record).map(([key, text]) => ` -D publish user-property ${quoted(key)} ${quoted(text)}`).join("");
  const command = `mosquitto_pub ${where}${login}${headers ? " -V 5" : ""} -t ${quoted(record.name)} -q 1${headers}${record.retain ? " -r" : ""}`;
  if (record.payload_base64 !== undefined) return `echo ${record.payload_base64} | base64 -d | ${command} -s`;
  const text = typeof record.payload === "string" ? record.payload : JSON.stringify(record.payload);
  return `${command} -m ${quoted(text)}`;
}
