// The history of translations, which only this browser stores.

const NAME = "towernmt.history", OFF = "towernmt.history.off";
const MOST = 100, LONGEST = 20000;      // maximum number of entries, and of characters of an entry
const dialog = document.getElementById("history"), list = document.getElementById("entries");
const keep = document.getElementById("keep-history");
let current = null;     // time of the entry that grows while the user types

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(found) ? found.filter(one => typeof one?.text === "string") : [];
  } catch { return []; }      // the browser forbids it, or another program wrote the item
}

/** Store as many entries as fit into the storage of the browser. */
function write(entries) {
  for (let count = entries.length; count >= 0; count = Math.floor(count / 2)) {
    try {
      if (count) localStorage.setItem(NAME, JSON.stringify(entries.slice(0, count)));
      else localStorage.removeItem(NAME);
      return;
    } catch { if (!count) return; }     // full, or forbidden
  }
}

const off = () => { try { return localStorage.getItem(OFF) === "1"; } catch { return true; } };

/** Store a translation; it replaces the last entry if the user has continued to type its text. */
export function remember(entry) {
  if (off() || !entry.text.trim() || entry.text.length > LONGEST) return;
  const others = read().filter(one => !(one.text === entry.text && one.source === entry.source && one.target === entry.target));
  const last = others[0];
  if (last?.time === current && (entry.text.startsWith(last.text) || last.text.startsWith(entry.text))) others.shift();
  current = entry.time;
  write([entry, ...others].slice(0, MOST));
}

/** Store the next text as a separate entry. */
export function beginEntry() { current = null; }

function show(restore) {
  const entries = read();
  document.getElementById("no-history").hidden = entries.length > 0;
  document.getElementById("clear-history").disabled = !entries.length;
  list.replaceChildren(...entries.map((entry, number) => {
    const item = document.createElement("li"), open = document.createElement("button"), remove = document.createElement("button");
    open.type = remove.type = "button";
    open.className = "entry";
    for (const text of [entry.text, entry.translation]) {
      const line = document.createElement("span");
      line.dir = "auto";
      line.textContent = String(text ?? "").slice(0, 200);
      open.append(line);
    }
    open.addEventListener("click", () => { dialog.close(); beginEntry(); restore(entry); });
    remove.textContent = "Delete";
    remove.setAttribute("aria-label", `Delete “${entry.text.slice(0, 40)}”`);
    remove.addEventListener("click", () => { write(read().filter((_, index) => index !== number)); show(restore); });
    item.append(open, remove);
    return item;
  }));
}

/** Open the dialog on demand. @param {(entry: object) => void} restore shows an entry again */
export function watchHistory(restore) {
  keep.checked = !off();
  document.getElementById("open-history").addEventListener("click", () => { show(restore); dialog.showModal(); });
  document.getElementById("close-history").addEventListener("click", () => dialog.close());
  document.getElementById("clear-history").addEventListener("click", () => { write([]); show(restore); });
  keep.addEventListener("change", () => {
    try { if (keep.checked) localStorage.removeItem(OFF); else localStorage.setItem(OFF, "1"); } catch { keep.checked = false; }
    if (!keep.checked) { write([]); show(restore); }
  });
}
