"""Rules for batches and for what they contain."""

from __future__ import annotations

from collections.abc import Iterator

from towernmt.run.rules.automatic_value import MANY_PASSES, AutomaticSetting, round_down
from towernmt.run.run_settings import Settings
from towernmt.run.training_conditions import TrainingConditions, parameters_in_products, passes_of_batch


def batch(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use small batches for a small corpus, because a short training needs more updates.

    With Adam, 512 was best for the 0.3 million tokens of the default corpus (docs/notes/performance.md, "Batches for a
    small corpus"). Muon, whose updates cost more, was better with 1,024 for the same number of tokens
    (docs/notes/defaults.md, "Muon"). Tatoeba, with 1.5 million, had 1,024 (docs/notes/measurements.md).
    """
    data = settings.data
    if data.batch_type != "target" or data.memory_gb:
        return
    if conditions.gpus:
        yield _batch_of_gpus(settings, conditions)
        return
    if conditions.target_tokens is None:
        return
    smallest_corpus = 100_000 if settings.optimizer.name == "muon" else 700_000
    size = next((size for tokens, size in ((smallest_corpus, 512), (10_000_000, 1024), (50_000_000, 2048))
                 if conditions.target_tokens < tokens), 4096)
    yield AutomaticSetting("data.batch_tokens", size,
                           f"a pass has about {round_down(conditions.target_tokens):,} target tokens")


TOKENS_PER_GPU = 12_500
"""Target tokens of each GPU in a batch, if its memory and the corpus suffice (docs/notes/defaults.md, "GPUs")."""
MEMORY_FRACTION = 0.8
"""Fraction of a GPU's memory that a step may fill by estimate."""
UPDATES_PER_PASS = 100
"""Minimum number of updates in a pass over the corpus with the batches of GPUs, unless batches are small already."""
SMALLEST_GPU_BATCH = 4096
"""Target tokens of the smallest batch on GPUs."""


def _batch_of_gpus(settings: Settings, conditions: TrainingConditions) -> AutomaticSetting:
    """Return the batch size of all GPUs, which share each batch.

    On an H100, starting the kernels of a step of `base` takes 40 ms whatever the size of the batch. Batches of 12,500
    target tokens are nearly as fast as larger ones, for each token (docs/notes/defaults.md, "GPUs").
    """
    tokens, reason = TOKENS_PER_GPU, "a GPU is not busy with smaller batches"
    memory_limit = MEMORY_FRACTION * conditions.gpu_memory
    while conditions.gpu_memory and tokens > 1000 and memory_of_step(settings.model, conditions.vocabulary,
                                                                     tokens) > memory_limit:
        tokens, reason = tokens // 2, f"a GPU has {conditions.gpu_memory / 2 ** 30:.0f} GiB"
    tokens *= conditions.gpus
    if conditions.gpus > 1:
        reason += f", and {conditions.gpus} GPUs share the batch"
    corpus = conditions.target_tokens
    if corpus is not None and tokens > (maximum := max(SMALLEST_GPU_BATCH, corpus // UPDATES_PER_PASS)):
        tokens, reason = maximum, f"a pass has about {round_down(corpus):,} target tokens"
    return AutomaticSetting("data.batch_tokens", tokens, reason)


def memory_of_step(model: object, vocabulary: int, tokens: int) -> float:
    """Estimate the memory of a training step on a GPU in bytes, in float32.

    Weights, gradients and the two moments of Adam take 16 bytes for each parameter. The activations are 1.6 times those
    of `base` on a CPU, because TensorFlow fuses fewer operations on GPUs (docs/notes/defaults.md, "GPUs"). R-Drop has
    those of two passes.

    Args:
        model: settings of a model; see `parameters_in_products`.
        vocabulary: size of the target vocabulary.
        tokens: target tokens in the batch; the source has about as many.
    """
    hidden, filters = getattr(model, "hidden_size", 512), getattr(model, "filter_size", 2048)
    layers = getattr(model, "encoder_layers", 6) + getattr(model, "decoder_layers", 6)
    parameters = parameters_in_products(model, vocabulary)
    activations = passes_of_batch(model) * tokens * (3 * vocabulary + layers * (18 * hidden + 3 * filters))
    return 16 * parameters + 4.0 * activations


def mixing(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Train on as many general pairs as new ones (Chu et al. 2017, who repeat the smaller text as often as needed).

    If training sees the new pairs many times, a trained model needs more general pairs, or it forgets much
    (docs/notes/measurements.md, "A trained model in another domain").
    """
    if not conditions.has_general_data:
        return
    passes = conditions.passes(settings)
    if settings.init.checkpoint and passes is not None and passes >= MANY_PASSES:
        yield AutomaticSetting("data.general_share", 0.75, "with equal shares, training would see each new pair about "
                               f"{passes:.2g} times, and the model would forget much")
    else:
        yield AutomaticSetting("data.general_share", 0.5, "new and general pairs then have the same weight")


def sampling(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Sample segmentations with the unmodified probabilities of a unigram model.

    A short training on 5,000 pairs lost five BLEU points with an exponent of 0.3, and none with 1
    (docs/notes/defaults.md, "Regularisation"). Sampling had no advantage there, so this rule does not turn it on.
    """
    if settings.data.subword_sampling and conditions.unigram:
        yield AutomaticSetting("data.subword_alpha", 1.0, "a lower exponent samples unlikely segmentations")
