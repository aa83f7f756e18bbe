"""Compute sacreBLEU's metrics of translations against references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.text.language_codes import check_code, written_language
from towernmt.evaluate.custom_metric import CustomMetric, SegmentMetric

METRICS = ("bleu", "chrf", "ter")
UNSPACED = ("th", "lo", "km", "my", "bo", "dz")
"""Languages without spaces between words for which sacreBLEU has no tokeniser."""
LOWER_IS_BETTER = ("TER",)
TOKENIZERS = tuple(BLEU.TOKENIZERS)
_PRINTED_NAMES = {"BLEU": "BLEU", "CHRF": "chrF2", "TER": "TER"}
_JSON_FIELDS = ("signature", "chrf_signature", "ter_signature", "sentences", "checkpoint", "seconds",
                "sentences_per_second", "terms")
"""Fields of `towernmt evaluate --json` that are not scores. A custom metric must not have their names."""

NamedMetrics = dict[str, Any]
"""sacreBLEU's metric objects by the names that it prints, in the requested order."""


@dataclass(frozen=True)
class MetricSettings:
    """Settings of sacreBLEU's metrics, which its signatures contain.

    Attributes:
        names: names of metrics, from `METRICS`.
        tokenizer: sacreBLEU's tokeniser for BLEU; None: the default for the target language, 13a for most.
        lowercase: ignore case (TER always does).
        target_language: BCP 47 code of the translations' language, stored as its two-letter code. BLEU has tokenisers
            for zh, ja and ko, and counts characters in other languages that are written without spaces between words.
            TER counts characters in zh and ja.
        custom: further metrics, with different names.

    Raises:
        SettingsError: a metric or the tokeniser is unknown.
    """

    names: tuple[str, ...] = METRICS
    tokenizer: str | None = None
    lowercase: bool = False
    target_language: str = ""
    custom: tuple[CustomMetric, ...] = ()

    def __post_init__(self) -> None:
        if self.target_language.strip():
            check_code(self.target_language, "--target-language")
        object.__setattr__(self, "target_language", written_language(self.target_language))
        for name in self.names:
            if name not in METRICS:
                raise SettingsError(f"metric '{name}': choose among {', '.join(METRICS)}.")
        used_names = {*METRICS, *_PRINTED_NAMES.values()}
        for custom in self.custom:
            if custom.name in used_names:
                raise SettingsError(f"metric '{custom.name}': two metrics have this name: rename the function.")
            if custom.name in _JSON_FIELDS:
                raise SettingsError(f"metric '{custom.name}': a field of --json has this name: rename the function.")
            used_names.add(custom.name)
        if self.tokenizer is not None and self.tokenizer not in TOKENIZERS:
            raise SettingsError(f"tokenizer '{self.tokenizer}': choose among {', '.join(TOKENIZERS)}.")

    @property
    def bleu_tokenizer(self) -> str | None:
        """The tokeniser of BLEU; None: sacreBLEU's default for the target language."""
        return self.tokenizer or ("char" if self.target_language in UNSPACED else None)

    def is_lower_better(self, name: str) -> bool:
        """Return whether a lower score is better.

        Args:
            name: printed name of the metric.
        """
        return name in LOWER_IS_BETTER or any(metric.lower_is_better for metric in self.custom if metric.name == name)


def make_metrics(settings: MetricSettings, references: Sequence[Sequence[str]] | None = None,
                 source: Sequence[str] | None = None) -> NamedMetrics:
    """Return the metrics, with the n-grams of the references counted once for all systems.

    Args:
        settings: the metrics.
        references: all sentences by each translator, or None.
        source: the source text for custom metrics, or None.

    Raises:
        SettingsError: a package or a model of the tokeniser is missing.
    """
    metrics = (_make(name, settings, None if references is None else [list(lines) for lines in references])
            for name in dict.fromkeys(settings.names))
    named = {_PRINTED_NAMES[type(metric).__name__]: metric for metric in metrics}
    return {**named, **{metric.name: SegmentMetric(metric, source, references or []) for metric in settings.custom}}


