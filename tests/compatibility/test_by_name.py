"""Each public name of tensorpack in docs/reference/tensorpack.md is used, also those that the page lists as failing."""

from __future__ import annotations

import importlib
import importlib.util
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorpack.callbacks as C
import tensorpack.input_source as I  # noqa: E741
import tensorpack.predict as P
import tensorpack.tfutils.sessinit as S
import tensorpack.train as T
from tensorpack.dataflow import DataFromList

from tests.waiting import PATIENCE
from towernmt.callbacks import CheckpointSaver
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.train import SyncMultiGPUTrainer

MODULES = ("callbacks", "train", "input_source", "predict", "tfutils.sessinit")
DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "tensorpack.md"
VERDICTS = ("works", "works, but", "does not work", "not tried")
WORKS: set[str] = set()
FAILS: set[str] = set()


def works(*names: str) -> Callable:
    """Mark a test with the names that it runs and that work."""
    WORKS.update(names)
    return lambda test: test


def fails(*names: str) -> Callable:
    """Mark a test with the names that it shows not to work."""
    FAILS.update(names)
    return lambda test: test


def listed(module: str) -> dict[str, tuple[str, str]]:
    """Return name: (verdict, note) of the page's table of a module."""
    text = DOCUMENT.read_text(encoding="utf-8").split(f"## tensorpack.{module}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|(.*)\|$", text, re.M)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (verdict, note.strip()) for name, verdict, note in rows}


@pytest.mark.parametrize("module", MODULES)
def test_the_document_lists_every_public_name_and_no_other(module):
    assert set(listed(module)) == set(importlib.import_module(f"tensorpack.{module}").__all__)
    for name, (verdict, note) in listed(module).items():
        assert verdict in VERDICTS and (verdict == "works" or note), name


def test_what_is_said_to_work_is_run_and_what_is_said_not_to_is_tried():
    rows = {name: verdict for module in MODULES for name, (verdict, _) in listed(module).items()}
    assert {name for name, verdict in rows.items() if verdict.startswith("works")} == WORKS
    assert {name for name, verdict in rows.items() if verdict == "does not work"} == FAILS
    assert set(importlib.import_module("tensorpack.callbacks.monitor").__all__) <= set(rows)


@pytest.fixture
def labelled(line):
    """A model with the tensors of classifiers: a label, and a vector of wrong predictions."""

    class Labelled(line):
        def build_graph(self, x):
            cost = super().build_graph(x)
            tf.identity(x, name="incorrect_vector")
            tf.cast(x, tf.int64, name="label")
            if not tf1.get_collection("mine"):
                count = tf1.get_variable("mine", [], initializer=tf1.zeros_initializer(), trainable=False)
                tf1.add_to_collection("mine", count.assign_add(1.0))
            return cost

    return Labelled()


def three() -> DataFromList:
    return DataFromList([[np.ones(4, np.float32)]] * 3, shuffle=False)


class Mine(C.Inferencer):
    def _get_fetches(self):
        return ["cost"]

    def _on_fetches(self, results):
        self.last = float(results[0])

    def _after_inference(self):
        return {"mine": self.last}


@works("Callback", "ProxyCallback", "CallbackFactory", "StartProcOrThread", "RunOp", "RunUpdateOps", "ProcessTensors",
       "DumpTensors", "DumpTensor", "CheckNumerics", "Callbacks", "CallbackToHook", "ScalarStats", "Inferencer",
       "ClassificationError", "BinaryClassificationStats", "InferenceRunnerBase", "InferenceRunner",
       "DataParallelInferenceRunner", "SendStat", "InjectShell", "EstimatedTimeLeft", "MonitorBase", "Monitors",
       "TFEventWriter", "JSONWriter", "ScalarPrinter", "SendMonitorData", "HyperParam", "GraphVarParam", "ObjAttrParam",
       "HyperParamSetter", "HumanHyperParamSetter", "ScheduledHyperParamSetter", "StatMonitorParamSetter",
       "HyperParamSetterWithFunc", "HostMemoryTracker", "ThroughputTracker", "ModelSaver", "MinSaver", "MaxSaver",
       "TensorPrinter", "ProgressBar", "SessionRunTimeout", "MovingAverageSummary", "MergeAllSummaries",
       "SimpleMovingAverage", "PeriodicTrigger", "PeriodicCallback", "EnableCallbackIf")
