"""Measure what each modifier of `data.modifiers` costs on clean text, and what it gains on its own kind of input.

    python benchmarks/modifiers.py --start runs/de-en --data data/de-en --source test.de --reference test.en \
        --work trials

For each modifier, a trained model is trained for --steps more updates with this modifier alone. The first trial has no
modifier. A table then shows BLEU of the clean test set and of the form that the modifier should help (`towernmt
evaluate --robustness`), without and with the steps for special lines. Finished trials in --work are not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from towernmt import Translator
from towernmt.core.text_table import align_columns
from towernmt.evaluate.metrics import MetricSettings
from towernmt.evaluate.robustness import RobustnessScore, RobustnessText, robustness_scores, robustness_texts
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.search.search_settings import SWITCH, SpecialLineSettings

FORMS = {"upper": "upper case", "title": "title case", "typos": "one typo", "noise": "no final punctuation",
         "spans": "address", "emoji": "emoji", "join": "joined in twos"}
"""The form of the test set that each modifier should help."""
ALL_DISABLED = SpecialLineSettings(**{field.name: SWITCH[1] for field in fields(SpecialLineSettings)})


def main() -> None:
    """Train and score all trials, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, metavar="RUN", help="trained model")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="prepared data with its vocabulary")
    parser.add_argument("--source", required=True, metavar="FILE", help="test set")
    parser.add_argument("--reference", required=True, metavar="FILE", help="its translation")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of the trials")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="updates of each trial (default: 200)")
    parser.add_argument("--probability", type=float, default=0.2, metavar="P", help="of a modification (default: 0.2)")
    parser.add_argument("--sentences", type=int, default=700, metavar="N", help="test lines (default: 700)")
    parser.add_argument("--modifiers", nargs="+", choices=tuple(FORMS), default=tuple(FORMS), metavar="NAME")
    args = parser.parse_args()
    texts = {text.name: text for text in robustness_texts(read_text(args.source)[:args.sentences],
                                                          [read_text(args.reference)[:args.sentences]])}
    control = trained(args, "none")
    print("\n".join(align_columns(table(args, texts, control))))


def trained(args: argparse.Namespace, modifier: str) -> Path:
    """Train a trial unless it is finished, and return its run."""
    run: Path = args.work / modifier
    if not (run / "finished").exists():
        run.mkdir(parents=True, exist_ok=True)
        modifier_settings = [] if modifier == "none" else [f"data.modifiers={modifier}={args.probability}"]
        with (args.work / f"{modifier}.log").open("w") as log:
            subprocess.run([sys.executable, "-m", "towernmt", "train", "--start", str(args.start), "--data",
                            str(args.data), "--logdir", str(run), "--set", f"train.steps={args.steps}",
                            *modifier_settings], check=True, stdout=log, stderr=log)
        (run / "finished").touch()
    return run


def table(args: argparse.Namespace, texts: Mapping[str, RobustnessText], control: Path) -> list[list[str]]:
    """Return the rows of the table, its header first. The control translates each form once."""
    rows = [["modifier", "steps for special lines", "clean, without", "clean, with", "form", "without", "with",
             "copied, without", "copied, with"]]
    runs = {modifier: trained(args, modifier) for modifier in args.modifiers}
    control_forms = [texts["clean"], *(texts[FORMS[modifier]] for modifier in args.modifiers)]
    for name, settings in (("off", ALL_DISABLED), ("on", SpecialLineSettings())):
        clean, *control_scores = scored(control, control_forms, settings)
        for (modifier, run), form in zip(runs.items(), control_scores, strict=True):
            new_clean, new_form = scored(run, [texts["clean"], texts[FORMS[modifier]]], settings)
            rows.append([modifier, name, f"{clean.bleu:.2f}", f"{new_clean.bleu:.2f}", form.name, f"{form.bleu:.2f}",
                         f"{new_form.bleu:.2f}", *("" if score.copied is None else f"{score.copied:.1%}"
                                                   for score in (form, new_form))])
    return rows


def scored(run: Path, forms: list[RobustnessText], settings: SpecialLineSettings) -> list[RobustnessScore]:
    """Translate forms of the test set with the last checkpoint of a run, and return their scores.

    The best checkpoint by validation may be the starting model.
    """
    translator = Translator(str(run), checkpoint="last", special_lines=settings)
    return robustness_scores(forms, [translator.translate(form.source) for form in forms], MetricSettings())


if __name__ == "__main__":
    main()