def score_corpus(hypotheses: Sequence[str], references: Sequence[Sequence[str]], settings: MetricSettings,
                 source: Sequence[str] | None = None) -> dict[str, tuple[float, str]]:
    """Return score and signature of each metric, by name.

    Args:
        hypotheses: translations, one per sentence.
        references: all sentences by each translator.
        settings: the metrics.
        source: the source text for custom metrics, or None.
    """
    return {name: (float(metric.corpus_score(list(hypotheses), None).score), str(metric.get_signature()))
            for name, metric in make_metrics(settings, references, source).items()}


def _make(name: str, settings: MetricSettings, references: list[list[str]] | None) -> Any:
    if name == "chrf":
        return CHRF(lowercase=settings.lowercase, references=references)
    if name == "ter":
        characters = settings.target_language in ("zh", "ja")
        return TER(normalized=characters, asian_support=characters, references=references)
    try:    # force: no warning about text that looks tokenised
        return BLEU(lowercase=settings.lowercase, force=True, tokenize=settings.bleu_tokenizer,
                    trg_lang=settings.target_language, references=references)
    except (ImportError, RuntimeError) as error:
        extra = {"ja-mecab": "ja", "ko-mecab": "ko"}.get(settings.tokenizer or f"{settings.target_language}-mecab")
        if extra is None:
            raise
        raise SettingsError("The tokeniser of this language needs MeCab, which is missing: pip install "
                            f"'sacrebleu[{extra}]'. `towernmt evaluate --tokenize char` works without it and counts "
                            "characters.") from error
    except OSError as error:
        raise SettingsError(f"sacreBLEU could not download the model of the tokeniser '{settings.tokenizer}' "
                            f"({error}): fix the connection, or choose another --tokenize.") from error


def sentence_scores(name: str, settings: MetricSettings, hypotheses: Sequence[str],
                    references: Sequence[Sequence[str]], source: Sequence[str] | None = None) -> list[float]:
    """Return the score of each sentence; BLEU has the effective order, as sacreBLEU recommends.

    Args:
        name: "bleu", "chrf", or the name of a custom metric.
        settings: tokeniser, case and language.
        hypotheses: translations, one per sentence.
        references: all sentences by each translator.
        source: the source text for custom metrics, or None.
    """
    for custom in settings.custom:
        if custom.name == name:
            return custom.scores(source, hypotheses, references)
    metric = _make(name, settings, None)
    if name == "bleu":
        metric.effective_order = True
    return [float(metric.sentence_score(hypothesis, list(hypothesis_references)).score)
            for hypothesis, *hypothesis_references in zip(hypotheses, *references, strict=True)]


@dataclass(frozen=True)
class Scores:
    """Corpus scores, 0 to 100.

    Attributes:
        bleu: cased BLEU of detokenised text, with 13a tokenisation unless the target language has another.
        chrf: chrF2.
        signature: sacreBLEU's signature of `bleu`; report it with the score.
        chrf_signature: sacreBLEU's signature of `chrf`.
    """

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str = ""


def corpus_scores(hypotheses: Sequence[str], references: Sequence[str], *further_references: Sequence[str],
                  target_language: str = "") -> Scores:
    """Return the scores of detokenised translations against one or more references.

    Args:
        hypotheses: translations, one per sentence.
        references: reference translations, one per sentence.
        further_references: all sentences by each further translator; sacreBLEU counts matches with any of them.
        target_language: code of the language of the translations; see `MetricSettings`.

    Raises:
        DataError: the lists are empty, or the numbers of hypotheses and references differ.
    """
    for lines in (references, *further_references):
        if len(hypotheses) != len(lines):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(lines)} references: "
                            "pass one line for each sentence.")
    if not references:
        raise DataError("There are no sentences to score: the reference is empty.")
    settings = MetricSettings(("bleu", "chrf"), target_language=target_language)
    scores = score_corpus(hypotheses, [references, *further_references], settings)
    (bleu, signature), (chrf, chrf_signature) = scores["BLEU"], scores["chrF2"]
    return Scores(bleu=bleu, chrf=chrf, signature=signature, chrf_signature=chrf_signature)
