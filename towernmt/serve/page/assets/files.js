// Files, dropped or chosen: sent to the server, and fetched as translations.

import {translateFile} from "./server.js";

const input = document.getElementById("file"), list = document.getElementById("files");

/** Make dropping and choosing work.
 *
 * @param {string[]} formats the ends of names that the server takes
 * @param {() => {source: string, target: string}} languages
 */
export function watchFiles(formats, languages) {
  document.getElementById("formats").textContent = `Drop files here, or choose them: ${formats.join(" ")}`;
  input.accept = formats.join(",");
  document.getElementById("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => { send([...input.files], languages()); input.value = ""; });
  document.addEventListener("dragover", event => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", event => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", event => {
    document.body.classList.remove("dropping");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    send([...event.dataTransfer.files], languages());
  });
}

async function send(files, {source, target}) {
  for (const [file, item, state] of files.map(file => [file, ...shown(file)])) {
    state.textContent = "translating …";
    const progress = document.createElement("progress");
    progress.setAttribute("aria-label", `Translating ${file.name}`);
    item.append(progress);
    try {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await translateFile(file, source, target));
      const dot = file.name.lastIndexOf(".");
      link.download = dot > 0 ? `${file.name.slice(0, dot)}.${target}${file.name.slice(dot)}` : `${file.name}.${target}`;
      link.textContent = `Save ${link.download}`;
      state.replaceChildren(link);
    } catch (error) {
      state.textContent = error.message;
      item.classList.add("failed");
    }
    progress.remove();
  }
}

function shown(file) {
  const item = document.createElement("li"), name = document.createElement("span"), state = document.createElement("span");
  name.textContent = file.name;
  state.textContent = "waiting";
  item.append(name, state);
  list.prepend(item);
  return [item, state];
}
