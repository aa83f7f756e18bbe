// The box in which text is typed, and what is lit in it: the same text lies behind it, unseen, with marks.

const source = document.getElementById("source");
const backdrop = document.getElementById("backdrop");
let lit = [];

/** Light parts of the text, and no others. @param {{start: number, end: number}[]} parts in their order */
export function lightSource(parts) {
  if (!parts.length && !lit.length) return;
  lit = parts;
  draw();
}

function draw() {
  const pieces = [];
  let at = 0;
  for (const {start, end} of lit) {
    const mark = document.createElement("mark");
    mark.textContent = source.value.slice(start, end);
    pieces.push(source.value.slice(at, start), mark);
    at = end;
  }
  backdrop.replaceChildren(...pieces, `${source.value.slice(at)}\n`);   // a line break at the end would have no height
}

/** Tell of each change, and of the place in the text at which one looks: of the mouse, or of the cursor. */
export function watchSource(changed, looked) {
  source.addEventListener("input", () => { lit = []; draw(); changed(); });
  source.addEventListener("mousemove", event => looked(under(event)));
  source.addEventListener("mouseleave", () => looked(null));
  document.addEventListener("selectionchange", () => {
    if (document.activeElement === source) looked(source.selectionStart);
  });
  source.addEventListener("blur", () => looked(null));
  draw();
}

/** The place in the text under the mouse; null where the browser does not tell it. */
function under(event) {
  const found = document.caretPositionFromPoint?.(event.clientX, event.clientY);
  return found?.offsetNode === source ? found.offset : null;
}

/** Another text in the box. */
export function setSource(text) {
  source.value = text;
  source.dispatchEvent(new Event("input"));
}