@fails("GPUMemoryTracker", "PeakMemoryTracker")     # which does no harm
@pytest.mark.parametrize("towers", [1, 2])
def test_tensorpacks_callbacks_and_monitors_work_in_one_run(run, labelled, recorder, log_directory, tmp_path, towers):

    class Settings:
        scheduled, function, stat = 0.0, 0.0, 8.0

    settings, costs, calls, threads = Settings(), [], [], []
    human, checkpoints = tmp_path / "hyper.txt", str(tmp_path / "models")
    human.write_text("learning_rate:0.5\n")
    count = lambda name: C.CallbackFactory(trigger=lambda _: calls.append(name))  # noqa: E731
    callbacks = [
        C.ProxyCallback(count("proxy")), C.StartProcOrThread(threading.Thread(target=lambda: threads.append(1))),
        C.RunOp(lambda: tf1.assign_add(tf1.get_variable("runs", [], initializer=tf1.zeros_initializer(),
                                                        trainable=False), 1.0, name="count_runs").op),
        C.RunUpdateOps("mine"), C.ProcessTensors(["cost:0"], costs.append), C.DumpTensors(["cost:0"]),
        C.DumpTensor(["product:0"]), C.CheckNumerics(),
        C.InferenceRunner(I.FeedInput(three(), infinite=False), [
            C.ScalarStats("cost"), Mine(), C.ClassificationError(), C.BinaryClassificationStats("label", "label")],
            device=-1),
        C.DataParallelInferenceRunner(three(), [C.ScalarStats("cost", prefix="parallel")], [0, 1]),
        C.InjectShell(str(tmp_path / "none")), C.EstimatedTimeLeft(),
        C.HumanHyperParamSetter(C.GraphVarParam("learning_rate"), str(human)),
        C.ScheduledHyperParamSetter(C.ObjAttrParam(settings, "scheduled"), [(1, 1.0), (2, 2.0)]),
        C.HyperParamSetterWithFunc(C.ObjAttrParam(settings, "function"), lambda epoch, _: 10.0 * epoch),
        C.StatMonitorParamSetter(C.ObjAttrParam(settings, "stat"), "plain", lambda x: x / 2, 100.0, 1),
        C.GPUMemoryTracker(), C.PeakMemoryTracker(), C.HostMemoryTracker(), C.ThroughputTracker(4),
        C.TensorPrinter(["cost"]), C.ProgressBar(["cost"]), C.SessionRunTimeout(600000),
        C.SimpleMovingAverage(["cost"], 2), C.PeriodicTrigger(count("steps"), every_k_steps=2),
        C.PeriodicCallback(count("epochs"), every_k_epochs=2), C.EnableCallbackIf(count("never"), lambda _: False),
        C.MergeAllSummaries(period=2, key="none"), C.ModelSaver(checkpoint_dir=checkpoints),
    ]
    behind = [C.MinSaver("plain", checkpoint_dir=checkpoints), C.MaxSaver("plain", checkpoint_dir=checkpoints),
              C.SendStat(f"echo {{plain:g}} >> {tmp_path}/sent", "plain")]
    monitors = [recorder, C.TFEventWriter(), C.JSONWriter(), C.ScalarPrinter(enable_step=True),
                C.SendMonitorData(f"touch {tmp_path}/monitored", ["plain"])]
    trainer = run(callbacks, model=labelled, steps=3, epochs=2, monitors=monitors,
                  trainer=SyncMultiGPUTrainer(towers=towers),
                  extra_callbacks=[C.MovingAverageSummary(), C.MergeAllSummaries(), C.RunUpdateOps(), *behind])

    assert isinstance(trainer._callbacks, C.Callbacks) and isinstance(trainer.monitors, C.Monitors)
    assert trainer.global_step == 6 and len(costs) == 6
    assert costs == pytest.approx([10, 9.5, 9, 8.5, 8, 7.5])       # the rate of the file applies from the first step
    assert calls.count("steps") == 3 and calls.count("proxy") == 2 and calls.count("epochs") == 1
    assert "never" not in calls and threads == [1]
    with tf.Graph().as_default():
        saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(checkpoints))
    assert saved.get_tensor("runs") in (2.0, 3.0) and saved.get_tensor("mine") == 6.0 * 1
    for kind in ("min", "max"):
        assert (tmp_path / "models" / f"{kind}-plain.index").is_file()
    assert (settings.scheduled, settings.function, settings.stat) == (2.0, 20.0, 2.0)
    for name in ("plain", "moving", "validation_cost", "mine", "validation_error", "parallel_cost",
                 "HostFreeMemory (GB)", "Throughput (samples/sec)"):
        assert recorder.steps_of(name)[:2] == [3, 6], name
    assert recorder.steps_of("val_precision") == [3, 6] and recorder.steps_of("cost/SMA") == [2, 4, 6]
    assert not any(name.startswith("PeakMemory") for _, name, _ in recorder.scalars)
    files = {path.name for path in log_directory.iterdir()}
    assert "stats.json" in files and any("tfevents" in name for name in files)
    assert sum(name.endswith(".npz") for name in files) == 6
    assert (tmp_path / "monitored").exists() and len((tmp_path / "sent").read_text().split()) == 2
    log = (log_directory / "log.log").read_text()
    for what in ("cost:0: ", "plain: ", "Estimated Time Left", "not available in TF2"):
        assert what in log, what


