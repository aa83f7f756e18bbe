"""Initial values of the parameters of a new run: those of another run, embeddings from files or by co-occurrence."""

from __future__ import annotations

from tensorpack.tfutils.sessinit import ChainInit, SessionInit

from towernmt.checkpoint.checkpoint_reader import OpenCheckpoint, repeat_if_removed
from towernmt.checkpoint.embedding_rows import PretrainedEmbeddings
from towernmt.checkpoint.records import check_vocabulary_of
from towernmt.checkpoint.restore import StartFrom, initial_checkpoint
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.core.errors import SettingsError
from towernmt.core.world import current_world
from towernmt.dataflow.batches.mixed_data import MixedData
from towernmt.dataflow.batches.training_data import TrainingData
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.run.cooccurrence import CooccurrenceEmbeddings
from towernmt.run.directory import differing_vocabulary
from towernmt.run.run_settings import InitSettings


def initial_values(settings: InitSettings, data: TrainingData, seed: int) -> ChainInit | None:
    """Return a `SessionInit` that sets the parameters of a new run when training begins; None for random values.

    Args:
        settings: the settings of the initial values.
        data: training data.
        seed: seed of the run.

    Raises:
        SettingsError: the initial run is missing, or its vocabulary differs from that of `data`; or co-occurrence
            cannot be counted.
    """
    files = {"source": settings.source_embeddings, "target": settings.target_embeddings}
    files = {side: file for side, file in files.items() if file}
    initializers: list[SessionInit] = []
    if settings.embeddings == "cooccurrence":
        initializers.append(_by_cooccurrence(settings, data, seed))
    if settings.checkpoint:
        initializers.append(_start_from(settings, data))
    if files:
        vocabularies = {"source": data.source_vocabulary, "target": data.target_vocabulary}
        initializers.append(PretrainedEmbeddings(files, vocabularies))
    return ChainInit(initializers) if initializers else None


def _by_cooccurrence(settings: InitSettings, data: TrainingData, seed: int) -> CooccurrenceEmbeddings:
    option = "init.embeddings=cooccurrence"
    if settings.checkpoint:
        raise SettingsError(f"{option} would replace the embeddings of init.checkpoint={settings.checkpoint}: leave "
                            "out one of them.")
    if not isinstance(data, (PreparedData, MixedData)):
        raise SettingsError(f"{option} counts the pairs of prepared data, but {data.directory} is unprepared text: "
                            "prepare it, or use init.embeddings=random.")
    if current_world().processes > 1:
        raise SettingsError(f"{option} supports one process, because the vectors of several may differ slightly: use "
                            "init.embeddings=random.")
    return CooccurrenceEmbeddings(data, seed)


def _start_from(settings: InitSettings, data: TrainingData) -> StartFrom:
    def open_checkpoint() -> tuple[SavedRun, OpenCheckpoint]:
        run, prefix = initial_checkpoint(settings.checkpoint)
        return run, OpenCheckpoint(prefix)

    run, checkpoint = repeat_if_removed(open_checkpoint)
    run.check_vocabulary()
    check_vocabulary_of(checkpoint, run.vocabulary)
    differing_file = differing_vocabulary(run.vocabulary, data)
    if differing_file:
        raise SettingsError(f"init.checkpoint={settings.checkpoint}: the vocabulary of that run differs from "
                            f"that of {data.directory} ({differing_file} differs): prepare the data with the files in "
                            f"{run.vocabulary}, or pass text with --vocabulary {run.vocabulary}.")
    return StartFrom(checkpoint, settings.new, settings.left_out)
