"""Inputs that users report as badly translated, by an English-German model: the share that comes out right.

The lines are of the kinds in the issues of LibreTranslate, Argos Translate, Marian and Mozilla's translations:
capitals, title case, single words, numbers, addresses, placeholders, emoji and odd characters. The words are those of
the model that `examples/train_transformer.py` trains. Each line is translated without and with the treatment of
special lines.

    python benchmarks/special_lines.py --model runs/en-de
"""

from __future__ import annotations

import argparse
import re

from modifiers import ALL_DISABLED

from towernmt import Translator
from towernmt.predict.search.search_settings import SpecialLineSettings

NOT_AVAILABLE = r"[Dd]as Gerät ist nicht verfügbar"
LINES: list[tuple[str, str]] = [
    ("THE DEVICE IS NOT AVAILABLE.", r"DAS GERÄT IST NICHT VERFÜGBAR\."),
    ("PLEASE CHECK THE PASSWORD AND TRY AGAIN.", r"BITTE (ÜBER)?PRÜFE.* PASSWORT .*\."),
    ("WINDOW OPEN", r"FENSTER (OFFEN|GEÖFFNET|ÖFFNEN)"), ("PASSWORD", r"PASSWORT"), ("ERROR", r"FEHLER"),
    ("The Device Is Not Available.", NOT_AVAILABLE + r"\."), ("the device is not available.", NOT_AVAILABLE + r"\."),
    ("Teh devcie is not available.", NOT_AVAILABLE + r"\."), ("The device is nto avialable.", NOT_AVAILABLE + r"\."),
    ("The device is not available", NOT_AVAILABLE), ("  The device is not available.  ", NOT_AVAILABLE + r"\."),
    ("The\u200b device is not avail\u00adable.", NOT_AVAILABLE + r"\."),
    ("Ｔｈｅ device is not available.", NOT_AVAILABLE + r"\."),
    ("window", r"Fenster"), ("Window", r"Fenster"), ("Camera", r"Kamera"), ("Password", r"Passwort"),
    ("Error", r"Fehler"), ("Yes", r"Ja"), ("Open", r"(Ö|Geö)ffnen?t?|Offen"),
    ("12345", r"12345"), ("3.14", r"3[.,]14"), ("50 %", r"50 ?%"), ("12/05/2020 10:30", r"12/05/2020 10:30"),
    ("\u200b", r"\u200b?"), ("❤️", r"❤️"), ("👩‍💻 👍🏽", r"👩‍💻 👍🏽"), ("---", r"---"), ("•", r"•"),
    ("https://example.com/x?y=1", r"https://example\.com/x\?y=1"), ("user@example.com", r"user@example\.com"),
    ("/etc/hosts", r"/etc/hosts"), ("Straße naïve café", r"Straße na[iï]ves? [Cc]afé"),
    ("The device is not available ❤️.", NOT_AVAILABLE + r" ?❤️ ?\."),
    ("👍 The device is not available.", r"👍 " + NOT_AVAILABLE + r"\."),
    ("The device is not available: https://example.com/x?y=1", NOT_AVAILABLE + r": https://example\.com/x\?y=1"),
    ("Error 40512: device not found", r"Fehler (bei )?40512: Gerät nicht gefunden"),
    ("You have 12345 messages.", r"(Du hast|Sie haben) (?!.*kein).*\b12[.]?345\b.*Nachricht.*\."),
    ("The temperature is 21.5 °C.", r"Die Temperatur (ist|beträgt) 21[.,]5 ?°C\."),
    ("The value is %s.", r"Der Wert ist %s\."),
    ("The device {name} is not available.", r"Das Gerät {name} ist .*verfügbar\."),
    ("The file /config/secrets.yaml is not available.", r"Die (Datei )?/config/secrets\.yaml(-Datei)? ist nicht "
     r"verfügbar\.")]
"""A line, and a regular expression of its good translations."""


def main() -> None:
    """Print each line with its translations, and the shares of good ones."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True, help="the run of an English-German model")
    parser.add_argument("--beam", type=int, default=5)
    args = parser.parse_args()
    texts = [line for line, _ in LINES]
    systems = {"off": ALL_DISABLED, "auto": SpecialLineSettings()}
    translations_by_system = {name: Translator(args.model, args.beam, special_lines=settings).translate(texts)
                              for name, settings in systems.items()}
    good = {name: [re.fullmatch(pattern, text) is not None
                   for text, (_, pattern) in zip(translations, LINES, strict=True)]
            for name, translations in translations_by_system.items()}
    for index, line in enumerate(texts):
        print(ascii(line) if not line.isprintable() else line)
        for name in systems:
            print(f"  {name:4} {'+' if good[name][index] else '-'} {translations_by_system[name][index]}")
    for name, marks in good.items():
        print(f"{name}: {sum(marks)} of {len(marks)}")


if __name__ == "__main__":
    main()