@fails("DumpTensorAsImage", "DumpParamAsImage", "HookToCallback", "TFLocalCLIDebugHook", "CometMLMonitor",
       "GPUUtilizationTracker", "GraphProfiler")
@pytest.mark.parametrize("make, error, needs", [
    (lambda: C.DumpTensorAsImage("w"), "cv2", "cv2"),
    (lambda: C.DumpParamAsImage("w"), "cv2", "cv2"),
    (lambda: C.HookToCallback(tf1.train.SessionRunHook()), "of tensorpack does not work with TensorFlow 2", None),
    (lambda: C.TFLocalCLIDebugHook(), "of tensorpack does not work with TensorFlow 2", None),
    (lambda: C.CometMLMonitor(), "comet_ml", "comet_ml"),
    (lambda: C.GPUUtilizationTracker([0]), "needs GPU", None),
    (lambda: C.GraphProfiler(), "no attribute 'RunOptions'", None),
])
def test_callbacks_of_tensorpack_that_do_not_work(run, log_directory, make, error, needs):
    _must_fail(lambda: run([make()], monitors=[]), error, needs)


def _must_fail(action, error, needs):
    if needs is not None and importlib.util.find_spec(needs) is not None:
        pytest.skip(f"{needs} is there")
    with pytest.raises(Exception, match=error):
        action()


@works("StopTraining", "Trainer", "TrainConfig", "DEFAULT_CALLBACKS", "DEFAULT_MONITORS", "launch_train_with_config",
       "ModelDesc", "ModelDescBase", "SingleCostTrainer", "TowerTrainer", "NoOpTrainer", "SimpleTrainer",
       "QueueInputTrainer", "SyncMultiGPUTrainer", "SyncMultiGPUTrainerReplicated",
       "SyncMultiGPUTrainerParameterServer", "AsyncMultiGPUTrainer")       # and test_own_batches.py
