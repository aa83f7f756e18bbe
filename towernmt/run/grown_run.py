"""Create a run with other vocabularies from a trained run: given ones, or its own with the subwords of a text."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorpack.utils import logger

from towernmt.checkpoint.embedding_rows import grow_checkpoint, origins_in_both, row_origins
from towernmt.checkpoint.records import check_vocabulary_of, provenance, vocabulary_fingerprint
from towernmt.checkpoint.saved_run import check_run_output, open_run_checkpoint
from towernmt.core.errors import DataError, SettingsError
from towernmt.dataflow.preparation.vocabulary_plan import automatic_size
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.text_lines import read_lines
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.extension import extended
from towernmt.dataflow.vocabulary.source_factors import FactoredVocabulary, factors_of
from towernmt.dataflow.vocabulary.source_text import SourceCounts, SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, same_pieces, save_vocabularies
from towernmt.run.assemble import model_with_sizes
from towernmt.run.directory import RunDirectory, model_from_settings

MAX_SENTENCES = 1_000_000
"""Maximum number of sentences of a side from which subwords are learned: a random sample of a larger text."""


def grow_vocabulary(run: RunDirectory, vocabulary: str | Path, output: str | Path,
                    checkpoint: str | None = None) -> Path:
    """Write a run with other vocabularies and the weights of a trained run.

    The embedding rows of subwords of both vocabularies are kept. That of a new subword is the mean of the rows of its
    old subwords, or as in an untrained model if it has none, and its softmax bias is lower. All other weights are kept.
    If the checkpoint has moving averages, they are used. To train the new run on data with its vocabulary, set
    `init.checkpoint=OUTPUT`.

    Args:
        run: the trained run.
        vocabulary: directory with the new vocabularies: `vocabulary/` of a run, or of prepared data.
        output: directory of the new run, which gets settings, vocabularies and one checkpoint.
        checkpoint: the checkpoint, as for `towernmt translate --checkpoint`; None for the best.

    Returns:
        The new checkpoint.

    Raises:
        SettingsError: `output` already contains a run, or the vocabularies do not fit the model.
        CheckpointError: the checkpoint is missing or damaged.
    """
    check_run_output(Path(output))        # before the checkpoint is read
    source, target, _ = load_vocabularies(vocabulary)
    return _write_grown_run(run, source, target, SourceText.load(vocabulary), output, checkpoint, str(vocabulary))


def extend_vocabulary(run: RunDirectory, source_text: str | Path, target_text: str | Path, output: str | Path,
                      size: int | None = None, checkpoint: str | None = None) -> Path:
    """Write a run whose vocabularies also have the subwords of a text, with the weights of a trained run.

    Old subwords keep their ids and their rows; see `grow_vocabulary` for the new ones. If both vocabularies of the run
    have the same subwords, so have the new ones.

    Args:
        run: the trained run.
        source_text: file with sentences in the source language, one per line.
        target_text: file with sentences in the target language; they need not be translations.
        output: directory of the new run, which gets settings, vocabularies and one checkpoint.
        size: number of ids of a vocabulary that is learned from a text, of which the new subwords are added; None:
            chosen by the text, as by `towernmt prepare`.
        checkpoint: see `grow_vocabulary`.

    Returns:
        The new checkpoint.

    Raises:
        SettingsError: `output` already contains a run, or the vocabularies cannot be extended.
        DataError: a text is missing, empty or not UTF-8.
        CheckpointError: the checkpoint is missing or damaged.
    """
    check_run_output(Path(output))
    source, target = run.vocabularies()
    if factors_of(source):
        raise SettingsError(f"{run.path}: a vocabulary with source factors cannot be extended by text: pass prepared "
                            "data as --vocabulary.")
    source_lines, target_lines = (_sample(file) for file in (source_text, target_text))
    facts = SourceCounts.of(source_lines).text()
    if source is target:        # learned only once
        new_source = new_target = _extended({"source and target": source}, source_lines + target_lines, size)[0]
    elif same_pieces(source, target):       # two models of one embedding table, which must stay the same subwords
        new_source, new_target = _extended({"source": source, "target": target}, source_lines + target_lines, size)
    else:
        [new_source] = _extended({"source": source}, source_lines, size)
        [new_target] = _extended({"target": target}, target_lines, size)
    return _write_grown_run(run, new_source, new_target, facts, output, checkpoint, f"{source_text} {target_text}")


def _extended(vocabularies: Mapping[str, Vocabulary], lines: Sequence[str], size: int | None) -> list[Vocabulary]:
    """Return vocabularies with the subwords of a text, and log how many tokens the text has before and after.

    Args:
        vocabularies: the vocabularies by the names of their languages; see `extended`.
        lines: the text.
        size: see `extend_vocabulary`.
    """
    extended_vocabularies = extended([*vocabularies.values()], lines, automatic_size(lines) if size is None else size)
    for (name, old), new in zip(vocabularies.items(), extended_vocabularies, strict=True):
        before, after = (sum(map(len, each.encode_batch(lines))) for each in (old, new))
        logger.info(f"{name}: {new.size - old.size:,} new subwords, {new.size:,} in total; the text has {after:,} "
                    f"tokens instead of {before:,}.")
    return extended_vocabularies


def _sample(file: str | Path) -> list[str]:
    """Return a random sample of the cleaned lines of a file, all if there are at most `MAX_SENTENCES`.

    Raises:
        DataError: the file cannot be read, or all of its lines are blank.
    """
    draw, sample = random.Random(1), list[str]()
    for number, line in enumerate(read_lines(file)):
        if number < MAX_SENTENCES:
            sample.append(clean(line))
        elif (index := draw.randrange(number + 1)) < MAX_SENTENCES:
            sample[index] = clean(line)
    if not any(sample):
        raise DataError(f"{file} has no text: pass a file with one sentence per line.")
    return sample


def _write_grown_run(run: RunDirectory, source: Vocabulary, target: Vocabulary, source_text: SourceText,
                     output: str | Path, checkpoint: str | None, origin: str) -> Path:
    """Write the run of `grow_vocabulary`.

    Args:
        run: see `grow_vocabulary`.
        source: the new source vocabulary.
        target: the new target vocabulary.
        source_text: facts about the new source text.
        output: see `grow_vocabulary`.
        checkpoint: see `grow_vocabulary`.
        origin: where the vocabularies are from, for messages.
    """
    settings = run.settings()
    is_shared = getattr(settings.model, "tie_embeddings", "none") == "all"
    if is_shared and not same_pieces(source, target):
        raise SettingsError(f"{origin}: source and target have different vocabularies, but the run has "
                            "model.tie_embeddings=all: prepare the data with --shared-vocab.")
    old, new = _by_name(*run.vocabularies()), _by_name(source, target)
    if len(old) != len(new):
        raise SettingsError(f"{origin} has {len(new) - 2} source factors and the run has {len(old) - 2}: prepare "
                            f"the data with {len(old) - 2}.")
    factors = [factor.size for factor in factors_of(source)]
    model = model_with_sizes(settings, source.size, target.size)
    if factors:
        model = dataclasses.replace(model, source_factor_vocab_sizes=factors)
    settings = dataclasses.replace(settings, model=model)
    if settings.search.shortlist:
        logger.info(f"The grown run has no shortlist, because {settings.search.shortlist} lacks the new subwords.")
        settings = dataclasses.replace(settings, search=dataclasses.replace(settings.search, shortlist=""))
    origins = {name: row_origins(old[name], new[name]) for name in new}
    if is_shared:
        origins["source"] = origins_in_both(origins["source"], origins["target"])   # of the table of both languages
    for name, rows in origins.items():
        logger.info(f"{name}: {sum(bool(row.ids) for row in rows):,} of {len(rows):,} subwords begin with rows of the "
                    "run.")
    opened = open_run_checkpoint(run, checkpoint)
    check_vocabulary_of(opened, run.vocabulary)
    grown = RunDirectory(output)
    with grown.making("towernmt grow"):
        save_vocabularies(source, target, grown.vocabulary)
        run.source_text().merged(source_text).save(grown.vocabulary)
        made_from = {"vocabulary": vocabulary_fingerprint(grown.vocabulary)}
        written = grow_checkpoint(opened, model_from_settings(settings), origins, grown.checkpoints,
                                  settings.data.seed, made_from)
        grown.save_settings(settings, provenance(made_from))
    return written


def _by_name(source: Vocabulary, target: Vocabulary) -> dict[str, Vocabulary]:
    """Return the vocabularies of both sides, without factors, and those of the source factors by name."""
    factors = {f"source_factor_{number}": factor for number, factor in enumerate(factors_of(source), 1)}
    return {"source": source.words if isinstance(source, FactoredVocabulary) else source, "target": target, **factors}
