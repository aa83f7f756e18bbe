"""The program of the README: its arguments are prepared data and the directory of a run, repeatedly."""

from __future__ import annotations

import sys

from towernmt.callbacks import CheckpointSaver, NaNGuard, Progress
from towernmt.callbacks.learning_rate import LearningRateSchedule
from towernmt.callbacks.schedules import inverse_square_root
from towernmt.dataflow import Batches, BatchSettings, PreparedData
from towernmt.input_source import GeneralQueueInput
from towernmt.models import Transformer, TransformerSettings
from towernmt.predict import Translator
from towernmt.run import RunDirectory, settings_of_model
from towernmt.train import SyncMultiGPUTrainer, TrainConfig

from tensorpack.train import launch_train_with_config  # isort: skip

data, run = PreparedData(sys.argv[1]), sys.argv[2]
size = data.source_vocabulary.size
model = Transformer(TransformerSettings(source_vocab_size=size, target_vocab_size=size, hidden_size=16, filter_size=16,
                                        heads=2, encoder_layers=1, decoder_layers=1))
RunDirectory(run).begin(settings_of_model(model), data)
config = TrainConfig(
    model=model, data=GeneralQueueInput(Batches(data, BatchSettings(batch_tokens=256)), feeders=2),
    callbacks=[NaNGuard(), LearningRateSchedule(inverse_square_root(learning_rate=1e-3, warmup_steps=1000)),
               CheckpointSaver(f"{run}/checkpoints", every_steps=500), Progress(2)],
    max_epoch=1)
launch_train_with_config(config, SyncMultiGPUTrainer(towers=1))
print("translated:", Translator(run, beam_size=1).translate("ba be bi"))
