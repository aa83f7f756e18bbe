"""Pictures of attention, for all architectures, from a validation tower on the variables of the training."""

from __future__ import annotations

from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tensorpack.tfutils.tower import TrainTowerContext

import tests.models.tiny_models as tiny
from towernmt.callbacks.attention_pictures import AttentionPictures
from towernmt.core.tf_compat import tf, tf1
from towernmt.models.interface import NMTModel

SOURCES = ["9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9", "4 5 6 7 8 9", "7 7 4 4 5"]
TARGETS = ["9", "9 8 7 6 5", "10 11 12 4 5 6"]


class Numbers:
    streams = 1

    def encode_batch(self, lines):
        return [[int(word) for word in line.split()] for line in lines]

    def id_to_piece(self, id):
        return str(id)


class Monitors:
    def __init__(self):
        self.validations, self.images = [], {}

    def get_history(self, name):
        return self.validations if name == "validation_bleu" else []

    def put_summary(self, summary):
        for value in summary.value:
            self.images[value.tag] = value.image


def pictures(model, monkeypatch) -> tuple[Monitors, list[np.ndarray]]:
    """Return the summaries of one validation, and the drawn weights."""
    drawn: list[np.ndarray] = []
    from towernmt.callbacks import heat_map

    original = heat_map.heat_map
    monkeypatch.setattr(heat_map, "heat_map", lambda *arguments: drawn.append(arguments) or original(*arguments))
    with tf.Graph().as_default(), tf1.Session() as session:
        with TrainTowerContext(""):
            model.build_graph(*map(tf.constant, tiny.INPUTS))
        variables = [v.name for v in tf1.global_variables()]
        callback = AttentionPictures(model, SOURCES, TARGETS, Numbers(), Numbers())
        callback.trainer = SimpleNamespace(_callbacks=[], sess=session, monitors=Monitors(),
                                           global_step=7)
        callback._setup_graph()
        assert [v.name for v in tf1.global_variables()] == variables
        tiny.scramble(session)
        session.run([v.initializer for v in tf1.global_variables() if not v.trainable])
        callback._before_train()
        callback._trigger_step()
        assert not drawn                        # before the first validation
        callback.trainer.monitors.validations.append((7, 1.0))
        callback._trigger_step()
        callback._trigger_step()
    return callback.trainer.monitors, drawn


@pytest.mark.parametrize("name", ["transformer", pytest.param("rnnsearch", marks=pytest.mark.thorough), *(
    pytest.param(name, marks=pytest.mark.slow) for name in ("seq2seq", "seq2seq, fed", "rnnsearch, lstm", "convs2s"))])
def test_two_readable_sentences_are_drawn_with_their_pieces_at_each_validation(name, monkeypatch):
    monitors, drawn = pictures(tiny.make(name), monkeypatch)
    assert [(rows, columns) for _, rows, columns, _ in drawn] == [
        (["9", "8", "7", "6", "5", "</s>"], ["4", "5", "6", "7", "8", "9", "</s>"]),
        (["10", "11", "12", "4", "5", "6", "</s>"], ["7", "7", "4", "4", "5", "</s>"])]
    for weights, rows, columns, title in drawn:
        assert weights.shape == (len(rows), len(columns)) and "step 7" in title
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
        assert weights.std() > 1e-4             # with random values, the attention is not uniform
    assert sorted(monitors.images) == ["attention/0", "attention/1"]
    for image in monitors.images.values():
        picture = Image.open(BytesIO(image.encoded_image_string))
        assert (picture.format, picture.mode, picture.size) == ("PNG", "RGB", (image.width, image.height))


def test_a_model_without_attention_has_no_pictures(monkeypatch):
    class Plain(NMTModel):
        """A model without `decode_with_attention`."""

    assert not NMTModel.gives_attention.fget(Plain.__new__(Plain))      # type: ignore[attr-defined]
    monitors, drawn = pictures(tiny.make("seq2seq", attention="none"), monkeypatch)
    assert drawn == [] and monitors.images == {}


def test_without_pillow_there_are_no_pictures_and_one_message(monkeypatch):
    from tensorpack.utils import logger

    from towernmt.callbacks import attention_pictures

    said: list[str] = []
    monkeypatch.setattr(logger, "info", said.append)
    monkeypatch.setattr(attention_pictures, "find_spec", lambda name: None)
    _, drawn = pictures(tiny.make("convs2s"), monkeypatch)
    assert drawn == [] and len(said) == 1 and "towernmt[tensorboard]" in said[0]


def test_a_cell_is_the_darker_the_larger_its_weight():
    from towernmt.callbacks.heat_map import heat_map

    picture = heat_map(np.array([[0.0, 0.5], [1.0, np.nan]]), ["a", "b"], ["c", "d"], "title")
    pixels = np.asarray(Image.open(BytesIO(picture))).astype(int)
    grey = [tuple(colour) for colour in ([247, 251, 255], [8, 48, 107])]
    colours = {tuple(colour) for colour in pixels.reshape(-1, 3)}
    assert set(grey) <= colours      # the palest and the darkest colours occur
