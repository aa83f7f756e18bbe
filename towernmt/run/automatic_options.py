"""Rules for the options `--preset` and `--towers` that a user does not specify, each with its evidence."""

from __future__ import annotations

from towernmt.run.rules.automatic_value import AutomaticSetting, round_down
from towernmt.run.run_settings import Settings
from towernmt.run.training_conditions import TrainingConditions

PROPOSED_PRESETS = ("mini", "tiny", "base")
SMALL_CORPUS, LARGE_CORPUS = 100_000, 1_000_000
"""Number of pairs below which `base` is never proposed, and from which `base` is proposed without a GPU, too."""
SHORT_TRAINING, MEDIUM_TRAINING = 15_000_000, 50_000_000
"""Number of target tokens that `tiny` would see within the limit: `mini` is proposed below the first, and `base` may be
proposed from the second."""


def proposed_preset(pairs: int, gpus: int, tokens: float | None = None) -> AutomaticSetting:
    """Return a preset of the Transformer that suits the size of the corpus and the training limit.

    A short training needs a fast model. In 13 minutes on one core, `mini` reached 37.8 BLEU on Tatoeba and `tiny` 31.7:
    equal numbers of updates give equal scores, and `mini` makes 1.5 times as many updates. After 7.5 million target
    tokens `mini` reached 46.2 BLEU (docs/notes/defaults.md, "The size of the model"), and `tiny` 45.9 after 7.8 million
    (docs/notes/measurements.md, "Automatic settings before models were chosen"). Vaswani et al. 2017 use `base` for 4.5
    million pairs. Narrower models suit long trainings on small corpora (Araabi and Monz 2020, "Optimizing Transformer
    for low-resource neural machine translation"), but had no advantage in short trainings on 5,000 and 10,000 pairs
    (docs/notes/defaults.md, "Little text"). The limits are guesses: no preset was measured on both sides
    of a limit.

    Args:
        pairs: number of sentence pairs in the corpus.
        gpus: number of GPUs that train; 0 for the CPU.
        tokens: number of target tokens that `tiny` would see within the limit; None without a limit, or if unknown.
    """
    if not gpus and tokens is not None and tokens < MEDIUM_TRAINING:
        reason = f"the CPU would train tiny on about {round_down(tokens):,} tokens"
        return AutomaticSetting("--preset", "mini" if tokens < SHORT_TRAINING else "tiny", reason)
    if pairs >= LARGE_CORPUS:
        return AutomaticSetting("--preset", "base", f"there are {pairs:,} pairs")
    if gpus and pairs >= SMALL_CORPUS:
        return AutomaticSetting("--preset", "base", f"there are {pairs:,} pairs, and a GPU")
    return AutomaticSetting("--preset", "tiny",
                            f"there are {pairs:,} pairs" + (", too few for base" if gpus else ", and no GPU"))


def automatic_towers(settings: Settings, conditions: TrainingConditions) -> AutomaticSetting:
    """Return the number of towers on the CPU, which changes the speed and the dropout masks.

    Two towers train a model with at most 256 hidden units 0.96 to 1.15 times as fast as one tower
    (docs/notes/performance.md), and larger models no faster.
    """
    size = getattr(settings.model, "hidden_size", 512)
    if conditions.processors > 1 and size <= 256:
        return AutomaticSetting("--towers", 2,
                                f"there are {conditions.processors} processors, and the model has {size} hidden units")
    return AutomaticSetting("--towers", 1, "a second tower would save no time")
