"""Write docs/reference/engines.md: each option of a request, and the engine that translates it.

python docs/make_engines.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from towernmt.interop.ctranslate2_requests import difference
from towernmt.predict.search.search_settings import SearchSettings

PAGE = Path(__file__).parent / "reference" / "engines.md"
SAMPLING = {"selection": "sampling"}
SEARCHES: dict[str, list[dict[str, Any]]] = {
    "selection": [SAMPLING],
    "beam_size": [{"beam_size": 1}, {"beam_size": 8}],
    "n_best": [{"n_best": 3}],
    "beam_groups": [{"beam_groups": 5}],
    "diversity": [{"beam_groups": 5, "diversity": 1.0}],
    "length_normalization": [{"length_normalization": "average"}],
    "length_penalty": [{"length_penalty": 1.0}],
    "word_reward": [{"word_reward": 0.5}],
    "coverage_penalty": [{"coverage_penalty": 0.2}],
    "stopping": [{"stopping": "none"}, {"stopping": "first"}, {"stopping": "first", "length_penalty": 0.0}],
    "patience": [{"stopping": "first", "length_penalty": 0.0, "patience": 2.0}],
    "temperature": [{"temperature": 0.5}],
    "top_k": [{**SAMPLING, "top_k": 10}],
    "top_p": [{**SAMPLING, "top_p": 0.9}],
    "epsilon": [{**SAMPLING, "epsilon": 0.02}],
    "seed": [{**SAMPLING, "seed": 2}],
    "max_length_factor": [{"max_length_factor": 1.5}],
    "max_length_constant": [{"max_length_constant": 20}],
    "max_tokens": [{"max_tokens": 100}],
    "min_length": [{"min_length": 2}, {"beam_size": 1, "min_length": 2}],
    "min_length_factor": [{"min_length_factor": 0.5}, {"beam_size": 1, "min_length_factor": 0.5}],
    "no_repeat_ngram": [{"no_repeat_ngram": 3}, {"beam_size": 1, "no_repeat_ngram": 3}],
    "repetition_penalty": [{"repetition_penalty": 1.2}],
    "shortlist": [{"shortlist": "FILE"}],
    "shortlist_size": [{"shortlist": "FILE", "shortlist_size": 50}],
    "shortlist_frequent": [{"shortlist": "FILE", "shortlist_frequent": 50}],
    "averaged": [{"averaged": False}],
}
"""Examples of each search setting."""
LINES: dict[str, tuple[str, list[str]]] = {
    "source_prefix": ("text before the line that is not translated, such as a tag (`--source-prefix`)", []),
    "prefix": ("a translation begins with complete words (`--prefix`)", ["prefix"]),
    "partial_word": ("the last word of the prefix may be longer (`--partial-word`, the page's word menu)",
                     ["prefix", "continuation"]),
    "prefix_every_piece": ("the prefix begins only the first part of a long line", ["prefix"]),
    "avoid": ("phrases to avoid (`--avoid`)", ["avoid"]),
    "constraints": ("phrases that a translation must contain (`--constraints`)", ["constraints"]),
    "terminology": ("terms of a terminology or a glossary, in a line that contains one (`--terminology`)",
                    ["constraints"]),
    "protect": ("words that a translation must contain unchanged (`--protect`); in the server, a sentence that loses "
                "one is searched again with constraints, by the graph", []),
    "n_best": ("number of translations", []),
    "details": ("log-probabilities and attention of a translation", []),
    "search": ("search settings of a line: see the first table", []),
    "inputs": ("other inputs of a custom model or of custom processors", ["input"]),
}
"""Fields of `LineOptions` with their meaning and the inputs of their search."""
HEAD = """\
# Engines

`--engine auto`, the default, translates each line with CTranslate2 if the result is the same as that of TensorFlow's
graph, except near-ties, and with the graph otherwise. [Decoding](../guide/decoding.md#engines) explains the engines.
This page lists the engine for each option of a request.

(`python docs/make_engines.py` generates this page from the code.)

## Search settings

| setting | engine | why not CTranslate2 |
|---|---|---|
"""
LINES_HEAD = """
## Options of a line

An option of a line does not change the engine of other lines.

| option | meaning | engine | why not CTranslate2 |
|---|---|---|---|
"""
TAIL = """
With `--beam 1`, the graph translates two kinds of lines with `avoid`: lines with a phrase that begins with `<s>`, and
lines whose translation would begin with an avoided word that can also be a part of a longer word.

`--retry` repeats the search of a faulty line with `no_repeat_ngram`, `min_length` and `min_length_factor`. The graph
makes this second search; if the search is greedy (`--beam 1`), CTranslate2 makes it. Other lines do not need the graph.

## Other options

| option | engine |
|---|---|
| `--alignments`, `--attention`, `--plot`, `--replace-unknown` | CTranslate2 |
| `--token-scores`, `--scores`, `--json` | CTranslate2 |
| `--mbr`, `--rerank-by` | CTranslate2 for the hypotheses of a beam, graph for samples (`--sample`, `--samples`) |
| `--precision int8`, `int16` | CTranslate2; lines that the graph translates have float32 |
| `--precision bfloat16`, `float16` | graph |
| the models of `--rerank-by` and `rerank` | in float32: CTranslate2, for each model that it can express |
| the models of `score` | the same, unless `--precision` requests another precision |
| several `--model` or `--checkpoint` (an ensemble) | graph |
| a model on a GPU | graph |
| a model that CTranslate2 cannot express: another architecture, another `model.decoder_cell`, custom code | graph |
| custom logits processors (`Translator(processors=...)`) | graph |
| sentences with more tokens than the export has positions (1,024 for sinusoidal positions) | graph |
| sentences whose translation may have more tokens than that (`--max-length`, `--max-tokens`) | graph |
| `towernmt align`, validation, `OfflinePredictor` | graph |
"""


def page() -> str:
    """Return the Markdown text of the page."""
    return HEAD + "\n".join(_search_rows()) + "\n" + LINES_HEAD + "\n".join(_line_rows()) + "\n" + TAIL


def _search_rows() -> Iterator[str]:
    for examples in SEARCHES.values():
        for settings in examples:
            shown = ", ".join(f"`{name}={value}`" for name, value in settings.items())
            yield f"| {shown} | {_engine(SearchSettings(**settings))} |"


def _line_rows() -> Iterator[str]:
    for name, (meaning, inputs) in LINES.items():
        cells = _engine(SearchSettings(), inputs)
        if difference(SearchSettings(), inputs) and not difference(SearchSettings(beam_size=1), inputs):
            cells += "; with `--beam 1`, CTranslate2"
        yield f"| `{name}` | {meaning} | {cells} |"


def _engine(search: SearchSettings, inputs: Sequence[str] = ()) -> str:
    """Return the cells of the engine and the reason, without the name of the option that begins the reason."""
    reason = difference(search, inputs).partition(": ")[2]
    return f"graph | {reason}" if reason else "CTranslate2 | "


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
