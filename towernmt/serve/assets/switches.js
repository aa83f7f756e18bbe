// The look of the page: light or dark, words shaded by confidence, and the hint. The browser keeps these choices.

const kept = {
  get(name) { try { return localStorage.getItem(`towernmt.${name}`) ?? ""; } catch { return ""; } },
  set(name, value) { try { localStorage.setItem(`towernmt.${name}`, value); } catch { /* for this visit alone */ } },
};
const byId = id => document.getElementById(id);
const system = matchMedia("(prefers-color-scheme: dark)");
let hinted = kept.get("hint") === "1";

/** Make the switches work. */
export function watchSwitches() {
  let chosen = kept.get("theme");
  const look = () => {
    const dark = chosen ? chosen === "dark" : system.matches, label = dark ? "Light mode" : "Dark mode";
    document.documentElement.dataset.theme = chosen;
    document.documentElement.dataset.look = dark ? "dark" : "light";
    byId("theme").title = label;
    byId("theme").setAttribute("aria-label", label);
  };
  byId("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.look === "dark" ? "light" : "dark";
    kept.set("theme", chosen);
    look();
  });
  system.addEventListener("change", look);
  look();
  const confidence = byId("confidence");
  confidence.checked = kept.get("confidence") === "1";
  confidence.addEventListener("change", () => { kept.set("confidence", confidence.checked ? "1" : ""); shade(); });
  byId("close-hint").addEventListener("click", closeHint);
}

/** Shade words as the switch says, unless the model gives no confidence. @param {boolean} known whether it gives any */
export function shade(known = !byId("confidence-choice").hidden) {
  const shaded = known && byId("confidence").checked;
  byId("confidence-choice").hidden = !known;
  byId("target").classList.toggle("shaded", shaded);
  byId("legend").hidden = !shaded;
}

/** Show how words are changed, once in this browser. */
export function showHint() {
  if (hinted) return;
  hinted = true;
  kept.set("hint", "1");
  byId("hint").hidden = false;
}

/** Remove the hint. */
export function closeHint() { byId("hint").hidden = true; }
