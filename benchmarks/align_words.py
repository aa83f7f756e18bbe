"""Measure the word alignments of `towernmt prepare --alignments learn` by their error rate, next to those of eflomal.

    python benchmarks/align_words.py --text train.en --pairs 10000 100000 --eflomal venvs/eflomal/bin/eflomal-align
    python benchmarks/align_words.py --text train.en --source train.de --pairs 100000 --eflomal ...

Without --source, the correct alignment is known: the other language is made from the text, with a fixed seed. Each word
has one to three translations, most words share a translation with another word, and some words are dropped, doubled,
moved or inserted. With --source, no correct alignment is known, so the alignments of the two texts are compared with
those of eflomal. Words are separated by white space. Both programs align in both directions, and the links on which
both directions agree are kept. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from towernmt.dataflow.preparation.alignment_model import AlignmentModel, aligned_pairs
from towernmt.dataflow.preparation.shards import PairBlock, offsets_of_lengths, reversed_block
from towernmt.predict.symmetrise import ErrorRate, GoldLinks, Link

Sentences = Sequence[list[str]]
PAIRS_PER_BLOCK = 4096


class MadeLanguage:
    """An artificial language, made from a text, so that its word alignments are known.

    Args:
        words: the vocabulary of the text.
        seed: seed of the random choices.
    """

    DROPPED, DOUBLED, INSERTED, MOVED = 0.08, 0.04, 0.08, 0.3
    TRANSLATIONS = (0.6, 0.3, 0.1)
    """Probabilities of the first, second and third translation of a word, of those that it has."""

    def __init__(self, words: Sequence[str], seed: int) -> None:
        self._random = random.Random(seed)
        names = range(2 * len(words))       # as many as draws on average, so most words share one with another word
        self._translations = {word: self._random.choices(names, k=self._random.randint(1, 3)) for word in words}
        self._inserted = [f"x{number}" for number in range(20)]

    def translate(self, sentence: list[str]) -> tuple[list[str], set[Link]]:
        """Return the translation of a sentence, and its links to the sentence."""
        drawn = self._random
        items: list[tuple[str, int | None]] = []   # a word of the translation, and the word that it translates
        for index, word in enumerate(sentence):
            if drawn.random() < self.DROPPED:
                continue
            known = self._translations[word]
            (choice,) = drawn.choices(known, self.TRANSLATIONS[:len(known)])
            items.append((f"w{choice}", index))
            if drawn.random() < self.DOUBLED:
                items.append((f"w{choice}b", index))
            if drawn.random() < self.INSERTED:
                items.append((drawn.choice(self._inserted), None))
        if len(items) > 3 and drawn.random() < self.MOVED:       # one phrase changes its place with the next one
            first, middle, after = sorted(drawn.sample(range(len(items) + 1), 3))
            items[first:after] = items[middle:after] + items[first:middle]
        return [word for word, _ in items], {(place, index) for place, (_, index) in enumerate(items)
                                             if index is not None}


class Pairs(NamedTuple):
    """Sentence pairs as words, and their correct links; None if these are not known."""

    source: Sentences
    target: Sentences
    gold: list[set[Link]] | None


def align(pairs: Pairs) -> list[set[Link]]:
    """Return the links that towernmt finds."""
    ids = [{word: number for number, word in enumerate(vocabulary(side), start=4)} for side in pairs[:2]]
    blocks = [PairBlock(*(part for side, known in zip(pairs[:2], ids, strict=True)
                          for part in encoded(side[first:first + PAIRS_PER_BLOCK], known)))
              for first in range(0, len(pairs.source), PAIRS_PER_BLOCK)]
    forward = AlignmentModel.learn(blocks, len(ids[1]) + 4)
    backward = AlignmentModel.learn(map(reversed_block, blocks), len(ids[0]) + 4)
    result: list[set[Link]] = []
    for block in blocks:
        links, counts = aligned_pairs(forward, backward, block)
        offsets = offsets_of_lengths(counts)
        result += [set(zip(*links[:, first:after].tolist(), strict=True))
                   for first, after in zip(offsets[:-1], offsets[1:], strict=True)]
    return result


def vocabulary(sentences: Sentences) -> list[str]:
    """Return the distinct words, sorted."""
    return sorted({word for sentence in sentences for word in sentence})


def encoded(sentences: Sentences, ids: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all words int32 `[words]`, and the offsets of the sentences int64 `[sentences + 1]`."""
    return (np.array([ids[word] for sentence in sentences for word in sentence], np.int32),
            offsets_of_lengths(np.array([len(sentence) for sentence in sentences])))


