"""Rules for updates: their precision, the optimizer, the learning rate and its schedule."""

from __future__ import annotations

from collections.abc import Iterator

from towernmt.callbacks.schedules import noam, piecewise
from towernmt.run.product_rates import FASTER
from towernmt.run.rules.automatic_value import (
    MANY_PASSES,
    AutomaticSetting,
    is_post_norm,
    is_transformer,
    round_down,
)
from towernmt.run.run_settings import Settings, width_of_model
from towernmt.run.training_conditions import TrainingConditions


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


SMALL = 256
"""Maximum number of hidden units of a Transformer that is as small as those of the trials."""


def optimizer(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Use Muon for a Transformer that begins with random parameters; a large post-norm one keeps Adam.

    In the same minutes on one core, it reached twice the BLEU of Adam on Tatoeba (docs/notes/defaults.md, "Muon").
    Small post-norm models also learn more with Muon (docs/notes/defaults.md, "Learning rate and norm"). Larger ones and
    other architectures were not measured. The gain for each update does not depend on the device: on an H100, Muon has
    0.8 to 0.9 of the speed of Adam.

    A model that is trained already keeps its Muon, see `initial_model` in `model_rules`. If Adam trained it, a small
    one gets Muon for a new domain with as much general text: in ten minutes, `mini` learned 6.1 BLEU points more of the
    new domain, and kept as much of the old one (docs/notes/measurements.md, "A trained model in another domain").
    `towernmt adapt`, with more general text, and larger models were not measured; Liu et al. (2025) found no gain for
    the parameters of large models that Adam had trained.
    """
    if not is_transformer(settings):
        return
    is_small = getattr(settings.model, "hidden_size", 512) <= SMALL
    if not settings.init.checkpoint:
        if not is_post_norm(settings) or is_small:
            yield AutomaticSetting("optimizer.name", "muon", "it learns more from each batch of a Transformer")
    elif is_small and conditions.has_general_data and settings.data.general_share == 0.5:
        yield AutomaticSetting("optimizer.name", "muon", "a small Transformer then learns more of the new text")


TRAINED_RATE_DIVISOR, TRAINED_RATE_DIVISOR_OF_MUON, TRAINED_RATE_DIVISOR_OF_MIXTURE = 5, 3, 1.5
"""Learning rate of a new model, divided by that of a model that is trained already: for Adam, for Muon, and with as
many general pairs as new ones and fewer than `MANY_PASSES` over the new text, which keep the model from forgetting."""


def learning_rate(settings: Settings, conditions: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Set the peak learning rate for the optimizer, the architecture and its hidden size.

    With Muon, a Transformer with at most 256 units uses 0.003 (docs/notes/defaults.md, "Muon"). With Adam, it uses
    0.002, and other architectures use 0.001 with clipped gradients (docs/notes/measurements.md, "The four
    architectures"). With batches of 512 tokens, 0.0015 is better than 0.002 (docs/notes/performance.md, "Batches for a
    small corpus"). The values 0.0007 for 512 and 0.0005 for 1,024 units are those of Ott et al. 2018 ("Scaling neural
    machine translation") for Adam; Muon's steps are as long as Adam's. With Adam, a post-norm Transformer with 192
    units reached 3.9 BLEU with 0.002 and 19.4 BLEU with 0.001 (docs/notes/defaults.md, "Learning rate and norm"). A run
    that starts from the parameters of a model has a fifth of the rate, which is a guess, or with Muon a third. It has
    two thirds if as many general pairs as new ones are mixed in, and if it does not see the new ones too often
    (docs/notes/measurements.md, "A trained model in another domain"); with Adam, this was measured only for a post-norm
    Transformer with at most 256 units. Translations of monolingual text are no general data. With the schedule noam,
    the setting is a factor, and gives the schedule the same peak at the end of its warm-up.
    """
    size, small_batches = getattr(settings.model, "hidden_size", 256), _has_small_batches(settings)
    rate, reason = settings.optimizer.learning_rate, "the model is new"
    if is_transformer(settings):
        rate = (0.0015 if small_batches else 0.002) if size <= SMALL else 0.0007 if size <= 512 else 0.0005
        reason = f"the Transformer has {size} hidden units{', and batches are small' if small_batches else ''}"
        if settings.optimizer.name == "muon" and size <= SMALL:
            rate, reason = 0.003, f"Muon trains a Transformer of {size} hidden units"
        if rate > 0.001 and is_post_norm(settings) and settings.optimizer.name != "muon":
            rate, reason = 0.001, "the Transformer is post-norm"
    if settings.init.checkpoint:
        passes = conditions.passes(settings)
        divisor: float = TRAINED_RATE_DIVISOR_OF_MUON if settings.optimizer.name == "muon" else TRAINED_RATE_DIVISOR
        if (conditions.has_general_data and settings.data.general_share == 0.5 and learns_faster_from_mixture(settings)
                and passes is not None and passes < MANY_PASSES):
            divisor = TRAINED_RATE_DIVISOR_OF_MIXTURE
        reason = f"the model is trained: a new model would have {rate:g}, at which it would forget much"
        rate = float(f"{rate / divisor:.3g}")
    is_noam = settings.schedule.name == noam.__name__
    if is_noam:
        rate, reason = _factor_of_noam(settings, rate), f"noam multiplies it, and its peak is then {rate:g}: {reason}"
    has_peak = settings.schedule.name != piecewise.__name__     # whose rates are schedule.values
    if has_peak and (is_transformer(settings) or settings.init.checkpoint or is_noam):
        yield AutomaticSetting("optimizer.learning_rate", rate, reason)
    yield AutomaticSetting("train.clip_norm", 1.0, "clipping limits the damage of a single bad batch")


def learns_faster_from_mixture(settings: Settings) -> bool:
    """Return whether a trained model has a higher rate with as many general pairs as new ones, and few passes."""
    is_measured_with_adam = (is_transformer(settings) and getattr(settings.model, "hidden_size", SMALL) <= SMALL
                             and is_post_norm(settings))
    return settings.optimizer.name == "muon" or is_measured_with_adam


def _factor_of_noam(settings: Settings, peak: float) -> float:
    """Return the factor with which noam has a learning rate at the end of its warm-up."""
    warmup_steps = settings.schedule.warmup_steps
    return float(f"{peak / noam(width_of_model(settings), warmup_steps)(max(1, warmup_steps)):.3g}")


def _has_small_batches(settings: Settings) -> bool:
    data = settings.data
    return data.batch_type == "target" and data.batch_tokens <= 512 and not data.memory_gb


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
    is_new_post_norm = is_post_norm(settings) and not settings.init.checkpoint
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
