"use strict";
// Draws the curves of the page's data, over the axis that is chosen. Text goes into the page as text nodes alone.

const data = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 460, HEIGHT = 236, LEFT = 54, RIGHT = 8, TOP = 8, BOTTOM = 36, FEW = 30;
const at = id => document.getElementById(id);
const shown = data.runs.map(() => true);
let axis = data.axis;

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// 12,500 as 12.5k, 2,000,000 as 2M.
function short(value) {
  const [unit, name] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([unit]) => Math.abs(value) >= unit) ?? [1, ""];
  return `${Number((value / unit).toPrecision(4))}${name}`;
}

// Round numbers from `low` to `high`, about `count` of them.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map(one => one * magnitude).find(one => one >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

// The values to take on each side for a mean over `window` logged figures, where each value is the mean of `each` of them.
function halfOf(window, each) {
  return Math.round(Math.max(0, window / each - 1) / 2);
}

// The mean of each value and its neighbours; near the ends of as many on both sides as there are.
function runningMeans(values, half) {
  return values.map((_, i) => {
    const reach = Math.min(half, i, values.length - 1 - i), near = values.slice(i - reach, i + reach + 1);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}

// The index of the best value, of equal ones the last; -1 where none is marked.
function bestOf(values, mode) {
  return mode && values.length ? values.lastIndexOf(mode === "max" ? Math.max(...values) : Math.min(...values)) : -1;
}

// The curves of a panel that are shown: run, places, values as drawn, values as logged.
function curvesOf(panel) {
  const window = panel.smooth ? Math.max(1, Number(at("window").value) || 1) : 1;
  return panel.curves.map((curve, run) => ({run, x: curve[axis], raw: curve.y, window,
                                            y: runningMeans(curve.y, halfOf(window, curve.each))}))
    .filter(curve => shown[curve.run] && curve.x.length === curve.y.length && curve.x.length);
}

function limits(panel, curves) {
  const all = curves.flatMap(curve => curve.y);
  const low = panel.fromZero ? Math.min(0, ...all) : Math.min(...all), high = Math.max(...all);
  const room = 0.05 * (high - low || Math.abs(high) || 1);
  return {low: panel.fromZero && low === 0 ? 0 : low - room, high: high + room, end: 1.02 * endOfAll() || 1};
}

// The furthest place of any curve that is shown, so that all panels have one axis.
function endOfAll() {
  return Math.max(...data.panels.flatMap(curvesOf).map(curve => curve.x.at(-1)));
}

function draw(panel, figure) {
  const curves = curvesOf(panel);
  figure.replaceChildren(make("figcaption", "", panel.title));
  if (!curves.length) return figure.append(make("p", "", make("small", "", "none of these runs recorded this over this axis")));
  const {low, high, end} = limits(panel, curves);
  const px = x => LEFT + (WIDTH - LEFT - RIGHT) * x / end;
  const py = y => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (y - low) / (high - low);
  const drawing = svg("svg", {class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
                              "aria-label": `${panel.title} over ${data.axes[axis]}`});
  for (const y of ticks(low, high, 5)) drawing.append(
    svg("line", {class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y)}),
    svg("text", {class: "tick value", x: LEFT - 5, y: py(y) + 3.5}, short(y)));
  for (const x of ticks(0, end, 6)) drawing.append(
    svg("line", {class: "grid", x1: px(x), x2: px(x), y1: TOP, y2: HEIGHT - BOTTOM}),
    svg("text", {class: "axis", x: px(x), y: HEIGHT - BOTTOM + 14}, short(x)));
  drawing.append(svg("text", {class: "axis", x: (LEFT + WIDTH) / 2, y: HEIGHT - 5}, data.axes[axis]));
  const path = (x, y) => x.map((one, i) => `${i ? "L" : "M"}${px(one).toFixed(1)} ${py(Math.max(low, Math.min(high, y[i]))).toFixed(1)}`).join("");
  for (const curve of curves) {
    const {color, dash} = data.runs[curve.run];
    if (curve.window > 1) drawing.append(svg("path", {class: `raw s${color}`, d: path(curve.x, curve.raw)}));
    drawing.append(svg("path", {class: `line s${color}`, d: path(curve.x, curve.y), "stroke-dasharray": data.dashes[dash]}));
    if (panel.mode && curve.x.length < FEW) curve.x.forEach((x, i) => drawing.append(
      svg("circle", {class: `dot s${color}`, cx: px(x), cy: py(curve.y[i]), r: 2.2})));
    const best = bestOf(curve.raw, panel.mode);
    if (best >= 0) drawing.append(svg("circle", {class: `best s${color}`, cx: px(curve.x[best]), cy: py(curve.raw[best]), r: 5},
      svg("title", {}, `${data.runs[curve.run].name}: best ${Number(curve.raw[best].toPrecision(5))} at ${short(curve.x[best])} ${data.axes[axis]}`)));
  }
  figure.append(drawing);
  watch(panel, figure, drawing, curves, end, px);
}

// A line under the pointer, and the values of all curves nearest to it.
function watch(panel, figure, drawing, curves, end, px) {
  const cross = svg("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
  const tip = make("div", "tip");
  tip.hidden = true;
  drawing.append(cross);
  figure.append(tip);
  drawing.addEventListener("pointermove", event => {
    const box = drawing.getBoundingClientRect();
    const x = end * ((event.clientX - box.left) * WIDTH / box.width - LEFT) / (WIDTH - LEFT - RIGHT);
    if (x < 0 || x > end) return leave();
    cross.setAttribute("x1", px(x));
    cross.setAttribute("x2", px(x));
    cross.setAttribute("visibility", "visible");
    const values = curves.filter(curve => x >= curve.x[0] - end / 50 && x <= curve.x.at(-1) + end / 50)
      .map(curve => [curve, nearest(curve.x, x)]);
    tip.replaceChildren(make("small", "", `${short(x)} ${data.axes[axis]}`), ...values.map(([curve, i]) => make("div", "",
      make("b", `s${data.runs[curve.run].color}`, data.runs[curve.run].name), String(Number(curve.y[i].toPrecision(4))))));
    tip.hidden = false;
    const right = event.clientX - box.left > box.width / 2;
    tip.style.left = right ? "" : `${event.clientX - box.left + 24}px`;
    tip.style.right = right ? `${box.right - event.clientX + 24}px` : "";
  });
  const leave = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  drawing.addEventListener("pointerleave", leave);
}

function nearest(values, x) {
  let best = 0;
  values.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(values[best] - x)) best = i; });
  return best;
}

