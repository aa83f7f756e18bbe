// The box for the text. Highlights are marks in an element below it, which contains the same text without being visible.

const source = document.getElementById("source");
const backdrop = document.getElementById("backdrop");
let lit = [];

/** Highlight ranges of the text, and no others. @param {{start: number, end: number}[]} ranges in order */
export function lightSource(ranges) {
  if (!ranges.length && !lit.length) return;
  lit = ranges;
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
  backdrop.replaceChildren(...pieces, `${source.value.slice(at)}\n`);   // without it, a final line break would have no height
}

/** Call `changed` after each change, and `looked` with the index in the text of the mouse or the cursor (null for none). */
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

/** Return the index in the text under the mouse; null if the browser does not report it. */
function under(event) {
  const found = document.caretPositionFromPoint?.(event.clientX, event.clientY);
  return found?.offsetNode === source ? found.offset : null;
}

/** Replace the text of the box. */
export function setSource(text) {
  source.value = text;
  source.dispatchEvent(new Event("input"));
}
