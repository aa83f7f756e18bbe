"""Rules for the settings that a user does not specify, each with its evidence.

The rules depend on the corpus, the training limit, the model and the machine. They are applied in sequence, each to the
result of the previous ones, so that automatic settings follow those that a user specifies. A run that starts from
another run has the same model. The result is logged when a run begins, and saved in its directory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from towernmt.callbacks.validation_metrics import MEAN_OF_SETS
from towernmt.core.settings import all_keys, apply_overrides, flatten
from towernmt.models.model_location import find_location, is_findable
from towernmt.run.product_rates import FASTER
from towernmt.run.run_settings import VOCABULARY_SIZES, Settings, affects_training_only
from towernmt.run.training_conditions import TrainingConditions, parameters_in_products

AUTOMATIC_SETTINGS_FILE = "automatic.yaml"
"""File in the directory of a run: its automatic settings with their reasons."""


class AutomaticSetting(NamedTuple):
    """An automatic value of a setting or option, with its reason.

    Attributes:
        key: dotted key of a setting, or an option: `--towers`.
        value: its value.
        reason: end of a sentence: "because ...".
    """

    key: str
    value: Any
    reason: str

    @property
    def sentence(self) -> str:
        """The setting and its reason, for the log."""
        return f"Automatic setting: {self.key}={self.value}, because {self.reason}."


def settings_of_initial_run(settings: Settings) -> Iterator[AutomaticSetting]:
    """Yield the model settings of the run `init.checkpoint`, so that its parameters fit, and Muon if it trained them.

    Nothing is yielded for another architecture. Settings that only affect training, such as dropout, are not copied,
    because they suit the data and the limit of the other run.

    Raises:
        SettingsError: `init.checkpoint` is not a run.
        CheckpointError: the run has no checkpoint.
    """
    from towernmt.checkpoint.restore import initial_checkpoint  # imports TensorFlow
    from towernmt.run.directory import RunDirectory

    run = RunDirectory(initial_checkpoint(settings.init.checkpoint)[0].path)
    name = settings.architecture
    if run.architecture() == (find_location(name).name if is_findable(name) else name):
        current, initial = flatten(settings), run.settings_like(settings)
        for key, value in flatten(initial).items():
            if (key.startswith("model.") and key not in VOCABULARY_SIZES and not affects_training_only(key)
                    and value != current[key]):
                yield AutomaticSetting(key, value, f"the initial parameters are those of {settings.init.checkpoint}")
        if initial.optimizer.name == "muon":
            yield AutomaticSetting("optimizer.name", "muon", "it trained the initial parameters")


AVERAGED_CHECKPOINTS = 5
"""Number of checkpoints to average at the end of training."""

Rule = Callable[[Settings, TrainingConditions], Iterator[AutomaticSetting]]


def initial_model(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use the model of the run `init.checkpoint`, because its parameters fit no other model, and its Muon.

    On another domain, Muon was better than Adam for parameters that Muon had trained (docs/notes/measurements.md, "A
    trained model in another domain"). Liu et al. (2025) found no such gain for parameters that Adam had trained.
    """
    if settings.init.checkpoint:
        yield from settings_of_initial_run(settings)


