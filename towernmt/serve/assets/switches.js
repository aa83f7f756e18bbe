// The appearance of the page: light or dark, words shaded by confidence, and the hint. The browser stores these settings.

const kept = {
  get(name) { try { return localStorage.getItem(`towernmt.${name}`) ?? ""; } catch { return ""; } },
  set(name, value) { try { localStorage.setItem(`towernmt.${name}`, value); } catch { /* it is valid for this visit only */ } },
};
const byId = id => document.getElementById(id);
const system = matchMedia("(prefers-color-scheme: dark)");
let hinted = kept.get("hint") === "1";

/** Apply the stored settings, and change them by the switches. */
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

/** Shade words if the switch is on. @param {boolean} known whether the model returns a confidence */
export function shade(known = !byId("confidence-choice").hidden) {
  const shaded = known && byId("confidence").checked;
  byId("confidence-choice").hidden = !known;
  byId("target").classList.toggle("shaded", shaded);
  byId("legend").hidden = !shaded;
}

/** Show once in this browser how to change a word. */
export function showHint() {
  if (hinted) return;
  hinted = true;
  kept.set("hint", "1");
  byId("hint").hidden = false;
}

/** Remove the hint. */
export function closeHint() { byId("hint").hidden = true; }
