"""tensorpack's layers in towernmt's trainer with tf_keras, and the error without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorpack.models as M
from tensorpack.callbacks import InferenceRunner, ScalarStats
from tensorpack.dataflow import BatchData, DataFromList, PrintData, RepeatedData
from tensorpack.tfutils import argscope
from tensorpack.tfutils.tower import TowerContext
from tensorpack.train import ModelDesc

from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source import GeneralQueueInput
from towernmt.train import SyncMultiGPUTrainer

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "tensorpack.md"


class Digits(ModelDesc):
    """A convolutional network that recognises whether the upper or the lower half of an image is bright."""

    def inputs(self):
        return [tf.TensorSpec([None, 8, 8], tf.float32, "image"), tf.TensorSpec([None], tf.int32, "label")]

    def build_graph(self, image, label):
        with argscope(M.Conv2D, kernel_size=3, activation=tf.nn.relu, filters=4):
            logits = (M.LinearWrap(image[..., None]).Conv2D("conv0").BatchNorm("norm0").MaxPooling("pool0", 2)
                      .Conv2D("conv1", activation=M.BNReLU).AvgPooling("pool1", 2).Dropout("dropout", rate=0.1)
                      .FullyConnected("fc", 2, activation=tf.identity)())
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=label)
        correct = tf.cast(tf.equal(tf.argmax(logits, 1, tf.int32), label), tf.float32)
        tf.reduce_mean(correct, name="accuracy")
        decay = M.regularize_cost("fc.*/W", M.l2_regularizer(1e-4), name="decay")
        return tf.add_n([tf.reduce_mean(loss), decay], name="cost")

    def optimizer(self):
        return tf1.train.AdamOptimizer(0.03)


def images(count: int) -> list:
    random = np.random.default_rng(5)
    points = []
    for number in range(count):
        image, label = random.uniform(0, 0.5, [8, 8]), number % 2
        image[4 * label:4 * label + 4] += 0.5
        points.append([image.astype(np.float32), label])
    return points


@pytest.mark.parametrize("towers", [1, 2])
def test_a_convolutional_network_of_tensorpacks_layers_learns(run, recorder, towers):
    training = BatchData(PrintData(DataFromList(images(32)), num=2), 16)
    trainer = run([InferenceRunner(BatchData(DataFromList(images(20), shuffle=False), 20), ScalarStats("accuracy"))],
                  model=Digits(), data=GeneralQueueInput(training), trainer=SyncMultiGPUTrainer(towers=towers),
                  steps=12, epochs=3, monitors=[recorder])
    accuracies = [value for _, name, value in recorder.scalars if name == "validation_accuracy"]
    assert accuracies[-1] >= 0.95
    names = {variable.op.name for variable in trainer.sess.graph.get_collection("trainable_variables")}
    assert {"conv0/W", "conv0/b", "norm0/gamma", "conv1/bn/beta", "fc/W"} <= names
    assert not any(name.startswith("tower") for name in names)


LAYERS = {
    "Conv2D": lambda x: M.Conv2D("layer", x, 3, 3), "FullyConnected": lambda x: M.FullyConnected("layer", x, 3),
    "Conv2DTranspose": lambda x: M.Conv2DTranspose("layer", x, 3, 3),
    "Deconv2D": lambda x: M.Deconv2D("layer", x, 3, 3),
    "BatchNorm": lambda x: M.BatchNorm("layer", x), "BNReLU": lambda x: M.BNReLU(x, "layer"),
    "BatchRenorm": lambda x: M.BatchRenorm("layer", x, rmax=1.1, dmax=0.1),
    "LayerNorm": lambda x: M.LayerNorm("layer", x), "InstanceNorm": lambda x: M.InstanceNorm("layer", x),
    "MaxPooling": lambda x: M.MaxPooling("layer", x, 2), "AvgPooling": lambda x: M.AvgPooling("layer", x, 2),
    "GlobalAvgPooling": lambda x: M.GlobalAvgPooling("layer", x),
    "FixedUnPooling": lambda x: M.FixedUnPooling("layer", x, 2),
    "PReLU": lambda x: M.PReLU("layer", x), "Dropout": lambda x: M.Dropout("layer", x, rate=0.5),
    "ConcatWith": lambda x: M.ConcatWith("layer", x, [x], 3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_trains_in_two_towers(run, name):
    class One(ModelDesc):
        def inputs(self):
            return [tf.TensorSpec([None, 4, 4, 4], tf.float32, "x")]

        def build_graph(self, x):
            weight = tf1.get_variable("w", [], initializer=tf1.ones_initializer())
            return tf.reduce_mean(tf.square(LAYERS[name](x * weight)), name="cost")

        def optimizer(self):
            return tf1.train.GradientDescentOptimizer(0.1)

    points = RepeatedData(DataFromList([[np.random.default_rng(3).normal(size=[4, 4, 4, 4])]]), -1)
    run([], model=One(), data=GeneralQueueInput(points), trainer=SyncMultiGPUTrainer(towers=2), epochs=1)


HELPERS = {"LinearWrap", "layer_register", "VariableHolder", "rename_tflayer_get_variable", "disable_layer_logging",
           "regularize_cost", "regularize_cost_from_collection", "l2_regularizer", "l1_regularizer"}


def test_what_surrounds_the_layers_works(graph):
    @M.layer_register()
    def Scale(x, factor):
        weight = tf1.get_variable("W", [], initializer=tf1.constant_initializer(factor),
                                  regularizer=M.l1_regularizer(0.5))
        result = x * weight
        result.variables = M.VariableHolder(W=weight)
        return result

    M.disable_layer_logging()
    x = tf1.placeholder(tf.float32, [None, 4])
    with TowerContext("", is_training=True):
        scaled = Scale("scale", x, 3.0)
        with M.rename_tflayer_get_variable():
            dense = tf1.layers.dense(scaled, 2, name="dense")
        penalty = M.regularize_cost("scale/W", M.l2_regularizer(2.0))
        of_collection = M.regularize_cost_from_collection()
    names = {variable.op.name for variable in tf1.trainable_variables()}
    assert names == {"scale/W", "dense/W", "dense/b"} and dense.shape[-1] == 2
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        # half of 2.0 * 3 ** 2, and 0.5 * |3|
        assert session.run([penalty, of_collection, scaled.variables.W]) == [9.0, 1.5, 3.0]


def test_the_manual_lists_every_name():
    text = DOCUMENT.read_text(encoding="utf-8").split("## tensorpack.models\n")[1].split("\n## ")[0]
    verdicts = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.M))
    assert set(verdicts) == set(M.__all__)
    assert {name for name, verdict in verdicts.items() if verdict.startswith("works")} == HELPERS | set(LAYERS)


def test_maxout_asks_for_a_fractional_number_of_units(graph):
    with pytest.raises(TypeError, match="float32 not in list of allowed values"):
        M.Maxout(tf1.placeholder(tf.float32, [None, 4]), 2)


LEGACY = """
from towernmt.train import SyncMultiGPUTrainer
import tensorflow as tf
print(tf.compat.v1.layers.Dense.__module__)
"""


@pytest.mark.processes
@pytest.mark.parametrize("setting, expected", [
    ("0", "Keras 3"),
    # Without a setting, the other tests of this file use tf_keras.
    *(pytest.param(setting, "tf_keras", marks=pytest.mark.slow) for setting in (None, "1"))])
def test_tf_keras_is_used_where_it_is_installed_unless_the_user_says_otherwise(setting, expected):
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    if setting is not None:
        environment["TF_USE_LEGACY_KERAS"] = setting
    done = subprocess.run([sys.executable, "-c", LEGACY], capture_output=True, text=True, env=environment)
    assert expected in done.stdout + done.stderr


@pytest.mark.processes
def test_a_program_that_imports_tensorflow_first_has_the_layers_too():
    environment = {key: value for key, value in os.environ.items() if key != "TF_USE_LEGACY_KERAS"}
    program = "import tensorflow, tensorpack\n" + LEGACY
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert "tf_keras" in done.stdout, done.stderr