@pytest.mark.parametrize("trainer, costs", [
    (T.NoOpTrainer, [10.0, 10.0]),
    (T.SimpleTrainer, [9.0, 7.0]), (T.QueueInputTrainer, [9.0, 7.0]),
    (lambda: T.SyncMultiGPUTrainer([0, 1]), [9.0, 7.0]), (lambda: T.SyncMultiGPUTrainerReplicated(2), [9.0, 7.0]),
    (lambda: T.SyncMultiGPUTrainerParameterServer(2, ps_device="gpu"), [9.0, 7.0]),
    (lambda: T.AsyncMultiGPUTrainer(2), [9.0, 7.0]), (lambda: SyncMultiGPUTrainer(towers=2), [9.0, 7.0])])
def test_tensorpacks_trainers_train_with_its_default_callbacks(run, recorder, log_directory, trainer, costs):
    made = run([StopAtFive(), *T.DEFAULT_CALLBACKS()], epochs=9, ours=False, extra_callbacks=[], trainer=trainer,
               monitors=[recorder, *T.DEFAULT_MONITORS()])
    assert made.global_step == 5 and isinstance(made, (T.Trainer, T.TowerTrainer, T.SingleCostTrainer))
    assert [value for _, name, value in recorder.scalars if name == "plain"] == pytest.approx(costs, abs=1.01)


class StopAtFive(C.Callback):
    def _trigger_step(self):
        if self.global_step == 5:
            raise T.StopTraining("five")


@works("AutoResumeTrainConfig")
def test_tensorpacks_auto_resume_goes_on_with_our_trainer(line, ones_flow, log_directory):
    for epochs in (1, 3):
        with tf.Graph().as_default():
            trainer = SyncMultiGPUTrainer(towers=1)
            T.launch_train_with_config(T.AutoResumeTrainConfig(
                model=line(), data=I.QueueInput(ones_flow), callbacks=[C.ModelSaver()], steps_per_epoch=2,
                max_epoch=epochs, monitors=[C.JSONWriter()]), trainer)
        assert trainer.global_step == 2 * epochs


@fails("HorovodTrainer", "BytePSTrainer")
@pytest.mark.parametrize("make, package", [(T.HorovodTrainer, "horovod"), (T.BytePSTrainer, "byteps")])
def test_trainers_of_tensorpack_that_need_more(make, package):
    _must_fail(make, package, package)


@works("FeedInput", "FeedfreeInput", "QueueInput", "DummyConstantInput", "TensorInput", "StagingInput", "InputSource",
       "remap_input_source", "TFDatasetInput")      # the last in test_own_batches.py
@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("make, cost", [
    (I.FeedInput, 9.0), (I.QueueInput, 9.0), (lambda _: I.DummyConstantInput([[4]]), 0.0),
    (lambda _: I.TensorInput(lambda: [tf.ones([4])]), 9.0),
    (lambda flow: I.StagingInput(I.QueueInput(flow), device="/cpu:0"), 9.0),
    (lambda flow: I.remap_input_source(I.QueueInput(flow), ["x"]), 9.0), (GeneralQueueInput, 9.0)])
def test_tensorpacks_inputs_feed_our_trainer(run, recorder, ones_flow, make, cost, towers):
    data = make(ones_flow)
    assert isinstance(data, I.InputSource)
    run(data=data, monitors=[recorder], trainer=SyncMultiGPUTrainer(towers=towers), epochs=1)
    # the summary and the update of a step have no fixed order
    assert [value for _, name, value in recorder.scalars if name == "plain"][0] == pytest.approx(cost, abs=1.01)


@fails("BatchQueueInput", "ZMQInput")
@pytest.mark.parametrize("make, error, needs", [
    (lambda flow: I.BatchQueueInput(flow, 4), "no attribute 'FIFOQueue'", None),
    (lambda flow: I.ZMQInput("ipc://nowhere", 5), "zmq_ops", "zmq_ops"),
    (I.TFDatasetInput, "make_initializable_iterator", None)])