const figures = data.panels.map(() => make("figure", ""));
const drawAll = () => data.panels.forEach((panel, i) => draw(panel, figures[i]));

function button(pressed, act, ...children) {
  const node = make("button", "", ...children);
  node.type = "button";
  node.setAttribute("aria-pressed", String(pressed));
  node.addEventListener("click", () => { act(node); drawAll(); });
  return node;
}

at("axes").append(...Object.entries(data.axes).map(([name, label]) => button(name === axis, node => {
  axis = name;
  for (const other of at("axes").children) other.setAttribute("aria-pressed", String(other === node));
}, label)));
at("legend").append(...data.runs.map((run, i) => button(true, node => {
  shown[i] = !shown[i];
  node.setAttribute("aria-pressed", String(shown[i]));
}, svg("svg", {viewBox: "0 0 36 10", "aria-hidden": "true"},
       svg("path", {class: `s${run.color}`, d: "M0 5L36 5", "stroke-dasharray": data.dashes[run.dash]})), run.name)));
at("window").value = data.window;
at("window").addEventListener("input", drawAll);
at("window").addEventListener("change", event => {      // an even number takes one more: as many on both sides
  event.target.value = 2 * Math.floor(Math.max(1, Number(event.target.value) || 1) / 2) + 1;
});
at("controls").addEventListener("submit", event => event.preventDefault());
at("panels").append(...figures);
drawAll();
