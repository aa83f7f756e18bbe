"""Rules for the model: its initial parameters, its dropout, and the sample of its softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from towernmt.core.settings import flatten
from towernmt.models.model_location import find_location, is_findable
from towernmt.models.model_settings import with_guided_heads
from towernmt.run.rules.automatic_value import (
    FEW_PASSES,
    AutomaticSetting,
    is_post_norm,
    is_transformer,
    overrides,
    updates_before_patience_ends,
)
from towernmt.run.run_settings import ALIGNING_HEADS, VOCABULARY_SIZES, Settings, affects_training_only
from towernmt.run.training_conditions import TrainingConditions


def settings_of_initial_run(settings: Settings) -> Iterator[AutomaticSetting]:
    """Yield the model settings of the run `init.checkpoint`, so that its parameters fit, and Muon if it trained them.

    Nothing is yielded for another architecture. Settings that only affect training, such as dropout, are not copied,
    because they suit the data and the limit of the other run. The heads that align words are those of the run.

    Raises:
        SettingsError: `init.checkpoint` is not a run.
        CheckpointError: the run has no checkpoint.
    """
    from towernmt.checkpoint.restore import initial_checkpoint  # imports TensorFlow
    from towernmt.run.directory import RunDirectory

    initial_run = initial_checkpoint(settings.init.checkpoint)[0]  # kept, because a package may remove its directory
    run = RunDirectory(initial_run.path)
    name = settings.architecture
    if run.architecture() == (find_location(name).name if is_findable(name) else name):
        current, initial = flatten(settings), run.settings_like(settings)
        aligning = () if settings.init.left_out else ALIGNING_HEADS     # their layer may be left out
        for key, value in flatten(replace(initial, model=with_guided_heads(initial.model))).items():
            if (key.startswith("model.") and key not in VOCABULARY_SIZES and value != current[key]
                    and (key in aligning or not affects_training_only(key))):
                yield AutomaticSetting(key, value, f"the initial parameters are those of {settings.init.checkpoint}")
        if initial.optimizer.name == "muon":
            yield AutomaticSetting("optimizer.name", "muon", "it trained the initial parameters")


def initial_model(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use the model of the run `init.checkpoint`, because its parameters fit no other model, and its Muon.

    On another domain, Muon was better than Adam for parameters that Muon had trained (docs/notes/measurements.md, "A
    trained model in another domain"). Liu et al. (2025) found no such gain for parameters that Adam had trained.
    """
    if settings.init.checkpoint:
        yield from settings_of_initial_run(settings)


