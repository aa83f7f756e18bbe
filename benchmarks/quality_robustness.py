"""Compare how towernmt and another toolkit translate a test set in the forms of `towernmt evaluate --robustness`.

    python benchmarks/quality_robustness.py --text corpora/de-en --languages de en --work quality --minutes 30 \
        --only fairseq --fairseq-python venvs/fairseq/bin/python --sentences 700

It reads the trainings of `quality.py` with the same options, and trains what is missing. Each program translates all
forms with its best checkpoint at the last of --minutes and with its default options. The translations are in
WORK/PROGRAM-VARIANT/robustness.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import quality
from quality_peers import Peer
from quality_text import Texts, pieced, unpieced

from towernmt.core.errors import DataError
from towernmt.core.files import write_text
from towernmt.core.text_table import align_columns
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.evaluate.metrics import MetricSettings
from towernmt.evaluate.robustness import RobustnessText, robustness_rows, robustness_scores, robustness_texts


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, translate all forms, and print a table for each program."""
    parser = quality.parser(__doc__)
    parser.add_argument("--sentences", type=int, default=700, metavar="N", help="use the first N of the test set")
    quality.run(measure, parser.parse_args(arguments))


def measure(options: argparse.Namespace) -> None:
    """Print the scores of each requested program."""
    plan = quality.plan_of(options)
    texts = Texts(options.text, options.languages)
    vocabulary = quality.prepare(options, plan, texts)
    source, reference = (texts.lines("test", side)[:options.sentences] for side in ("src", "tgt"))
    source_language, target_language = options.languages
    forms = robustness_texts(source, [reference], languages=(source_language, target_language))
    for peer in quality.peers_of(options, plan):
        with quality.training_lock(peer):
            peer.train()
            checkpoint, _ = quality.best_candidate(peer, peer.marks()[-1], texts, vocabulary)
            translations = translations_of(peer, checkpoint, forms, vocabulary)
        scores = robustness_scores(forms, translations, MetricSettings(target_language=target_language))
        print("\n".join([f"{peer.name}, {peer.variant}, {checkpoint}", *align_columns(robustness_rows(scores))]),
              flush=True)


def translations_of(peer: Peer, checkpoint: str, forms: Sequence[RobustnessText], vocabulary: Vocabulary
                    ) -> list[list[str]]:
    """Translate all forms as one text, so that the program starts once.

    Args:
        peer: the program.
        checkpoint: one of its checkpoints.
        forms: forms of the test set.
        vocabulary: makes and joins subwords.

    Returns:
        The translations of each form.

    Raises:
        DataError: the number of translations is wrong.
    """
    folder = peer.folder / "robustness"
    lines = [line for form in forms for line in form.source]
    text = folder / "forms.src"
    write_text(text, "".join(f"{line}\n" for line in (pieced(lines, vocabulary) if peer.reads_pieces else lines)))
    translations = peer.translate(checkpoint, "robustness", text)
    if peer.reads_pieces:
        translations = unpieced(translations, vocabulary)
    if len(translations) != len(lines):
        raise DataError(f"{peer.name} wrote {len(translations)} translations of the {len(lines)} lines of {text}: read "
                        f"the log in {peer.folder}.")
    write_text(folder / "forms.tgt", "".join(f"{line}\n" for line in translations))
    remaining_lines = iter(translations)
    return [[next(remaining_lines) for _ in form.source] for form in forms]


if __name__ == "__main__":
    main()
