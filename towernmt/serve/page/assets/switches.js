// How the page looks: light or dark, and words shaded by confidence. The browser keeps it.

const kept = {
  get(name) { try { return localStorage.getItem(`towernmt.${name}`) ?? ""; } catch { return ""; } },
  set(name, value) { try { localStorage.setItem(`towernmt.${name}`, value); } catch { /* for this visit alone */ } },
};

/** Make the switches work. */
export function watchSwitches() {
  const theme = document.getElementById("theme"), confidence = document.getElementById("confidence");
  theme.value = kept.get("theme");
  const look = () => { document.documentElement.dataset.theme = theme.value; };
  theme.addEventListener("change", () => { kept.set("theme", theme.value); look(); });
  look();
  confidence.checked = kept.get("confidence") === "1";
  const shade = () => {
    document.getElementById("target").classList.toggle("shaded", confidence.checked);
    document.getElementById("legend").hidden = !confidence.checked;
  };
  confidence.addEventListener("change", () => { kept.set("confidence", confidence.checked ? "1" : ""); shade(); });
  shade();
}
