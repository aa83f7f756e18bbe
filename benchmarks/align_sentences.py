"""Measure the sentence alignment of `towernmt pairs` by precision and recall, next to that of Gale & Church in NLTK.

    python benchmarks/align_sentences.py --source train.de --target train.en --pairs 100 1000 10000 --chapter 300

The gold alignment is made from known sentence pairs: some pairs lose a side, and some neighbours are joined on one
side, with a fixed seed. With --chapter, that many pairs in a row lose their target. With --excerpt, the source has only
that many sentences, from two thirds of the text on. Links are pairs of a source and a
target sentence. A bead (one or two sentences on a side) is correct only if it is exactly that of the gold alignment.
Seconds are those of the processor. With --model, the texts are also aligned with the translations by a trained model,
which must not have seen them. Without NLTK (`pip install nltk`) its row is left out; it compares all sentences
with all, so it has at most --nltk pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from towernmt.documents.alignment.document_aligner import SentenceTexts, TranslateTexts, align_sentences
from towernmt.documents.alignment.sentence_paths import Bead

Pairs = Sequence[tuple[str, str]]
T = TypeVar("T")


class Gold(NamedTuple):
    """Texts with their correct beads, without gaps."""

    texts: SentenceTexts
    beads: set[Bead]


def changed_pairs(pairs: Pairs, seed: int, joined: float, dropped: float, chapter: int) -> Gold:
    """Return pairs with joined and dropped sentences.

    Args:
        pairs: known pairs.
        seed: seed of the random choices.
        joined: probability that a side of a pair is joined with that of the next one.
        dropped: probability that a pair loses a side.
        chapter: number of pairs in the middle that lose their target.
    """
    generator = random.Random(seed)
    sides: tuple[list[str], list[str]] = ([], [])
    beads: set[Bead] = set()
    index, missing = 0, range(len(pairs) // 2, len(pairs) // 2 + chapter)
    while index < len(pairs):
        kind, side = generator.random(), generator.randint(0, 1)
        if index in missing or kind < dropped:
            side = 0 if index in missing else side
            sides[side].append(pairs[index][side])
            index += 1
            continue
        group = pairs[index:index + (2 if kind < dropped + joined and index + 1 not in missing else 1)]
        begin = len(sides[0]), len(sides[1])
        sides[side].append(" ".join(pair[side] for pair in group))
        sides[1 - side].extend(pair[1 - side] for pair in group)
        beads.add(Bead(begin[0], len(sides[0]), begin[1], len(sides[1])))
        index += len(group)
    return Gold(SentenceTexts(*sides), beads)


def with_excerpt(gold: Gold, sentences: int) -> Gold:
    """Return texts whose source has only some sentences, from two thirds of the text on."""
    first = 2 * len(gold.texts.source) // 3
    after = first + sentences
    beads = {bead._replace(source_first=bead.source_first - first, source_after=bead.source_after - first)
             for bead in gold.beads if first <= bead.source_first and bead.source_after <= after}
    return Gold(gold.texts._replace(source=gold.texts.source[first:after]), beads)


def links_of(beads: set[Bead]) -> set[tuple[int, int]]:
    """Return the links of beads."""
    return {(i, j) for bead in beads for i in range(bead.source_first, bead.source_after)
            for j in range(bead.target_first, bead.target_after)}


def figures(aligned: set[Bead], gold: set[Bead]) -> dict[str, float]:
    """Return precision and recall of links and of beads, in percent."""
    result = {}
    for name, proposed, reference in (("links", links_of(aligned), links_of(gold)), ("beads", aligned, gold)):
        result[f"{name} precision"] = 100 * len(proposed & reference) / max(len(proposed), 1)
        result[f"{name} recall"] = 100 * len(proposed & reference) / max(len(reference), 1)
    return result


def beads_of_nltk(texts: SentenceTexts) -> set[Bead]:
    """Return the beads of NLTK's `gale_church`, which returns links."""
    from nltk.translate.gale_church import align_blocks

    links = align_blocks(*([len(sentence) for sentence in side] for side in texts))
    groups: list[list[tuple[int, int]]] = []
    for link in links:
        if groups and (link[0] == groups[-1][-1][0] or link[1] == groups[-1][-1][1]):
            groups[-1].append(link)
        else:
            groups.append([link])
    return {Bead(min(i for i, _ in group), max(i for i, _ in group) + 1, min(j for _, j in group),
                 max(j for _, j in group) + 1) for group in groups}


def translator(model: str) -> TranslateTexts:
    """Return the function by which `towernmt pairs --model` translates sentences."""
    from towernmt.predict.translator import Translator

    opened = Translator(model)
    return lambda sentences: [hypothesis.text for hypothesis, *_ in opened.translate_stream(sentences, "documents")]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result, and its processor seconds."""
    begin = time.process_time()
    return work(), time.process_time() - begin


def main() -> None:
    """Print a JSON object for each number of pairs and each system or threshold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="known pairs: one sentence per line")
    parser.add_argument("--target", type=Path, required=True, help="their translations, line by line")
    parser.add_argument("--pairs", type=int, nargs="+", default=[100, 1000], help="numbers of pairs")
    parser.add_argument("--joined", type=float, default=0.1, help="probability that a pair is joined with the next one")
    parser.add_argument("--dropped", type=float, default=0.06, help="probability that a pair loses a side")
    parser.add_argument("--chapter", type=int, default=0, help="pairs in the middle that lose their target")
    parser.add_argument("--excerpt", type=int, default=0, help="sentences of the source, if it is only an excerpt")
    parser.add_argument("--known", type=int, default=0, help="pairs at the end of the files that are known")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.0, 0.1, 0.3, 0.5], help="minimum scores")
    parser.add_argument("--model", help="a trained run or package, for rows with a model")
    parser.add_argument("--nltk", type=int, default=1000, help="maximum number of pairs for NLTK")
    parser.add_argument("--seed", type=int, default=1, help="seed of the gold alignment")
    args = parser.parse_args()
    systems: dict[str, TranslateTexts | None] = {"towernmt": None}
    if args.model:
        systems["towernmt with a model"] = translator(args.model)
    lines = [path.read_text(encoding="utf-8").splitlines() for path in (args.source, args.target)]
    pairs = list(zip(*lines, strict=True))
    known = pairs[len(pairs) - args.known:]
    for count in args.pairs:
        gold = changed_pairs(pairs[:count], args.seed, args.joined, args.dropped, args.chapter)
        if args.excerpt:
            gold = with_excerpt(gold, args.excerpt)
        sizes = {"pairs": count, "source": len(gold.texts.source), "target": len(gold.texts.target)}
        for name, translate in systems.items():
            aligned, seconds = timed(partial(align_sentences, [gold.texts], known, translate))
            for threshold in args.thresholds:
                accepted = {bead for bead, score in zip(aligned[0].beads, aligned[0].scores, strict=True)
                            if score >= threshold and not bead.is_gap}
                report({**sizes, "system": f"{name}, score >= {threshold:g}", **figures(accepted, gold.beads),
                        "seconds": seconds})
        if count <= args.nltk:
            try:
                beads, seconds = timed(partial(beads_of_nltk, gold.texts))
            except ImportError:
                continue
            report({**sizes, "system": "NLTK gale_church", **figures(beads, gold.beads), "seconds": seconds})
    print(json.dumps({"peak memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))


def report(row: dict[str, object]) -> None:
    """Print a row with rounded numbers."""
    print(json.dumps({name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}),
          flush=True)


if __name__ == "__main__":
    main()
