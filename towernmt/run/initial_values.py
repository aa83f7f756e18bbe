"""The first values of a new run's parameters: those of another run, and vectors for its embeddings."""

from __future__ import annotations

from tensorpack.tfutils.sessinit import ChainInit, SessionInit

from towernmt.checkpoint.held import HeldCheckpoint, again_if_gone
from towernmt.checkpoint.pretrained import PretrainedEmbeddings
from towernmt.checkpoint.provenance import check_vocabulary_of
from towernmt.checkpoint.saved_run import SavedRun
from towernmt.checkpoint.start_from import StartFrom, initial_checkpoint
from towernmt.core.errors import SettingsError
from towernmt.dataflow.order.training_data import TrainingData
from towernmt.run.directory import differing_vocabulary
from towernmt.run.settings import InitSettings


def initial_values(settings: InitSettings, data: TrainingData) -> ChainInit | None:
    """What sets the parameters of a new run when training begins; None: each begins at random.

    Raises:
        SettingsError: there is no such run, or its vocabulary is another: the ids of `data` would be other words.
    """
    files = {"source": settings.source_embeddings, "target": settings.target_embeddings}
    files = {side: file for side, file in files.items() if file}
    inits: list[SessionInit] = []
    if settings.checkpoint:
        inits.append(_start_from(settings, data))
    if files:
        vocabularies = {"source": data.source_vocabulary, "target": data.target_vocabulary}
        inits.append(PretrainedEmbeddings(files, vocabularies))
    return ChainInit(inits) if inits else None


def _start_from(settings: InitSettings, data: TrainingData) -> StartFrom:
    def opened() -> tuple[SavedRun, HeldCheckpoint]:
        run, prefix = initial_checkpoint(settings.checkpoint)
        return run, HeldCheckpoint(prefix)

    run, held = again_if_gone(opened)
    run.check_vocabulary()
    check_vocabulary_of(held, run.vocabulary)
    other = differing_vocabulary(run.vocabulary, data)
    if other:
        raise SettingsError(f"init.checkpoint={settings.checkpoint}: that run has another vocabulary than "
                            f"{data.directory} ({other} differs): prepare the data with the files in "
                            f"{run.vocabulary}, or pass text with --vocabulary {run.vocabulary}.")
    return StartFrom(held, settings.new, settings.left_out)
