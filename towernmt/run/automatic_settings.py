"""The rules that set what the user leaves open, each with its evidence, and what they depend on.

They depend on the corpus, the limit of the training, the model and the machine. A setting of the user is never
changed, and settings that depend on it follow it: the rules act one after the other, each on the settings so far. A
run that starts from another run takes its model. The result is logged when a run begins, and saved in its directory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from towernmt.core.machine import has_fast_bfloat16, processors
from towernmt.core.settings import all_keys, apply_overrides, flatten
from towernmt.models.model_location import find_place, is_findable
from towernmt.run.product_rates import FASTER, ProductRates
from towernmt.run.run_settings import VOCABULARY_SIZES, Settings, affects_training_only

if TYPE_CHECKING:
    from towernmt.dataflow.batches.training_data import TrainingData

AUTOMATIC_SETTINGS_FILE = "chosen.yaml"
"""File in the directory of a run: its automatic settings with their reasons."""
SHARE = 0.65
"""Of the machine's rate of products in float32, what training reaches (docs/notes/performance.md: 0.35 to 0.8). Four
trainings of `mini` on a Zen 4 reached 0.67 (two cores) to 0.78 (one), the gain by bfloat16 taken off."""
BFLOAT16 = 1.5
"""How many times as fast training is in bfloat16 where it is chosen (docs/notes/performance.md: 1.4 to 2.2)."""


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


@dataclass(frozen=True)
class TrainingConditions:
    """What is known before training begins.

    Attributes:
        target_tokens: of a pass over the corpus, with EOS; None: not known, as of a stream.
        pairs: of the corpus; None: not known.
        vocabulary: tokens of the target side.
        unigram: whether the vocabularies of both sides are unigram models.
        validation_pairs: of the first validation set.
        gpus: how many are used.
        processors: that this process may use.
        bfloat16: whether the device multiplies bfloat16 in hardware.
        rates: of products; None: not measured.
    """

    target_tokens: int | None
    pairs: int | None
    vocabulary: int
    unigram: bool
    validation_pairs: int
    gpus: int
    processors: int
    bfloat16: bool
    rates: ProductRates | None

    def updates(self, settings: Settings) -> float | None:
        """About how many updates training makes within its limit; None: there is no limit, or too little is known."""
        train = settings.train
        if train.steps and not (train.minutes or (train.epochs and self.target_tokens)):
            return float(train.steps)
        tokens, of_update = self.tokens(settings), self._tokens_of_update(settings)
        return None if tokens is None or of_update is None else tokens / of_update

    def _tokens_of_update(self, settings: Settings) -> float | None:
        """About how many target tokens an update is made from; None: not known before training begins."""
        data, cycle = settings.data, settings.train.update_cycle
        if data.memory_gb:      # the batch is found when the run begins
            return None
        if data.batch_type == "sentences":
            if not self.target_tokens or not self.pairs:
                return None
            return cycle * data.batch_tokens * self.target_tokens / self.pairs
        return cycle * data.batch_tokens / (2 if data.batch_type == "source+target" else 1)

    def passes(self, settings: Settings) -> float | None:
        """Estimate the number of passes within the training limit; None without a limit, or if too little is known."""
        train, tokens = settings.train, self.tokens(settings)
        if tokens is not None and self.target_tokens:
            return tokens / self.target_tokens
        epochs_alone = train.epochs and not (train.steps or train.minutes)
        return float(train.epochs) if epochs_alone else None

    def passes_of_updates(self, settings: Settings, updates: float) -> float | None:
        """About how often each pair is seen in so many updates; None: too little is known."""
        of_update = self._tokens_of_update(settings)
        return updates * of_update / self.target_tokens if of_update and self.target_tokens else None

    def tokens(self, settings: Settings) -> float | None:
        """About how many target tokens training sees within its limit; None: there is none, or too little is known."""
        train, limits = settings.train, []
        if train.steps:
            of_update = self._tokens_of_update(settings)
            limits.append(None if of_update is None else train.steps * of_update)
        if train.minutes:
            speed = self.tokens_per_second(settings)
            limits.append(None if speed is None else train.minutes * 60 * speed)
        if train.epochs and self.target_tokens:
            limits.append(float(train.epochs * self.target_tokens))
        known = [limit for limit in limits if limit is not None]
        return min(known) if known and len(known) == len(limits) else None

    def minutes(self, settings: Settings) -> float | None:
        """Estimate the duration of a run that `train.minutes` limits, in minutes; another limit may end it earlier."""
        tokens, speed, limit = self.tokens(settings), self.tokens_per_second(settings), settings.train.minutes
        if not limit:
            return None
        return limit if tokens is None or speed is None else min(limit, tokens / speed / 60)

    def tokens_per_second(self, settings: Settings) -> float | None:
        """Estimate the target tokens per second, correct within a factor of two; None if unknown.

        It is unknown on GPUs, of which none was measured.
        """
        if self.rates is None or settings.model is None or self.gpus:
            return None
        faster = BFLOAT16 if settings.train.precision == "bfloat16" else 1.0
        return SHARE * faster * self.rates.float32 / (6.0 * parameters_in_products(settings.model, self.vocabulary))


def parameters_in_products(model: object, vocabulary: int) -> float:
    """Estimate the number of parameters that one target token and one source token are multiplied with.

    Args:
        model: settings of a model. A model that is not a Transformer counts as one of the preset `tiny`.
        vocabulary: size of the target vocabulary.
    """
    depth, filters, encoder, decoder = (
        getattr(model, name, usual) for name, usual in (
            ("hidden_size", 256), ("filter_size", 1024), ("encoder_layers", 3), ("decoder_layers", 3)))
    if not hasattr(model, "filter_size"):
        depth, filters, encoder, decoder = 256, 1024, 3, 3
    layers = encoder * (4 * depth + 2 * filters) + decoder * (8 * depth + 2 * filters)
    return float(depth * (layers + vocabulary))


def needs_product_rates(settings: Settings, given: Collection[str], gpus: Sequence[int] | None) -> bool:
    """Whether anything is chosen by how fast the machine multiplies, which takes seconds to measure.

    Args:
        given: dotted keys that the user has set.
        gpus: the numbers of those used; None: the processors are.
    """
    return bool(settings.train.minutes) and not gpus or (
        "train.precision" not in given and _multiplies_bfloat16(gpus))


def training_conditions(data: TrainingData, gpus: Sequence[int] | None,
                        rates: ProductRates | None) -> TrainingConditions:
    """Return the circumstances of a training on this machine.

    Args:
        data: the training data.
        gpus: numbers of the GPUs; None for the CPU.
        rates: of matrix products; None if not measured.
    """
    from towernmt.dataflow.preparation.prepared_data import PreparedData

    prepared = data if isinstance(data, PreparedData) else None
    return TrainingConditions(
        target_tokens=prepared.target_tokens + prepared.pairs if prepared else None,
        pairs=prepared.pairs if prepared else None,
        vocabulary=len(data.target_vocabulary),
        unigram=data.source_vocabulary.has_probabilities and data.target_vocabulary.has_probabilities,
        validation_pairs=len(data.valid_source), gpus=len(gpus or ()),
        processors=processors(), bfloat16=_multiplies_bfloat16(gpus), rates=rates)


def _multiplies_bfloat16(gpus: Sequence[int] | None) -> bool:
    return bool(gpus) or has_fast_bfloat16()


def model_of_initial_run(settings: Settings) -> Iterator[AutomaticSetting]:
    """What the model must have to take the parameters of `init.checkpoint`; nothing where that is of another class.

    How a model is trained is not taken over (dropout, for instance): it belongs to the other run's text and limit.

    Raises:
        SettingsError: `init.checkpoint` names no run.
        CheckpointError: the run has no checkpoint.
    """
    from towernmt.checkpoint.restore import initial_checkpoint  # imports TensorFlow
    from towernmt.run.directory import RunDirectory

    run = RunDirectory(initial_checkpoint(settings.init.checkpoint)[0].path)
    name = settings.architecture
    if run.architecture() == (find_place(name).name if is_findable(name) else name):
        present = flatten(settings)
        for key, value in flatten(run.settings_like(settings)).items():
            if (key.startswith("model.") and key not in VOCABULARY_SIZES and not affects_training_only(key)
                    and value != present[key]):
                yield AutomaticSetting(key, value,
                                       f"{settings.init.checkpoint} has it, whose parameters the model begins with")


AVERAGED = 5
"""Checkpoints that are averaged at the end."""

Rule = Callable[[Settings, TrainingConditions], Iterator[AutomaticSetting]]


def initial_model(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """The model of the run whose parameters this one begins with: no other can take them."""
    if settings.init.checkpoint:
        yield from model_of_initial_run(settings)


def precision(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """bfloat16 where it is measured to be faster.

    The loss is that of float32 (docs/notes/measurements.md, "bfloat16 beside float32"). Training follows the products:
    on an Intel Xeon with AVX512_BF16 alone 0.54 times their rate and 0.57 times the tokens a second.
    """
    if at.rates is None:
        return
    if at.bfloat16 and at.rates.gain >= FASTER:
        yield AutomaticSetting("train.precision", "bfloat16",
                               f"products are {at.rates.gain:.1f} times as fast as in float32")


def batch(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Small batches for little text, since the number of updates is what a small budget lacks.

    Of the 0.3 million tokens of the default corpus, 512 learnt most (docs/notes/performance.md, "Batches for a small
    corpus"); 1,024 was taken for the 1.5 million of Tatoeba (docs/notes/measurements.md). On a GPU smaller batches than
    4,096 save no time.
    """
    data = settings.data
    if data.batch_type != "target" or data.memory_gb or at.target_tokens is None or at.gpus:
        return
    size = next((size for tokens, size in ((700_000, 512), (10_000_000, 1024), (50_000_000, 2048))
                 if at.target_tokens < tokens), 4096)
    yield AutomaticSetting("data.batch_tokens", size,
                           f"a pass has about {round_down(at.target_tokens):,} target tokens")


