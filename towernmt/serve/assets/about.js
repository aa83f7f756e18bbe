// The card of the model: its name, licence, intended use, limitations and training data.

const dialog = document.getElementById("card"), facts = document.getElementById("facts"), line = document.getElementById("model");
const NOT_STATED = "not stated";
let shown = null;       // {model, languages, limit}

/** Show the model's name in the footer, and its card on demand.
 *
 * @param {object} model the server's description of the model
 * @param {string} languages the names of its languages
 * @param {number} limit maximum number of characters of a request
 */
export function showModel(model, languages, limit) {
  shown = {model, languages, limit};
  line.textContent = `About the model: ${model.card?.name ?? model.model}`;
}

/** Open the dialog on demand. */
export function watchCard() {
  line.addEventListener("click", () => { if (shown) { draw(shown); dialog.showModal(); } });
  document.getElementById("close-card").addEventListener("click", () => dialog.close());
}

function draw({model, languages, limit}) {
  const card = model.card ?? {};
  facts.replaceChildren(...[
    ["Name", card.name ?? model.model], ["Languages", languages], card.name ? ["Version", model.model] : null,
    card.description ? ["Description", card.description] : null,
    ["Licence", card.licence ?? NOT_STATED], card.authors ? ["Authors", card.authors.join(", ")] : null,
    card.date ? ["Date", card.date] : null, card.intended_use ? ["Intended use", card.intended_use] : null,
    ["Limitations", card.limitations ?? NOT_STATED], ["Training data", trainingData(card.training_data)],
    card.citation ? ["Citation", card.citation] : null, card.homepage ? ["Homepage", card.homepage] : null,
    card.contact ? ["Contact", card.contact] : null,
    ["Length of a text", `at most ${limit.toLocaleString("en")} characters in a line, any number of lines`],
  ].filter(Boolean).flatMap(([name, text]) => [made("dt", name), made("dd", String(text).trim())]));
}

function trainingData(data) {
  const sources = (data?.sources ?? []).map(one => [
    [one.name, one.licence && `(${one.licence})`].filter(Boolean).join(" "),
    one.pairs && `${one.pairs.toLocaleString("en")} sentence pairs`, one.url, one.note].filter(Boolean).join(", "));
  if (data?.pairs && sources.length !== 1) sources.push(`${data.pairs.toLocaleString("en")} sentence pairs in all`);
  return sources.join("\n") || NOT_STATED;
}

function made(kind, text) {
  const element = document.createElement(kind);
  element.textContent = text;
  element.dir = "auto";
  return element;
}