def initial_outputs(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Begin a new Transformer that Muon trains with layers that add nothing to their input.

    This reduced the validation loss on Tatoeba (docs/notes/defaults.md, "Muon" and "Trials on a GPU"). Other
    optimizers, other architectures and post-norm models were not measured. With `init.embeddings=cooccurrence`,
    cross-attention adds source vectors from the beginning (`run/cooccurrence.py`).
    """
    if _is_new_transformer_of_muon(settings) and getattr(settings.model, "initialization", "") == "glorot":
        yield AutomaticSetting("model.initialization", "zero_outputs", "each layer then adds only what it has learned")


def _is_new_transformer_of_muon(settings: Settings) -> bool:
    """Return whether Muon trains a new pre-norm Transformer."""
    return (is_transformer(settings) and settings.optimizer.name == "muon" and not settings.init.checkpoint
            and not is_post_norm(settings))


LARGEST_UNTIED = 256
"""Hidden units of the largest model that gets separate tables; larger ones were not measured, and have large tables."""


def separate_tables(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use separate tables for source, target and softmax in a small new Transformer.

    After 1,000 updates of `mini` on Tatoeba, the validation loss was 1.46 instead of 1.52 nats per token, and three
    other texts had the same or a higher BLEU (docs/notes/defaults.md, "Separate embedding tables"). Post-norm models
    keep one table for target and softmax, because the 8-bit engines of Marian need it.
    """
    if _is_new_transformer_of_muon(settings) and getattr(settings.model, "hidden_size", 0) <= LARGEST_UNTIED:
        yield AutomaticSetting("model.tie_embeddings", "none", "separate tables learn more from each update")


def initial_embeddings(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Begin a Transformer on prepared data with embeddings by co-occurrence, which take seconds.

    After 700 updates on Tatoeba, `mini` had 34.6 BLEU instead of 28.5 (docs/notes/defaults.md, "Initial embeddings").
    Other architectures were not measured. Several processes may compute slightly different vectors, so they do not.
    """
    init = settings.init
    if (is_transformer(settings) and conditions.target_tokens is not None and conditions.processes == 1
            and not (init.checkpoint or init.source_embeddings or init.target_embeddings)):
        yield AutomaticSetting("init.embeddings", "cooccurrence", "words then begin near their translations")


SMALLEST_SAMPLED_VOCABULARY = 2000
"""Size of the target vocabulary from which training samples its softmax; of a smaller one, a batch has most tokens."""


def softmax_sample(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Compute the softmax of training batches on the CPU for a sample of the vocabulary.

    In the same minutes, `mini` made 1.2 times as many updates on Tatoeba, and the validation loss after each number of
    updates was the same (docs/notes/defaults.md, "A sample of the softmax"). GPUs were not measured. A custom loss
    needs all logits.
    """
    if (is_transformer(settings) and not conditions.gpus and not settings.train.xla
            and conditions.vocabulary >= SMALLEST_SAMPLED_VOCABULARY and not settings.model.r_drop_alpha
            and not overrides(settings.architecture, "loss")):
        yield AutomaticSetting("model.softmax_sample", 0.15,
                               f"a softmax of all {conditions.vocabulary:,} tokens takes a large part of an update")


def dropout_rates(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use more dropout the more often training sees each pair, and none for a few passes.

    The evidence is for `mini` (docs/notes/defaults.md, "Regularisation"). With dropout 0 and 0.1, one pass over Tatoeba
    gave 33.4 and 29.5 BLEU, five passes over 30,000 of its pairs gave 29.7 and 28.0, and ten passes gave 32.3 and 34.3.
    In seven passes over Tatoeba, 0.05 was better than both, and in eight, 0.1 was better than 0.05. No larger model was
    measured with less than 0.1. The value 0.3 is that of Araabi and Monz 2020 ("Optimizing Transformer for low-resource
    neural machine translation"), who train until convergence. The limits between the values are guesses. A trained
    model in a new domain needs no more than a new one: without dropout, it learned more of the new text and kept more
    of the old (docs/notes/measurements.md, "A trained model in another domain"). The general pairs between the new ones
    prevent learning by heart, too, so the passes count less by their share. Translated pairs do not change the count,
    with or without a trained model. Dropout is never below its default if the end of training is not known, or with
    R-Drop, which has no effect without dropout.
    """
    if not hasattr(settings.model, "residual_dropout"):
        return
    passes, seen = _passes(settings, conditions)
    if passes is None:
        return
    bounds = ((FEW_PASSES, 0.0), (8, 0.05), (20, 0.1), (60, 0.2), (float("inf"), 0.3))
    has_general_data = settings.init.checkpoint and conditions.has_general_data
    share_of_new = 1.0 - settings.data.general_share if has_general_data else 1.0
    rate = next(rate for bound, rate in bounds if passes * share_of_new < bound)
    if rate < 0.1 and (seen == "at least" or getattr(settings.model, "r_drop_alpha", 0.0) > 0.0):
        return
    for name in ("residual_dropout", "embedding_dropout"):
        yield AutomaticSetting(f"model.{name}", rate, f"training sees each pair {seen} {passes:.2g} times")


STRONG_DECAY_PASSES = 10
"""Number of passes over the text from which the weights decay faster; a guess between 1 and 12, which were measured."""


def weight_decay(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Let the weights of a new Transformer that Muon trains decay, five times as fast in many passes over the text.

    0.1 is the decay of Liu et al. (2025), which reduced the validation loss on Tatoeba. With 0.5, 14 and 22 passes over
    5,000 of its pairs gave one BLEU point more, and 12 passes over the default corpus in Finnish 1.4
    (docs/notes/defaults.md, "Little text"). Other optimizers, other architectures and post-norm models were not
    measured.
    """
    if not _is_new_transformer_of_muon(settings):
        return
    passes, seen = _passes(settings, conditions)
    if passes is not None and passes >= STRONG_DECAY_PASSES:
        yield AutomaticSetting("optimizer.weight_decay", 0.5, f"training sees each pair {seen} {passes:.2g} times")
    else:
        yield AutomaticSetting("optimizer.weight_decay", 0.1, "Muon keeps the weights small")


def _passes(settings: Settings, conditions: TrainingConditions) -> tuple[float | None, str]:
    """Return the estimated number of passes over the text, and "about"; or "at least" if patience ends the training.

    The number is None if the end of the training is not known.
    """
    passes = conditions.passes(settings)
    if passes is None and (updates := updates_before_patience_ends(settings)):
        return conditions.passes_of_updates(settings, updates), "at least"
    return passes, "about"
