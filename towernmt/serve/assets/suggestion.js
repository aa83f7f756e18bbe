// The dialog in which a better translation is suggested.

import {Refused, sendSuggestion} from "./server.js";

const element = id => document.getElementById(id);
const dialog = element("suggestion"), text = element("suggestion-text"), error = element("suggestion-error");
let shown = null;       // {q, s, translation, source, target}

/** Show the button if the server accepts suggestions and there is a translation. */
export function offerSuggestion(accepted) {
  element("suggest").hidden = !accepted;
}

/** Open the dialog by the button, and send the suggestion.
 *
 * @param {() => object} current the text, the translation that the user sees, that of the model, and the languages:
 *   {q, s, translation, source, target}
 * @param {() => void} sent called when the server has stored a suggestion
 */
export function watchSuggestion(current, sent) {
  element("suggest").addEventListener("click", () => {
    shown = current();
    element("suggestion-source").textContent = shown.q;
    text.value = shown.s;
    error.hidden = true;
    dialog.showModal();
    text.focus();
  });
  element("close-suggestion").addEventListener("click", () => dialog.close());
  element("suggestion-form").addEventListener("submit", async event => {
    event.preventDefault();
    try {
      await sendSuggestion({...shown, s: text.value});
    } catch (refused) {
      if (!(refused instanceof Refused)) throw refused;
      error.textContent = refused.message;
      error.hidden = false;
      return;
    }
    dialog.close();
    sent();
  });
}
