"""Create a run with another vocabulary from a trained run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tensorpack.utils import logger

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint, repeat_if_removed
from towernmt.checkpoint.embedding_rows import common_rows, grow_checkpoint
from towernmt.checkpoint.records import check_vocabulary_of, provenance, vocabulary_fingerprint
from towernmt.checkpoint.saved_run import check_run_output
from towernmt.core.errors import SettingsError
from towernmt.dataflow.vocabulary.base import Vocabulary
from towernmt.dataflow.vocabulary.source_factors import factors_of
from towernmt.dataflow.vocabulary.source_text import SourceText
from towernmt.dataflow.vocabulary.vocabulary_files import load_vocabularies, save_vocabularies
from towernmt.run.assemble import model_with_sizes
from towernmt.run.directory import RunDirectory, model_from_settings


def grow_vocabulary(run: RunDirectory, vocabulary: str | Path, output: str | Path,
                    checkpoint: str | None = None) -> Path:
    """Write a run with another vocabulary and the weights of a trained run.

    The embedding rows of tokens in both vocabularies are kept, and those of new tokens are initialised as in an
    untrained model. All other weights are kept. If the checkpoint has moving averages, they are used. To train the new
    run on data with the new vocabulary, set `init.checkpoint=OUTPUT`.

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
    grown = RunDirectory(output)
    check_run_output(grown.path)        # before the checkpoint is read
    source, target, shared = load_vocabularies(vocabulary)
    settings = run.settings()
    if getattr(settings.model, "tie_embeddings", "none") == "all" and not shared:
        raise SettingsError(f"{vocabulary}: source and target have separate vocabularies, but the run has "
                            "model.tie_embeddings=all: prepare the data with --shared-vocab.")
    old, new = _by_name(*run.vocabularies()), _by_name(source, target)
    if len(old) != len(new):
        raise SettingsError(f"{vocabulary} has {len(new) - 2} source factors and the run has {len(old) - 2}: prepare "
                            f"the data with {len(old) - 2}.")
    factors = [factor.size for factor in factors_of(source)]
    model = model_with_sizes(settings, source.size, target.size)
    if factors:
        model = dataclasses.replace(model, source_factor_vocab_sizes=factors)
    settings = dataclasses.replace(settings, model=model)
    rows = {name: common_rows(old[name], new[name]) for name in new}
    for side, indices in rows.items():
        logger.info(f"{side}: {int((indices >= 0).sum())} of {len(indices)} rows are kept.")
    opened = repeat_if_removed(lambda: OpenCheckpoint(run.checkpoint(checkpoint)))
    check_vocabulary_of(opened, run.vocabulary)
    with grown.making("towernmt grow"):
        save_vocabularies(source, target, grown.vocabulary)
        run.source_text().merged(SourceText.load(vocabulary)).save(grown.vocabulary)
        made_from = {"vocabulary": vocabulary_fingerprint(grown.vocabulary)}
        written = grow_checkpoint(opened, model_from_settings(settings), rows, grown.checkpoints, settings.data.seed,
                                  made_from)
        grown.save_settings(settings, provenance(made_from))
    return written


def _by_name(source: Vocabulary, target: Vocabulary) -> dict[str, Vocabulary]:
    """Return both vocabularies and those of the source factors by name."""
    factors = {f"source_factor_{number}": factor for number, factor in enumerate(factors_of(source), 1)}
    return {"source": source, "target": target, **factors}