def test_inputs_of_tensorpack_that_do_not_work(run, ones_flow, make, error, needs):
    _must_fail(lambda: run(data=make(ones_flow), monitors=[]), error, needs)


@works("PlaceholderInput", "PredictorBase", "OnlinePredictor", "OfflinePredictor", "MultiThreadAsyncPredictor",
       "PredictConfig", "DatasetPredictorBase", "SimpleDatasetPredictor", "FeedfreePredictor")
def test_tensorpacks_predictors_compute_the_outputs(line):
    config = P.PredictConfig(model=line(), input_names=["x"], output_names=["product"])
    ones = np.ones(4, np.float32)
    with tf.Graph().as_default():
        offline = P.OfflinePredictor(config)
        assert isinstance(offline, (P.OnlinePredictor, P.PredictorBase)) and list(offline(ones)[0]) == [10.0] * 4
        with offline.sess.as_default():
            several = P.MultiThreadAsyncPredictor([offline], batch_size=1)
            several.start()
            assert several.put_task([np.float32(1)]).result(timeout=PATIENCE) == [10.0]
        for thread in several.threads:
            thread.stop()
    simple = P.SimpleDatasetPredictor(config, three())
    assert isinstance(simple, P.DatasetPredictorBase)
    assert [list(result[0]) for result in simple.get_result()] == [[10.0] * 4] * 3
    assert list(P.FeedfreePredictor(config, I.QueueInput(three()))()[0]) == [10.0] * 4
    placeholder = I.PlaceholderInput()
    with tf.Graph().as_default():
        placeholder.setup(line().inputs())
        assert len(placeholder.get_input_tensors()) == 1


@fails("MultiTowerOfflinePredictor", "DataParallelOfflinePredictor")
@pytest.mark.parametrize("make", [P.MultiTowerOfflinePredictor, P.DataParallelOfflinePredictor])
def test_predictors_of_tensorpack_that_do_not_work(line, make):
    config = P.PredictConfig(model=line(), input_names=["x"], output_names=["cost"])
    with tf.Graph().as_default(), pytest.raises(AttributeError, match="variable_scope"):
        make(config, [0, 1])


@works("MultiProcessDatasetPredictor")
@pytest.mark.slow
def test_tensorpacks_predictor_in_several_processes_of_a_program_without_a_session():
    program = """
import multiprocessing, os, sys
sys.path.insert(0, sys.argv[1])
from conftest import Line
from test_by_name import P, three
config = P.PredictConfig(model=Line(), input_names=["x"], output_names=["cost"])
print(list(P.MultiProcessDatasetPredictor(config, three(), 1, use_gpu=False).get_result()), flush=True)
for process in multiprocessing.active_children():
    process.kill()
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program, str(Path(__file__).parent)], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.stdout.count("10.0") == 3, done.stderr


@works("SessionInit", "ChainInit", "SaverRestore", "SaverRestoreRelaxed", "DictRestore", "JustCurrentSession",
       "get_model_loader", "SmartInit")
def test_tensorpacks_session_initialisers_read_our_checkpoints(run, tmp_path):
    run([CheckpointSaver(tmp_path)], monitors=[])
    last = str(tmp_path / "checkpoint")
    three_then = lambda init: S.ChainInit([S.DictRestore({"w": np.float32(3)}), init])  # noqa: E731
    inits = [(S.SaverRestore(last), 6.0), (S.SaverRestoreRelaxed(last), 6.0), (S.get_model_loader(last), 6.0),
             (S.SmartInit(last), 6.0), (S.SaverRestore(str(tmp_path / "step-4" / "model")), 6.0),
             (three_then(S.JustCurrentSession()), 3.0), (three_then(S.SaverRestore(last)), 6.0)]
    with tf.Graph().as_default():
        w = tf1.get_variable("w", [])
        with tf1.Session() as session:
            for init, value in inits:
                session.run(w.initializer)
                assert isinstance(init, S.SessionInit)
                init.init(session)
                assert session.run(w) == value


