// Line charts of the last hour, drawn as SVG.

import { h, clear } from "./dom.js";
import { bytes, clock } from "./format.js";

const WIDTH = matchMedia("(max-width: 760px)").matches ? 340 : 600; // texts keep their size on a phone
const HEIGHT = 160;
const LEFT = 56;
const TOP = 14;
const BOTTOM = 20;
const MINUTE_US = 60_000_000;
const SPANS = [6, 15, 30, 60]; // minutes: the shortest one that holds all samples is shown

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The next of 1, 2, 3, 4, 6, 8, 10, 20, … at or above a value.
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((one) => one * power).find((one) => one >= value);
}

// `lines` are {key, name}; `format` shows a value.
export function chart(title, lines, format) {
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" });
  const legend = h("p", { class: "legend" });
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title), plot, legend);
  let times = [];
  let values = {};
  let span = MINUTE_US;
  const x = (at, end) => LEFT + ((at - end + span) / span) * (WIDTH - LEFT);

  function showLegend(index) {
    clear(legend, lines.map((line, number) => h("span", { class: `line-${number}` },
      `${line.name} ${index >= 0 ? format(values[line.key][index]) : "–"}`)),
      h("span", { class: "at" }, index >= 0 && index < times.length - 1 ? `at ${clock(times[index])}` : ""));
  }

  plot.addEventListener("pointermove", (event) => {
    if (!times.length) return;
    const box = plot.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * WIDTH;
    const end = times.at(-1);
    const nearest = times.reduce((best, at, index) =>
      Math.abs(x(at, end) - share) < Math.abs(x(times[best], end) - share) ? index : best, 0);
    showLegend(nearest);
  });
  plot.addEventListener("pointerleave", () => showLegend(times.length - 1));

  element.update = (series) => {
    times = series.at;
    values = series.values;
    const end = times.at(-1) ?? 0;
    const minutes = SPANS.find((one) => (end - (times[0] ?? end)) / MINUTE_US <= one) ?? SPANS.at(-1);
    span = minutes * MINUTE_US;
    const highest = Math.max(0, ...lines.map((line) => Math.max(0, ...values[line.key])));
    const unit = format === bytes && highest ? 1024 ** Math.floor(Math.log2(highest) / 10) : 1; // 60 MiB, not 57.2 MiB
    const top = roundUp(highest / unit) * unit;
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [0, 0.5, 1].flatMap((share) => [
      svg("line", { x1: LEFT, x2: WIDTH, y1: y(top * share), y2: y(top * share), class: "grid" }),
      label(format(top * share), LEFT - 6, y(top * share) + 4, "end"),
    ]);
    for (const [share, anchor] of [[1, "start"], [2 / 3, "middle"], [1 / 3, "middle"], [0, "end"]]) {
      const ago = minutes * share;
      parts.push(label(ago ? `−${ago} min` : "now", x(end - ago * MINUTE_US, end), HEIGHT - 3, anchor));
    }
    lines.forEach((line, number) => {
      const points = times.map((at, index) => `${x(at, end).toFixed(1)},${y(values[line.key][index]).toFixed(1)}`);
      if (number === 0 && times.length > 1) {
        const edges = [`${x(times[0], end).toFixed(1)},${y(0)}`, ...points, `${x(end, end).toFixed(1)},${y(0)}`];
        parts.push(svg("polygon", { points: edges.join(" "), class: "area" }));
      }
      parts.push(svg("polyline", { points: points.join(" "), class: `line line-${number}` }));
    });
    plot.replaceChildren(...parts);
    showLegend(times.length - 1);
    plot.setAttribute("aria-label", `${title}, the last ${minutes} minutes. Now: ${legend.textContent}`);
  };
  return element;
}

function label(text, x, y, anchor) {
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}