def align_by_eflomal(program: str, pairs: Pairs) -> list[set[Link]]:
    """Return the links on which both directions of eflomal agree."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("source", "target", "forward", "reverse")]
        for path, side in zip(files[:2], pairs[:2], strict=True):
            path.write_text("".join(" ".join(sentence) + "\n" for sentence in side), encoding="utf-8")
        options = [word for option, path in zip("stfr", files, strict=True) for word in (f"-{option}", str(path))]
        subprocess.run([program, "--overwrite", *options], check=True, capture_output=True)
        forward, reverse = ([{(int(i), int(j)) for i, j in (link.split("-") for link in line.split())}
                             for line in path.read_text().splitlines()] for path in files[2:])
    return [links & other for links, other in zip(forward, reverse, strict=True)]


def score(links: list[set[Link]], gold: list[set[Link]]) -> dict[str, float]:
    """Return the error rate (Och & Ney 2003), precision and recall of links, in percent."""
    result = ErrorRate()
    for found, correct in zip(links, gold, strict=True):
        result.add(found, GoldLinks(frozenset(correct), frozenset(correct)))
    return {"AER": 100 * result.error_rate, "precision": 100 * result.precision, "recall": 100 * result.recall}


def processor_seconds() -> float:
    """Return the processor seconds of this process and of the programs that it has run."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def read_pairs(text: Path, source: Path | None, count: int, seed: int) -> Pairs:
    """Return the first pairs of the text, in which no side is empty."""
    sentences = [line.split() for line in text.read_text(encoding="utf-8").splitlines()[:count]]
    if source:
        lines = [line.split() for line in source.read_text(encoding="utf-8").splitlines()[:count]]
        both = [pair for pair in zip(lines, sentences, strict=True) if all(pair)]
        return Pairs([pair[0] for pair in both], [pair[1] for pair in both], None)
    language = MadeLanguage(vocabulary(sentences), seed)
    made = [(*language.translate(sentence), sentence) for sentence in sentences]
    made = [triple for triple in made if triple[0] and triple[2]]
    return Pairs([words for words, _, _ in made], [sentence for *_, sentence in made], [links for _, links, _ in made])


def main() -> None:
    """Print a JSON object for each number of pairs and each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, help="sentences, one per line: the target language")
    parser.add_argument("--source", type=Path, help="their translations, line by line, instead of a made language")
    parser.add_argument("--pairs", type=int, nargs="+", default=[10_000], help="numbers of pairs")
    parser.add_argument("--eflomal", help="the program eflomal-align, for rows of eflomal")
    parser.add_argument("--seed", type=int, default=1, help="seed of the made language")
    args = parser.parse_args()
    if args.source and not args.eflomal:
        parser.error("--source needs --eflomal, whose links replace the correct ones")
    for count in args.pairs:
        pairs = read_pairs(args.text, args.source, count, args.seed)
        found, seconds = {}, {}
        for name in ("towernmt", "eflomal") if args.eflomal else ("towernmt",):
            begin = processor_seconds()
            found[name] = align(pairs) if name == "towernmt" else align_by_eflomal(args.eflomal, pairs)
            seconds[name] = processor_seconds() - begin
        for name, links in found.items():
            gold = pairs.gold or found["eflomal"]
            figures = {**score(links, gold), "links per pair": sum(map(len, links)) / len(links),
                       "seconds": seconds[name]}
            print(json.dumps({"pairs": len(pairs.source), "program": name,
                              **{key: round(value, 2) for key, value in figures.items()}}), flush=True)


if __name__ == "__main__":
    main()
