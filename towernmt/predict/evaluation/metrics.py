"""sacreBLEU's metrics, as a test set asks for them: which, by which tokeniser, in which case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER

from towernmt.core.errors import SettingsError

METRICS = ("bleu", "chrf", "ter")
LOWER_IS_BETTER = ("TER",)
TOKENIZERS = tuple(BLEU.TOKENIZERS)

Metrics = dict[str, Any]
"""sacreBLEU's metrics by the names that it prints, in the order they were asked for."""


@dataclass(frozen=True)
class MetricSettings:
    """What sacreBLEU computes, and how; all of it is in its signatures.

    Attributes:
        names: of `METRICS`.
        tokenizer: of BLEU, one of sacreBLEU's; None: as sacreBLEU has it for the target language, 13a for most.
        lowercase: whether case makes no difference (to TER it never does).
        target_language: of the translations, two letters. Of Chinese and Japanese TER counts characters, since there
            are no spaces between words.
    Raises:
        SettingsError: there is no such metric or tokeniser.
    """

    names: tuple[str, ...] = METRICS
    tokenizer: str | None = None
    lowercase: bool = False
    target_language: str = ""

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in METRICS:
                raise SettingsError(f"metric '{name}': choose among {', '.join(METRICS)}.")
        if self.tokenizer is not None and self.tokenizer not in TOKENIZERS:
            raise SettingsError(f"tokenizer '{self.tokenizer}': choose among {', '.join(TOKENIZERS)}.")


def make_metrics(settings: MetricSettings, references: Sequence[Sequence[str]] | None = None) -> Metrics:
    """The metrics, with the n-grams of the references counted once for all systems.

    Args:
        references: all sentences by each translator.
    Raises:
        SettingsError: a package or a model is missing that the tokeniser needs.
    """
    made = (_make(name, settings, None if references is None else [list(lines) for lines in references])
            for name in dict.fromkeys(settings.names))
    return {{"BLEU": "BLEU", "CHRF": "chrF2", "TER": "TER"}[type(metric).__name__]: metric for metric in made}


def score_corpus(hypotheses: Sequence[str], references: Sequence[Sequence[str]],
                 settings: MetricSettings) -> dict[str, tuple[float, str]]:
    """Score and signature of each metric, by its name.

    Args:
        hypotheses: a sentence each.
        references: all sentences by each translator.
        settings: what is computed.
    """
    return {name: (float(metric.corpus_score(list(hypotheses), None).score), str(metric.get_signature()))
            for name, metric in make_metrics(settings, references).items()}


def _make(name: str, settings: MetricSettings, references: list[list[str]] | None) -> Any:
    if name == "chrf":
        return CHRF(lowercase=settings.lowercase, references=references)
    if name == "ter":
        characters = settings.target_language in ("zh", "ja")
        return TER(normalized=characters, asian_support=characters, references=references)
    try:    # force: no warning about text that looks tokenised
        return BLEU(lowercase=settings.lowercase, force=True, tokenize=settings.tokenizer,
                    trg_lang=settings.target_language, references=references)
    except (ImportError, RuntimeError) as error:
        extra = {"ja-mecab": "ja", "ko-mecab": "ko"}.get(settings.tokenizer or f"{settings.target_language}-mecab")
        if extra is None:
            raise
        raise SettingsError(f"The words of this language are found by MeCab, which is missing: pip install "
                            f"'sacrebleu[{extra}]', or pass --tokenize char to count characters.") from error
    except OSError as error:
        raise SettingsError(f"sacreBLEU could not fetch the model of the tokeniser '{settings.tokenizer}' ({error}): "
                            "mend the connection, or choose another --tokenize.") from error


def sentence_scores(name: str, settings: MetricSettings, hypotheses: Sequence[str],
                    references: Sequence[Sequence[str]]) -> list[float]:
    """The score of each sentence alone; of BLEU with the effective order, as sacreBLEU advises.

    Args:
        name: "bleu" or "chrf".
        settings: tokeniser, case and language.
        hypotheses: a sentence each.
        references: all sentences by each translator.
    """
    metric = _make(name, settings, None)
    if name == "bleu":
        metric.effective_order = True
    return [float(metric.sentence_score(hypothesis, list(others)).score)
            for hypothesis, *others in zip(hypotheses, *references, strict=True)]
