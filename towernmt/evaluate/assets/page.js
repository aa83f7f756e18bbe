"use strict";
// Shows the sentences of the page's data: filtered, sorted, and a window of them at a time, so that thousands stay quick.
// Text goes into the page as text nodes alone.

const data = JSON.parse(document.getElementById("data").textContent);
const WINDOW = 40;
const at = id => document.getElementById(id);
const list = at("sentences"), query = at("query"), sort = at("sort"), marks = at("marks"), differing = at("differing");
let rising = true;
let order = [];     // the numbers of the sentences that pass the filter, sorted
let drawn = 0;      // so many of them stand in the page

const nearEnd = new IntersectionObserver(entries => { if (entries.at(-1).isIntersecting) draw(); },
                                         {rootMargin: "600px"});

// What sentences are sorted by: [name, value of sentence i].
const KEYS = [["line", i => i], [`length of the ${data.lengthsOf}`, i => data.sentences[i].length]];
data.names.forEach((name, k) => KEYS.push([`${data.metric} of ${name}`, i => data.sentences[i].scores[k]]));
data.names.slice(1).forEach((name, k) => KEYS.push(
  [`${data.metric}: ${name} − ${data.names[0]}`, i => data.sentences[i].scores[k + 1] - data.sentences[i].scores[0]]));

const MARKS = [["differences from the reference", "reference"]];
if (data.names.length > 1) MARKS.push([`differences from ${data.names[0]}`, "baseline"]);
MARKS.push(["nothing", "nothing"]);

// What the filter looks at, made when it is first needed.
const plain = segments => segments.join("");
const searched = data.sentences.map(() => null);
function searchedText(i) {
  const {source, references, hypotheses} = data.sentences[i];
  return searched[i] ??= [source ?? "", ...references.map(plain), ...hypotheses.map(plain)].join("\n").toLowerCase();
}

function differ(i) {
  const texts = data.sentences[i].hypotheses.map(plain);
  return texts.some(text => text !== texts[0]);
}

// Whether a sentence is asked for: by a part of a text, or by `#` and its line.
function isWanted(i, wanted) {
  if (/^#\d+$/.test(wanted)) return i + 1 === Number(wanted.slice(1));
  return wanted === "" || searchedText(i).includes(wanted);
}

function arrange() {
  const wanted = query.value.toLowerCase();
  const value = KEYS[sort.value][1];
  order = data.sentences.map((_, i) => i).filter(i => isWanted(i, wanted) && (!differing.checked || differ(i)));
  const values = data.sentences.map((_, i) => value(i));
  order.sort((a, b) => (rising ? values[a] - values[b] : values[b] - values[a]) || a - b);
  at("count").value = `${order.length.toLocaleString("en")} of ${data.sentences.length.toLocaleString("en")}`;
  list.replaceChildren();
  drawn = 0;
  draw();
}

function draw() {
  const next = order.slice(drawn, drawn + WINDOW);
  list.append(...next.map(article));
  drawn += next.length;
  at("more").hidden = drawn >= order.length;
  nearEnd.unobserve(at("more"));
  nearEnd.observe(at("more"));      // tells once more whether it is in sight
}

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

function article(i) {
  const sentence = data.sentences[i];
  const node = make("article", "", make("h3", "", `line ${i + 1} · ${sentence.length} words`));
  node.tabIndex = 0;
  node.dataset.sentence = i;
  if (sentence.source !== null) node.append(row("source", "", [sentence.source], "source"));
  sentence.references.forEach(segments => node.append(row("reference", "", marked("reference", segments), "reference")));
  data.names.forEach((name, k) => {
    const line = row(name, sentence.scores[k].toFixed(1), hypothesis(sentence, k), "hypothesis");
    node.append(line);
    if (sentence.attention[k]) line.append(attentionButton(line, sentence.attention[k]));
  });
  return node;
}

function row(name, score, segments, kind) {
  const label = make("span", "name", name);
  label.title = name;
  const text = make("span", "text", ...segments.map((part, i) => i % 2 ? make("mark", part ? "" : "gap", part) : part));
  text.dir = "auto";
  return make("div", kind, label, make("span", "score", score), text);
}

function hypothesis(sentence, k) {
  if (marks.value === "baseline") return k ? sentence.changes[k - 1] : [plain(sentence.hypotheses[0])];
  return marked("reference", sentence.hypotheses[k]);
}

function marked(kind, segments) {
  return marks.value === kind ? segments : [plain(segments)];
}

function attentionButton(line, attention) {
  const button = make("button", "attend", "attention");
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (open) line.nextElementSibling.remove();
    else line.after(heatMap(attention));
  });
  return button;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A row for each target token, a column for each source token; the darker a cell, the more the row looks there.