def sampling(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Where segmentations are drawn by a unigram model: by its probabilities as they are, not by flatter ones.

    With an exponent of 0.3 a short training on 5,000 pairs lost five BLEU points, with 1 none (docs/notes/defaults.md,
    "Regularisation"); sampling did not pay there, so it is not chosen.
    """
    if settings.data.subword_sampling and at.unigram:
        yield AutomaticSetting("data.subword_alpha", 1.0, "a lower exponent draws too far from the best segmentation")


def learning_rate(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """The peak by architecture and depth.

    0.002 for a Transformer of 256, 0.001 with clipped gradients for the others (docs/notes/measurements.md, "The four
    architectures"); 0.0015 where batches have 512 tokens (docs/notes/performance.md, "Batches for a small corpus").
    0.0007 for a depth of 512 and 0.0005 for one of 1,024 are those of Ott et al. 2018 ("Scaling neural machine
    translation"). Normalized behind its layers, a Transformer of 192 came to 3.9 BLEU by 0.002 and to 19.4 by 0.001
    (docs/notes/defaults.md, "Rate, and norm").
    """
    depth, few = getattr(settings.model, "hidden_size", 256), _has_small_batches(settings)
    if settings.architecture == "transformer" and not settings.init.checkpoint:
        rate = (0.0015 if few else 0.002) if depth <= 256 else 0.0007 if depth <= 512 else 0.0005
        why = f"the Transformer has a depth of {depth}{', and batches are small' if few else ''}"
        if rate > 0.001 and _normalizes_behind(settings):
            rate, why = 0.001, "the Transformer normalizes behind its layers"
        yield AutomaticSetting("optimizer.learning_rate", rate, why)
    yield AutomaticSetting("train.clip_norm", 1.0, "a single bad batch must not undo what was learnt")


def _has_small_batches(settings: Settings) -> bool:
    data = settings.data
    return data.batch_type == "target" and data.batch_tokens <= 512 and not data.memory_gb


def _normalizes_behind(settings: Settings) -> bool:
    return "n" in getattr(settings.model, "postprocess", "")


def schedule(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """A rate that falls to the end of the run, if the end is known (Li et al. 2020, "Budgeted training").

    With it, 15 minutes on Tatoeba gave 44.1 BLEU (docs/notes/measurements.md, "The four architectures").
    """
    train = settings.train
    known = {"train.steps": train.steps, "train.epochs": train.epochs if at.target_tokens else 0,
             "train.minutes": train.minutes}
    limits = [name for name, value in known.items() if value]
    if not limits:
        return
    yield AutomaticSetting("schedule.name", "budget", f"the rate falls to the end that {' or '.join(limits)} sets")
    yield from _warm_up(settings, at)


def _warm_up(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """A twentieth of the run, 4,000 updates at most; a quarter where the Transformer normalizes behind its layers.

    Such a model came to 19.4 BLEU with a warm-up of a twentieth, and to 24.9 with one of a quarter
    (docs/notes/defaults.md, "Rate, and norm"). Where it is not known how many updates come, 200 a minute are assumed.
    """
    updates, minutes = at.updates(settings), settings.train.minutes
    part, name = (4, "quarter") if _normalizes_behind(settings) else (20, "twentieth")
    if updates:
        share, about = int(updates) // part, f"about {round_down(updates):,} updates"
        steps, why = share, f"a {name} of {about}"
        if minutes and share < 50:
            steps, why = 50, f"{about} are expected, and the machine may be faster"
        elif share > 4000:
            steps, why = 4000, f"{about} are expected, and longer warm-ups gain nothing"
        yield AutomaticSetting("schedule.warmup_steps", max(1, round_down(steps)), why)
    elif minutes:
        yield AutomaticSetting("schedule.warmup_steps", round_down(max(50, min(4000, 200 * minutes / part))),
                     "how many updates the minutes hold is not known")


def dropout(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """More dropout the more often each pair is seen; none where a pair comes but a few times.

    In one pass over Tatoeba 0 came to 33.4 BLEU and 0.1 to 29.5, in five over 30,000 pairs of it to 29.7 and 28.0, in
    ten to 32.3 and 34.3 (docs/notes/defaults.md, "Regularisation"), all with `mini`: no larger model was measured
    without. 0.3 is that of Araabi and Monz 2020 ("Optimizing Transformer for low-resource neural machine translation"),
    who train until nothing is gained. The limits between them are guesses. Where the end is not known there is always
    some, and for a model that begins with a trained one's parameters, which has seen its text before.
    """
    if not hasattr(settings.model, "residual_dropout"):
        return
    passes, seen = at.passes(settings), "about"
    if passes is None and (least := _updates_before_patience_ends(settings)):
        passes, seen = at.passes_of_updates(settings, least), "at least"
    if passes is None:
        return
    share = next(share for most, share in ((6, 0.0), (20, 0.1), (60, 0.2), (float("inf"), 0.3)) if passes < most)
    if share == 0 and (settings.init.checkpoint or seen == "at least"):
        return      # what the model has by default
    for name in ("residual_dropout", "embedding_dropout"):
        yield AutomaticSetting(f"model.{name}", share, f"each pair is seen {seen} {passes:.2g} times")


def _updates_before_patience_ends(settings: Settings) -> int:
    """Return the minimum number of updates of a run that only `train.stop_patience` ends.

    0 if the run has another limit, or if its validations follow the clock.
    """
    train = settings.train
    limited = train.steps or train.epochs or train.minutes
    return 0 if limited else train.stop_patience * settings.validation.steps


def validation(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """Ten validations and checkpoints in a run whose limit in minutes is known: each costs its share of the time.

    One each half an hour at least, for what a run that is killed has done since its last checkpoint is lost.
    """
    minutes = at.minutes(settings)
    if minutes is None:
        return
    every = min(30.0, max(1.0, round(minutes / 10, 1)))
    often = "about ten in the run's time" if every < 30 else "a run that is killed loses no more"
    yield AutomaticSetting("checkpoint.steps", 0, "checkpoints follow the clock")
    yield AutomaticSetting("checkpoint.minutes", every, often)
    if at.validation_pairs:
        yield AutomaticSetting("validation.steps", 0, "validations follow the clock")
        yield AutomaticSetting("validation.minutes", every, "checkpoints have the same interval")
        few = 200 if minutes < 20 else 500
        if at.validation_pairs > few and minutes < 120:
            yield AutomaticSetting("validation.sentences", few, "a short run has little time for more")


def stopping(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """An end for a run without one: training past the best score is time lost."""
    train, validated = settings.train, settings.validation.steps or settings.validation.minutes
    if at.validation_pairs and validated and not (train.steps or train.minutes or train.epochs):
        yield AutomaticSetting("train.stop_patience", 10, "the run has no other end")


def averaging(settings: Settings, at: TrainingConditions) -> Iterator[AutomaticSetting]:
    """The mean of the last five checkpoints, which is kept only where validation finds it better.

    A run that writes fewer has none to spare: those of its beginning would be among them (docs/notes/defaults.md).
    """
    kept, validated = settings.checkpoint, settings.validation.steps or settings.validation.minutes
    if not at.validation_pairs or not validated or not kept.keep_best or kept.keep < AVERAGED:
        return
    written = _checkpoints_written(settings, at)
    if written >= AVERAGED:
        yield AutomaticSetting("checkpoint.average", AVERAGED,
                               f"about {round_down(written)} checkpoints are written, and "
                                                     "validation decides")


def _checkpoints_written(settings: Settings, at: TrainingConditions) -> float:
    """Estimate the minimum number of checkpoints of a run; 0 if too little is known."""
    kept, minutes = settings.checkpoint, at.minutes(settings)
    updates = at.updates(settings) or _updates_before_patience_ends(settings)
    by_steps = updates / kept.steps if kept.steps else 0.0
    by_minutes = minutes / kept.minutes if kept.minutes and minutes else 0.0
    return max(by_steps, by_minutes)


def automatic_towers(settings: Settings, at: TrainingConditions) -> AutomaticSetting:
    """How many towers on the processors: they change how dropout is drawn, and take time or save it.

    Two on the processors for a model of at most 256: 0.96 to 1.15 times as fast as one (docs/notes/performance.md), and
    no faster for larger ones.
    """
    depth = getattr(settings.model, "hidden_size", 512)
    if at.processors > 1 and depth <= 256:
        return AutomaticSetting("--towers", 2,
                                f"there are {at.processors} processors, and the model has a depth of {depth}")
    return AutomaticSetting("--towers", 1, "a second would save no time")


def _steps_of(key: str) -> str:
    """Return the key of the interval in updates for an interval in minutes; a user who sets one replaces both."""
    group, _, name = key.partition(".")
    return f"{group}.steps" if name == "minutes" else key


RULES: tuple[Rule, ...] = (
    initial_model, precision, batch, sampling, learning_rate, schedule, validation, stopping, dropout, averaging)
"""In the order in which they act."""


def apply_automatic_settings(settings: Settings, at: TrainingConditions, given: Collection[str]) -> tuple[Settings,
                                                                                                          list[AutomaticSetting]]:
    """The settings with those chosen that nobody has set.

    Args:
        given: dotted keys that the user has set.
    Returns:
        the settings, and what was chosen, values that are the defaults included.
    """
    known, taken = set(all_keys(settings)), []
    for rule in RULES:
        for choice in list(rule(settings, at)):
            if choice.key in known and choice.key not in given and _steps_of(choice.key) not in given:
                settings = apply_overrides(settings, {choice.key: choice.value}, "chosen")
                taken.append(choice)
    return settings, taken


PROPOSED_PRESETS = ("mini", "tiny", "base")
FEW, MANY = 100_000, 1_000_000
"""Pairs below which a text is too little for `base`, and from which it is too much for `tiny`."""
SHORT, MEDIUM = 15_000_000, 50_000_000
"""Target tokens that `tiny` would train on, below which `mini` is taken, and from which `base` may be."""


def proposed_preset(pairs: int, gpus: int, tokens: float | None = None) -> AutomaticSetting:
    """A preset of the Transformer.

    What a short training lacks is updates. In 13 minutes on one core `mini` came to 37.8 BLEU on Tatoeba and `tiny` to
    31.7: after as many updates they know as much, and `mini` makes half as many again; after 7.5 million target tokens
    `mini` had 46.2 (docs/notes/defaults.md, "The size of the model"), `tiny` after 7.8 million 45.9
    (docs/notes/measurements.md, "Settings that were chosen"). `base` is the size of Vaswani et al. 2017 for 4.5 million
    pairs. Little text asks for narrower models in long trainings (Araabi and Monz 2020, "Optimizing Transformer for
    low-resource neural machine translation"); in short ones of 5,000 and 10,000 pairs they did not pay
    (docs/notes/defaults.md, "What pays on little text"). The limits are guesses: no preset was measured on either side
    of them.

    Args:
        pairs: of the corpus.
        gpus: that train; 0: the processors do.
        tokens: target tokens that `tiny` would train on within the limit; None: there is none, or it is not known.
    """
    if not gpus and tokens is not None and tokens < MEDIUM:
        seen = f"processors would train tiny on about {round_down(tokens):,} tokens"
        return AutomaticSetting("--preset", "mini" if tokens < SHORT else "tiny", seen)
    if pairs >= MANY:
        return AutomaticSetting("--preset", "base", f"there are {pairs:,} pairs")
    if gpus and pairs >= FEW:
        return AutomaticSetting("--preset", "base", f"there are {pairs:,} pairs, and a GPU")
    return AutomaticSetting("--preset", "tiny",
                            f"there are {pairs:,} pairs" + (", too few for more" if gpus else ", and no GPU"))


def round_down(number: float) -> int:
    """The whole of a number with its first two digits, for a reason that is an estimate."""
    whole = int(number)
    unit = 10 ** max(0, len(str(whole)) - 2)
    return whole // unit * unit