def precision(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use bfloat16 if its products are measured to be faster.

    The loss is the same as in float32 (docs/notes/measurements.md, "bfloat16 and float32"). The speed of training is
    proportional to that of products: on an Intel Xeon with AVX512_BF16 but without AMX, bfloat16 has 0.54 times the
    product rate and 0.57 times the tokens per second. On an H100, it has 1.12 times those of float32 with TF32
    (docs/notes/defaults.md, "GPUs"); other GPUs were not measured.
    """
    if conditions.gpus and conditions.bfloat16:
        yield AutomaticSetting("train.precision", "bfloat16", "the GPUs have hardware for bfloat16")
        return
    if conditions.rates is None:
        return
    if conditions.bfloat16 is not False and conditions.rates.gain >= FASTER:
        yield AutomaticSetting("train.precision", "bfloat16",
                               f"products are {conditions.rates.gain:.1f} times as fast as in float32")


def optimizer(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use Muon for a Transformer that begins with random parameters and normalises the inputs of its sublayers.

    In the same minutes on one core, it reached twice the BLEU of Adam on Tatoeba (docs/notes/defaults.md, "Muon").
    Other architectures and post-norm models were not measured, and keep Adam. The gain for each update does not depend
    on the device: on an H100, Muon has 0.8 to 0.9 of the speed of Adam. A model that is trained already keeps its Muon,
    see `initial_model`.
    """
    if settings.architecture == "transformer" and not settings.init.checkpoint and not _is_post_norm(settings):
        yield AutomaticSetting("optimizer.name", "muon", "it learns more from each batch of a Transformer")


def new_model_of_muon(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use the weight decay of Liu et al. (2025), and layers that at first add nothing to their input.

    Both reduced the validation loss of a Transformer on Tatoeba (docs/notes/defaults.md, "Muon" and "Trials on a GPU").
    Other optimizers, other architectures and post-norm models were not measured. With
    `init.embeddings=cooccurrence`, cross-attention adds source vectors from the beginning (`run/cooccurrence.py`).
    """
    if (settings.architecture != "transformer" or settings.optimizer.name != "muon" or settings.init.checkpoint
            or _is_post_norm(settings)):
        return
    yield AutomaticSetting("optimizer.weight_decay", 0.1, "Muon keeps the weights small")
    if getattr(settings.model, "initialization", "") == "glorot":
        yield AutomaticSetting("model.initialization", "zero_outputs", "each layer then adds only what it has learned")


def initial_embeddings(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Begin a Transformer on prepared data with embeddings by co-occurrence, which take seconds.

    After 700 updates on Tatoeba, `mini` had 34.6 BLEU instead of 28.5 (docs/notes/defaults.md, "Initial embeddings").
    Other architectures were not measured. Several processes may compute slightly different vectors, so they do not.
    """
    init = settings.init
    if (settings.architecture == "transformer" and conditions.target_tokens is not None and conditions.processes == 1
            and not (init.checkpoint or init.source_embeddings or init.target_embeddings)):
        yield AutomaticSetting("init.embeddings", "cooccurrence", "words then begin near their translations")


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


def memory_of_step(model: object, vocabulary: int, tokens: int) -> float:
    """Estimate the memory of a training step on a GPU in bytes, in float32.

    Weights, gradients and the two moments of Adam take 16 bytes for each parameter. The activations are 1.6 times those
    of `base` on a CPU, because TensorFlow fuses fewer operations on GPUs (docs/notes/defaults.md, "GPUs").

    Args:
        model: settings of a model; see `parameters_in_products`.
        vocabulary: size of the target vocabulary.
        tokens: target tokens in the batch; the source has about as many.
    """
    hidden, filters = getattr(model, "hidden_size", 512), getattr(model, "filter_size", 2048)
    layers = getattr(model, "encoder_layers", 6) + getattr(model, "decoder_layers", 6)
    parameters = parameters_in_products(model, vocabulary)
    return 16 * parameters + 4.0 * tokens * (3 * vocabulary + layers * (18 * hidden + 3 * filters))


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


FEW_PASSES = 6
"""Number of passes from which a model learns pairs by heart, and forgets others."""


def mixing(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Train on as many general pairs as new ones (Chu et al. 2017, who repeat the smaller text as often as needed).

    If training sees the new pairs many times, a trained model needs more general pairs, or it forgets much
    (docs/notes/measurements.md, "A trained model in another domain").
    """
    if not conditions.is_mixed:
        return
    passes = conditions.passes(settings)
    if settings.init.checkpoint and passes is not None and passes >= FEW_PASSES:
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


SMALLEST_SAMPLED_VOCABULARY = 2000
"""Size of the target vocabulary from which training samples its softmax; of a smaller one, a batch has most tokens."""


def softmax_sample(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Compute the softmax of training batches on the CPU for a sample of the vocabulary.

    In the same minutes, `mini` made 1.2 times as many updates on Tatoeba, and the validation loss after each number of
    updates was the same (docs/notes/defaults.md, "A sample of the softmax"). GPUs were not measured.
    """
    if (settings.architecture == "transformer" and not conditions.gpus and not settings.train.xla
            and conditions.vocabulary >= SMALLEST_SAMPLED_VOCABULARY
            and not getattr(settings.model, "r_drop_alpha", 0.0)):
        yield AutomaticSetting("model.softmax_sample", 0.15,
                               f"a softmax of all {conditions.vocabulary:,} tokens takes a large part of an update")


TRAINED_RATE_DIVISOR, TRAINED_RATE_DIVISOR_OF_MUON, TRAINED_RATE_DIVISOR_OF_MIXTURE = 5, 3, 1.5
"""Learning rate of a new model, divided by that of a model that is trained already: for Adam, for Muon, and for Muon
with general data and few passes over the new text, which keep the model from forgetting."""


def learning_rate(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Set the peak learning rate for the optimizer, the architecture and its hidden size.

    With Muon, a Transformer with at most 256 units uses 0.003 (docs/notes/defaults.md, "Muon"). With Adam, it uses
    0.002, and other architectures use 0.001 with clipped gradients (docs/notes/measurements.md, "The four
    architectures"). With batches of 512 tokens, 0.0015 is better than 0.002 (docs/notes/performance.md, "Batches for a
    small corpus"). The values 0.0007 for 512 and 0.0005 for 1,024 units are those of Ott et al. 2018 ("Scaling neural
    machine translation") for Adam; Muon's steps are as long as Adam's. A post-norm Transformer with 192 units reached
    3.9 BLEU with 0.002 and 19.4 BLEU with 0.001 (docs/notes/defaults.md, "Learning rate and norm"). A run that starts
    from the parameters of a model has a fifth of the rate, which is a guess, or with Muon a third, or two thirds if
    general data are mixed in and there are few passes over the new text (docs/notes/measurements.md, "A trained model
    in another domain").
    """
    size, small_batches = getattr(settings.model, "hidden_size", 256), _has_small_batches(settings)
    rate, reason = settings.optimizer.learning_rate, "the model is new"
    if settings.architecture == "transformer":
        rate = (0.0015 if small_batches else 0.002) if size <= 256 else 0.0007 if size <= 512 else 0.0005
        reason = f"the Transformer has {size} hidden units{', and batches are small' if small_batches else ''}"
        if settings.optimizer.name == "muon" and size <= 256:
            rate, reason = 0.003, f"Muon trains a Transformer of {size} hidden units"
        if rate > 0.001 and _is_post_norm(settings):
            rate, reason = 0.001, "the Transformer is post-norm"
    if settings.init.checkpoint:
        divisor: float = TRAINED_RATE_DIVISOR
        if settings.optimizer.name == "muon":
            passes = conditions.passes(settings)
            has_few_passes = passes is not None and passes < FEW_PASSES and settings.data.general_share <= 0.5
            divisor = TRAINED_RATE_DIVISOR_OF_MIXTURE if conditions.is_mixed and has_few_passes else (
                TRAINED_RATE_DIVISOR_OF_MUON)
        reason = f"the model is trained: a new model would have {rate:g}, at which it would forget much"
        rate = float(f"{rate / divisor:.3g}")
    if settings.architecture == "transformer" or settings.init.checkpoint:
        yield AutomaticSetting("optimizer.learning_rate", rate, reason)
    yield AutomaticSetting("train.clip_norm", 1.0, "clipping limits the damage of a single bad batch")


def _has_small_batches(settings: Settings) -> bool:
    data = settings.data
    return data.batch_type == "target" and data.batch_tokens <= 512 and not data.memory_gb


def _is_post_norm(settings: Settings) -> bool:
    return "n" in getattr(settings.model, "postprocess", "")


def schedule(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Decrease the learning rate until the end of the run, if the end is known (Li et al. 2020, "Budgeted training").

    With this schedule, 15 minutes on Tatoeba gave 44.1 BLEU (docs/notes/measurements.md, "The four architectures").
    """
    train = settings.train
    limits_by_name = {"train.steps": train.steps, "train.epochs": train.epochs if conditions.target_tokens else 0,
                      "train.minutes": train.minutes}
    limits = [name for name, value in limits_by_name.items() if value]
    if not limits:
        return
    yield AutomaticSetting("schedule.name", "budget", f"the learning rate decreases until {' or '.join(limits)}")
    yield from _warm_up(settings, conditions)


def _warm_up(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Warm up for a twentieth of the run, or a quarter for a post-norm Transformer, and at most 4,000 updates.

    A post-norm model reached 19.4 BLEU with a twentieth, and 24.9 BLEU with a quarter (docs/notes/defaults.md,
    "Learning rate and norm"). A post-norm Transformer that is trained already needs no longer warm-up than others (a
    guess). If the number of updates is unknown, 200 updates per minute are assumed.
    """
    updates, minutes = conditions.updates(settings), settings.train.minutes
    is_new_post_norm = _is_post_norm(settings) and not settings.init.checkpoint
    divisor, name = (4, "quarter") if is_new_post_norm else (20, "twentieth")
    if updates:
        steps, estimate = int(updates) // divisor, f"about {round_down(updates):,} updates"
        reason = f"it is a {name} of {estimate}"
        if minutes and steps < 50:
            steps, reason = 50, f"{estimate} are expected, and the machine may be faster"
        elif steps > 4000:
            steps, reason = 4000, f"{estimate} are expected, and a longer warm-up has no advantage"
        yield AutomaticSetting("schedule.warmup_steps", max(1, round_down(steps)), reason)
    elif minutes:
        yield AutomaticSetting("schedule.warmup_steps", round_down(max(50, min(4000, 200 * minutes / divisor))),
                               "the number of updates per minute is not known")


def dropout_rates(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use more dropout the more often training sees each pair, and none for a few passes.

    The evidence is for `mini` (docs/notes/defaults.md, "Regularisation"). With dropout 0 and 0.1, one pass over Tatoeba
    gave 33.4 and 29.5 BLEU, five passes over 30,000 of its pairs gave 29.7 and 28.0, and ten passes gave 32.3 and 34.3.
    No larger model was measured without dropout. The value 0.3 is that of Araabi and Monz 2020 ("Optimizing Transformer
    for low-resource neural machine translation"), who train until convergence. The limits between the values are
    guesses. A trained model in a new domain needs no more than a new one: without dropout, it learned more of the new
    text and kept more of the old (docs/notes/measurements.md, "A trained model in another domain"). The general pairs
    between the new ones prevent learning by heart, too, so the passes count less by their share. Dropout keeps its
    default, and is never 0, if the end of training is not known.
    """
    if not hasattr(settings.model, "residual_dropout"):
        return
    passes, seen = conditions.passes(settings), "about"
    if passes is None and (updates := _updates_before_patience_ends(settings)):
        passes, seen = conditions.passes_of_updates(settings, updates), "at least"
    if passes is None:
        return
    bounds = ((FEW_PASSES, 0.0), (20, 0.1), (60, 0.2), (float("inf"), 0.3))
    share_of_new = 1.0 - settings.data.general_share if settings.init.checkpoint and conditions.is_mixed else 1.0
    rate = next(rate for bound, rate in bounds if passes * share_of_new < bound)
    if rate == 0 and seen == "at least":
        return
    for name in ("residual_dropout", "embedding_dropout"):
        yield AutomaticSetting(f"model.{name}", rate, f"training sees each pair {seen} {passes:.2g} times")


def _updates_before_patience_ends(settings: Settings) -> int:
    """Return the minimum number of updates of a run that only `train.stop_patience` ends.

    0 if the run has another limit, or if its validations follow the clock.
    """
    train = settings.train
    limited = train.steps or train.epochs or train.minutes
    return 0 if limited else train.stop_patience * settings.validation.steps


def validation(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Validate and save about ten times in a run with a time limit, because each validation takes time.

    The interval is at most half an hour, because a killed run loses the updates since its last checkpoint. A run that
    starts from a trained model validates before its first update, too, and without a time limit about once in a pass or
    in a tenth of the updates: a small corpus changes a trained model within a few hundred updates.
    """
    minutes = conditions.minutes(settings)
    if settings.init.checkpoint and conditions.validation_pairs:
        yield AutomaticSetting("validation.at_start", True, "the run has to improve on the score of the trained model")
    if minutes is None:
        if settings.init.checkpoint:
            yield from _intervals_of_trained_model(settings, conditions)
        return
    interval = min(30.0, max(1.0, round(minutes / 10, 1)))
    reason = "the run then has about ten" if interval < 30 else "a killed run loses the time since the last checkpoint"
    yield AutomaticSetting("checkpoint.steps", 0, "the interval of checkpoints is in minutes")
    yield AutomaticSetting("checkpoint.minutes", interval, reason)
    if conditions.validation_pairs:
        yield AutomaticSetting("validation.steps", 0, "the interval of validations is in minutes")
        yield AutomaticSetting("validation.minutes", interval, "checkpoints have the same interval")
        sentences = 200 if minutes < 20 else 500
        if conditions.validation_pairs > sentences and minutes < 120:
            yield AutomaticSetting("validation.sentences", sentences, "a short run has no time for more")


LEAST_INTERVAL = 50
"""Minimum number of updates between two automatic validations."""


def _intervals_of_trained_model(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    updates, usual = conditions.updates(settings), settings.validation.steps
    per_pass = conditions.updates_per_pass(settings)
    candidates = [number for number in (per_pass, None if updates is None else updates / 10) if number is not None]
    steps = max(LEAST_INTERVAL, round_down(min(candidates, default=usual)))
    if steps >= usual:
        return
    is_tenth = updates is not None and steps == round_down(updates / 10)
    reason = "the run then has about ten" if is_tenth else f"a pass has about {round_down(per_pass or 0):,} updates"
    for name in ("validation.steps", "checkpoint.steps") if conditions.validation_pairs else ("checkpoint.steps",):
        yield AutomaticSetting(name, steps, reason)


def deciding_set(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Let the mean over all validation sets decide if a trained model is trained further.

    If old and new text each have a set, a run does not count as better when it gains on the new text and loses as much
    on the old one.
    """
    if settings.init.checkpoint and conditions.validation_sets > 1:
        yield AutomaticSetting("validation.metric_set", MEAN_OF_SETS,
                               f"the trained model must remain good on all {conditions.validation_sets} sets")


def stopping(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Stop a run without a limit when its validation score no longer improves."""
    train, validated = settings.train, settings.validation.steps or settings.validation.minutes
    if conditions.validation_pairs and validated and not (train.steps or train.minutes or train.epochs):
        yield AutomaticSetting("train.stop_patience", 10, "the run has no other limit")


def averaging(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Average the last five checkpoints; the average is kept if its validation score is better.

    A run with fewer checkpoints does not average, because the average would include its first ones
    (docs/notes/defaults.md, "The mean of the last checkpoints").
    """
    checkpoint, validated = settings.checkpoint, settings.validation.steps or settings.validation.minutes
    if not conditions.validation_pairs or not validated:
        return
    if not checkpoint.keep_best or checkpoint.keep < AVERAGED_CHECKPOINTS:
        return
    count = _checkpoint_count(settings, conditions)
    if count >= AVERAGED_CHECKPOINTS:
        yield AutomaticSetting(
            "checkpoint.average", AVERAGED_CHECKPOINTS,
            f"the run writes about {round_down(count)} checkpoints, and validation decides whether the average is used")


def _checkpoint_count(settings: Settings, conditions: TrainingConditions) -> float:
    """Estimate the minimum number of checkpoints of a run; 0 if too little is known."""
    checkpoint, minutes = settings.checkpoint, conditions.minutes(settings)
    updates = conditions.updates(settings) or _updates_before_patience_ends(settings)
    by_steps = updates / checkpoint.steps if checkpoint.steps else 0.0
    by_minutes = minutes / checkpoint.minutes if checkpoint.minutes and minutes else 0.0
    return max(by_steps, by_minutes)


def _steps_key(key: str) -> str:
    """Return the key of the interval in updates for an interval in minutes; a user who sets one replaces both."""
    group, _, name = key.partition(".")
    return f"{group}.steps" if name == "minutes" else key


RULES: tuple[Rule, ...] = (
    initial_model, precision, optimizer, new_model_of_muon, initial_embeddings, batch, mixing, sampling, softmax_sample,
    learning_rate, schedule, validation, deciding_set, stopping, dropout_rates, averaging)
"""All rules, in the order in which they are applied."""


def apply_automatic_settings(settings: Settings, conditions: TrainingConditions, specified: Collection[str],
                             rules: Sequence[Rule] = RULES) -> tuple[Settings, list[AutomaticSetting]]:
    """Set automatic values for the settings that a user does not specify.

    Args:
        settings: specified settings.
        conditions: training conditions.
        specified: dotted keys that the user specifies.
        rules: the rules to apply.

    Returns:
        All settings, and the automatic ones, including those that are equal to the defaults.
    """
    known, automatic = set(all_keys(settings)), []
    for rule in rules:
        for setting in list(rule(settings, conditions)):
            if setting.key in known and setting.key not in specified and _steps_key(setting.key) not in specified:
                settings = apply_overrides(settings, {setting.key: setting.value}, "automatic setting")
                automatic.append(setting)
    return settings, automatic


def round_down(number: float) -> int:
    """Return a number rounded down to two significant digits, for the reason of an estimate."""
    integer = int(number)
    unit = 10 ** max(0, len(str(integer)) - 2)
    return integer // unit * unit
