"""Translate a text with each engine in turns, and compare seconds and hypotheses.

    python benchmarks/translate_engines.py --model runs/de-en --text test.de
    python benchmarks/translate_engines.py --model runs/de-en --text test.de --window 1 --lines 200 --by-line

The engines are: `auto`, a `Translator` with default options; `graph`, TensorFlow's graph; `translate_batch`,
CTranslate2's own function on the same export with the same tokens, beam size and batch size; and `same_search`, the
same function with the patience and the score of towernmt's search, which ends later than CTranslate2's default. In each
round every engine translates the whole text once, with both directions between text and tokens, in another order.
Prints one JSON line: for each engine the medians of wall and processor seconds, and the lines whose best translation
differs from that of the graph. Loading, the export and a first translation of each engine are not measured.

With --by-line, the engines take turns after each line, so that other programs on the machine slow all of them equally.
The record has the median milliseconds of a line, and the median ratio to the time of `same_search` for the same line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from machine import Load

from towernmt.core.machine import processors
from towernmt.core.standard_streams import log_to_stderr
from towernmt.interop.ctranslate2_loader import Description
from towernmt.interop.ctranslate2_search import NO_PENALTY
from towernmt.interop.ctranslate2_sentences import EXACT_PATIENCE, limits_of
from towernmt.predict.lines.text_io import read_text
from towernmt.predict.search.search_settings import StreamSettings
from towernmt.predict.translator import Translator

Translate = Callable[[Sequence[str]], list[str]]
SAME_SEARCH = {"patience": EXACT_PATIENCE, "length_penalty": NO_PENALTY}
"""Options of `translate_batch` that search as towernmt does with `stopping=exact`."""


def main() -> None:
    """Measure all engines and print the record."""
    options = parser().parse_args()
    log_to_stderr()
    lines = read_text(options.text)[:options.lines]
    stream = StreamSettings(threads=processors())
    stream = replace(stream, window=options.window or stream.window)
    auto = Translator(options.model, options.beam, device="cpu", stream=stream, precision=options.precision,
                      export_first=True)
    graph = Translator(options.model, options.beam, device="cpu", stream=stream, engine="graph")
    export = options.export or export_of(auto)
    engines: dict[str, Translate] = {
        "auto": auto.translate, "graph": graph.translate, "translate_batch": translate_batch(auto, export, {}),
        "same_search": translate_batch(auto, export, {**SAME_SEARCH, "num_hypotheses": auto.search.beam_size})}
    translations = {name: translate(lines) for name, translate in engines.items()}      # the first translation
    record = {"model": options.model, "lines": len(lines), "beam": auto.search.beam_size, "window": stream.window,
              "threads": stream.threads, "engine_of_auto": auto.engine, "rounds": options.rounds}
    if options.by_line:
        print(json.dumps({**record, **by_line(engines, lines * options.rounds)}))
        return
    loads: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for number in range(options.rounds):
        for name in turn(engines, number):
            load = Load()
            engines[name](lines)
            loads[name].append(load.figures())
    for name, figures in loads.items():
        medians = {key: round(median(figure[key] for figure in figures), 3) for key in figures[0]}
        record[name] = {**medians, "ms_per_line": round(1000 * medians["wall_s"] / len(lines), 3),
                        "different_lines": [number for number, pair in enumerate(zip(
                            translations[name], translations["graph"], strict=True), start=1) if pair[0] != pair[1]]}
    print(json.dumps(record))


def turn(engines: Mapping[str, Translate], number: int) -> list[str]:
    """Return the names of the engines in the order of a round."""
    names = list(engines)
    return names[number % len(names):] + names[:number % len(names)]


def by_line(engines: Mapping[str, Translate], lines: Sequence[str]) -> dict[str, dict[str, float]]:
    """Translate each line with each engine in turn.

    Returns:
        For each engine, the median milliseconds of a line, and the median ratio to `same_search`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number, line in enumerate(lines):
        for name in turn(engines, number):
            begin = time.perf_counter()
            engines[name]([line])
            seconds[name].append(time.perf_counter() - begin)
    return {name: {"ms_per_line": round(1000 * median(engine_seconds), 3), "to_same_search": round(median(
        duration / baseline for duration, baseline in zip(engine_seconds, seconds["same_search"], strict=True)), 3)}
        for name, engine_seconds in seconds.items()}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a run or a package")
    parser.add_argument("--text", required=True, help="file with one sentence per line")
    parser.add_argument("--lines", type=int, help="number of lines to translate (default: all)")
    parser.add_argument("--beam", type=int, help="beam size (default: that of the run)")
    parser.add_argument("--precision", help="precision of auto (default: that of a Translator)")
    parser.add_argument("--window", type=int, help="lines that are read ahead; 1 translates line by line")
    parser.add_argument("--export", type=Path, help="directory of the export for translate_batch (default: that of "
                                                    "auto)")
    parser.add_argument("--by-line", action="store_true", help="let the engines take turns after each line")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    return parser


def export_of(translator: Translator) -> Path:
    """Return the directory of the newest export of a translator's run in the precision of the translator."""
    run = Path(translator.checkpoint).parents[2]
    exports = [*run.glob("exports/ctranslate2-*/model.bin"), *run.glob("included/*ctranslate2-*/model.bin")]
    return max((path.parent for path in exports
                if translator.engine.endswith(f" {Description.read(path.parent).precision}")),
               key=lambda path: (path / "model.bin").stat().st_mtime)


def translate_batch(translator: Translator, export: Path, search: Mapping[str, Any]) -> Translate:
    """Return a function that translates with CTranslate2 alone.

    Args:
        translator: translator with the vocabularies, the beam size and the sizes of batches.
        export: directory of the export.
        search: further options of `ctranslate2.Translator.translate_batch`.
    """
    import ctranslate2

    stream, beam = translator.stream, translator.search.beam_size
    single = stream.window == 1
    engine: Any = ctranslate2.Translator(str(export), inter_threads=1 if single else processors(),
                                         intra_threads=processors() if single else 1, compute_type="default")
    source, target = translator.source_vocabulary, translator.target_vocabulary
    ids = {target.id_to_piece(number): number for number in range(target.size)}

    def translate(lines: Sequence[str]) -> list[str]:
        texts = []
        for first in range(0, len(lines), stream.window):
            tokens = [[source.id_to_piece(id) for id in line]
                      for line in source.encode_batch(list(lines[first:first + stream.window]))]
            results = engine.translate_batch(
                tokens, beam_size=beam, max_batch_size=stream.batch_sentences, max_input_length=0,
                max_decoding_length=limits_of(translator.search, max(map(len, tokens)) + 1).maximum, **search)
            texts += [target.decode([ids[piece] for piece in result.hypotheses[0]]) for result in results]
        return texts

    return translate


if __name__ == "__main__":
    main()