function heatMap({source, target, weights}) {
  const cell = 18, widest = texts => 7.2 * Math.max(...texts.map(text => [...text].length)) + 10;
  const left = widest(target), top = widest(source);
  const width = left + cell * source.length + 0.71 * top, height = top + cell * target.length + 2;
  const drawing = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
                              "aria-label": "attention: target tokens by source tokens"});
  source.forEach((text, x) => {
    const middle = left + (x + 0.6) * cell;
    drawing.append(svg("text", {x: middle, y: top - 5, transform: `rotate(-60 ${middle} ${top - 5})`}, text));
  });
  target.forEach((text, y) => {
    drawing.append(svg("text", {x: left - 5, y: top + (y + 0.72) * cell, "text-anchor": "end"}, text));
    source.forEach((other, x) => {
      const weight = parseInt(weights[y * source.length + x], 36) / 35;
      drawing.append(svg("rect", {x: left + x * cell, y: top + y * cell, width: cell - 1, height: cell - 1,
                                  "fill-opacity": weight.toFixed(3)},
                         svg("title", {}, `${text} ← ${other}: ${weight.toFixed(2)}`)));
    });
  });
  drawing.append(svg("rect", {class: "frame", x: left - 0.5, y: top - 0.5, width: cell * source.length,
                              height: cell * target.length}));
  return make("section", "heat", drawing);
}

function choose(select, options) {
  options.forEach(([name, value]) => select.append(new Option(name, value)));
}

function step(by) {
  const nodes = [...list.children], here = nodes.indexOf(document.activeElement.closest("article"));
  if (here + by >= nodes.length && drawn < order.length) return draw(), step(by);
  const next = list.children[Math.max(0, Math.min(nodes.length - 1, here + by))];
  next?.focus();
  next?.scrollIntoView({block: "nearest"});
}

function turn() {
  rising = !rising;
  at("reverse").textContent = rising ? "↑ rising" : "↓ falling";
  at("reverse").setAttribute("aria-pressed", String(!rising));
  arrange();
}

function nextOf(select) {
  select.value = select.options[(select.selectedIndex + 1) % select.options.length].value;
  arrange();
}

const ON_KEY = {
  "/": () => query.focus(), j: () => step(1), k: () => step(-1), r: turn, s: () => nextOf(sort), m: () => nextOf(marks),
  a: () => document.activeElement.closest("article")?.querySelectorAll(".attend").forEach(button => button.click()),
};

document.addEventListener("keydown", event => {
  if (event.key === "Escape") return document.activeElement.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) return;
  if (ON_KEY[event.key]) { event.preventDefault(); ON_KEY[event.key](); }
});

choose(sort, KEYS.map(([name], i) => [name, i]));
choose(marks, MARKS);
at("differing-label").hidden = data.names.length < 2;
at("attention-key").hidden = !data.sentences.some(sentence => sentence.attention.some(one => one));
at("controls").addEventListener("submit", event => event.preventDefault());
for (const control of [query, sort, marks, differing]) control.addEventListener("input", arrange);
at("reverse").addEventListener("click", turn);
at("more").addEventListener("click", draw);
arrange();
