"""The aligner, `towernmt align` and aligned translations, on a model that has learnt to copy."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tensorpack.tfutils.tower import PredictTowerContext, TrainTowerContext

from tests.predict.word_data import SIZE, WORDS, WordData
from towernmt.checkpoint.checkpoint_files import write_checkpoint
from towernmt.cli.main import main
from towernmt.core.errors import SettingsError
from towernmt.core.tf_compat import tf1
from towernmt.dataflow.batches.batch import pad_sentences
from towernmt.dataflow.vocabulary.base import BOS, EOS, UNK
from towernmt.models.interface import NMTModel
from towernmt.models.layers.randomness import set_seed
from towernmt.models.model_settings import Seq2SeqSettings, TransformerSettings
from towernmt.models.seq2seq import Seq2Seq
from towernmt.models.transformer import Transformer
from towernmt.optim.optimizer import make_optimizer
from towernmt.optim.optimizer_settings import OptimizerSettings
from towernmt.predict.aligner import Aligner
from towernmt.predict.translator import Translator
from towernmt.run.directory import RunDirectory
from towernmt.run.run_settings import settings_of_model

pytestmark = pytest.mark.thorough

LINES = ["w3 w1 w2 w7 w5", "", "w4 w9", "w8 w12 w11", "w15 w6 w1 w2 w3 w0 w9"]


def write_run(path: Path, model: NMTModel, steps: int, learnt: float = 0.0) -> Path:
    """Write a run of a model that was trained to copy sentences.

    Args:
        steps: maximum number of steps.
        learnt: training ends when the losses of the last five batches are below this value. The number of steps differs
            between runs, because threads add numbers in different orders.
    """
    run = RunDirectory(path)
    run.begin(settings_of_model(model), WordData())  # type: ignore[arg-type]
    random = np.random.default_rng(1)
    with tf1.Graph().as_default():
        set_seed(1)
        inputs = [tf1.placeholder(spec.dtype, spec.shape) for spec in model.inputs()]
        with TrainTowerContext(""):
            loss = model.build_graph(*inputs)
            train = model.optimizer().minimize(loss)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            losses: list[float] = []
            while len(losses) < steps and not (len(losses) >= 5 and max(losses[-5:]) < learnt):
                sizes = random.integers(2, 8, 32)
                ids = [(random.choice(len(WORDS) + 1, size, replace=False) + UNK).tolist() for size in sizes]
                arrays = [*pad_sentences(ids), *pad_sentences(ids)]
                feed = dict(zip(inputs, [*arrays, np.float32(arrays[3].sum())], strict=True))
                losses.append(session.run([loss, train], feed)[0])
            write_checkpoint(tf1.train.Saver(), session, run.checkpoints, 1,
                             {"step": 1, "position": None, "callbacks": {}})
    return path


@pytest.fixture(scope="module")
def model() -> Transformer:
    model = Transformer(TransformerSettings(
        hidden_size=32, filter_size=64, heads=1, encoder_layers=1, decoder_layers=1, source_vocab_size=SIZE,
        target_vocab_size=SIZE, residual_dropout=0.0, embedding_dropout=0.0, label_smoothing=0.0))
    model.make_optimizer = partial(make_optimizer, OptimizerSettings(learning_rate=5e-3), 1.0)
    return model


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory, model: Transformer) -> Path:
    return write_run(tmp_path_factory.mktemp("copier"), model, 3000, learnt=0.002)


@pytest.fixture(scope="module")
def aligner(copier: Path) -> Aligner:
    return Aligner(copier, device="cpu", batch_tokens=4096, window=2)


def diagonal(line: str) -> str:
    return " ".join(f"{i}-{i}" for i in range(len(line.split())))


def test_a_model_that_has_learnt_to_copy_aligns_the_diagonal_whatever_the_batches(
        copier: Path, aligner: Aligner) -> None:
    for one in (Aligner(copier, device="cpu", batch_tokens=1, window=2), aligner):
        found = one.align(zip(LINES, LINES, strict=True))
        assert [alignment.pharaoh() for alignment in found] == list(map(diagonal, LINES))
    assert aligner.align((LINES[0], "")).weights.shape == (0, 5) and aligner.align(("", "w1")).links() == []


def test_its_translations_are_linked_as_they_are_aligned(copier: Path, aligner: Aligner) -> None:
    translator = Translator(copier, 2, attention=True, device="cpu", engine="graph")
    found = [best for best, *_ in translator.translate_nbest(LINES)]
    assert [best.text for best in found] == LINES
    for best, expected in zip(found, aligner.align(zip(LINES, LINES, strict=True)), strict=True):
        assert (best.alignment is None) == (best.text == "")
        if best.alignment is not None:
            assert best.alignment.pharaoh() == expected.pharaoh()
            np.testing.assert_allclose(best.alignment.weights, expected.weights, atol=1e-5)


def test_a_source_prefix_reaches_the_model_and_has_no_alignment(copier: Path, tmp_path: Path) -> None:
    """The model copies the prefix, too. A model of several languages would not."""
    (tmp_path / "in").write_text("w1 w2\n")
    files = [f"--input={tmp_path}/in", f"--output={tmp_path}/out", f"--alignments={tmp_path}/links"]
    assert main(["translate", f"--model={copier}", "--beam=2", "--source-prefix=w5 w6", *files]) == 0
    assert (tmp_path / "out").read_text() == "w5 w6 w1 w2\n"
    links = dict(reversed(link.split("-")) for link in (tmp_path / "links").read_text().split())
    assert (links["2"], links["3"]) == ("0", "1")
    arguments = [f"--source={tmp_path}/in", f"--reference={tmp_path}/out", "--source-prefix=w5 w6", "--beam=2"]
    assert main(["evaluate", f"--model={copier}", "--metrics", "chrf", *arguments]) == 0


def test_unknown_words_are_copied_or_translated_by_a_table_where_that_is_asked_for(copier: Path, tmp_path: Path
                                                                                   ) -> None:
    (tmp_path / "in").write_text("w1 zebra w2\n")
    (tmp_path / "table").write_text("zebra Zebra 0.9\n")
    for asked, expected in (([], "<unk>"), (["--replace-unknown"], "zebra"),
                            ([f"--replace-unknown={tmp_path}/table"], "Zebra")):
        files = [f"--input={tmp_path}/in", f"--output={tmp_path}/out"]
        assert main(["translate", f"--model={copier}", "--beam=2", *files, *asked]) == 0
        assert (tmp_path / "out").read_text() == f"w1 {expected} w2\n"


def test_the_weights_are_the_attention_of_teacher_forcing_for_every_pair(
        copier: Path, aligner: Aligner, model: Transformer) -> None:
    pairs = [("w1 w2 w3", "w9 w3"), ("w7", "w1 w2 w3 w4 w5")]
    found = aligner.align(pairs)
    with tf1.Graph().as_default(), PredictTowerContext(""):
        source, length, target_in = (tf1.placeholder("int32", shape) for shape in ([None, None], [None], [None, None]))
        hidden, attention = model.decode_with_attention(model.encode(source, length), target_in)
        model.output_projection().logits(hidden)
        words = WordData().source_vocabulary
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, str(copier / "checkpoints/step-1/model"))
            for (one, other), alignment in zip(pairs, found, strict=True):
                ids, out = [*words.encode(one), EOS], words.encode(other)
                expected = session.run(attention, {source: [ids], length: [len(ids)], target_in: [[BOS, *out[:-1]]]})
                np.testing.assert_allclose(alignment.weights, expected[0, :, :-1], atol=1e-5)


def run_align(tmp_path: Path, *arguments: str) -> list[str]:
    output = tmp_path / "links"
    assert main(["align", f"--output={output}", *arguments]) == 0
    return output.read_text().splitlines()


def test_the_command_writes_a_line_a_pair_and_the_error_rate(copier: Path, tmp_path: Path,
                                                             capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES))
    gold = [diagonal(line) for line in LINES]
    gold[2] = "0-0 1?0"
    (tmp_path / "gold").write_text("".join(f"{line}\n" for line in gold))
    files = [f"--model={copier}", f"--source={tmp_path}/text", f"--target={tmp_path}/text"]
    assert run_align(tmp_path, *files, f"--gold={tmp_path}/gold") == list(map(diagonal, LINES))
    # 17 links, 16 sure ones, 16 found of either kind
    assert "AER = 3.03  precision = 94.12  recall = 100.00  (5 pairs, 17 links)" in capfd.readouterr().err
    both = run_align(tmp_path, *files, f"--reverse-model={copier}", "--symmetrise=intersection")
    assert both == list(map(diagonal, LINES))
    first = json.loads(run_align(tmp_path, *files, "--json", "--threshold=0.5")[0])
    assert first["source"] == first["target"] == LINES[0].split() and first["links"] == [[i, i] for i in range(5)]
    assert np.diag(first["weights"]).min() > 0.5


def test_the_command_joins_and_rates_links_that_are_there_already(tmp_path: Path, capfd: pytest.CaptureFixture[str]
                                                                  ) -> None:
    (tmp_path / "one").write_text("0-0 1-1\n0-0\n")
    (tmp_path / "other").write_text("0-0 1-2\n\n")
    (tmp_path / "gold").write_text("1-1 2p3\n1-1\n")
    files = [f"--links={tmp_path}/one", f"--reverse-links={tmp_path}/other"]
    assert run_align(tmp_path, *files) == ["0-0 1-1 1-2", "0-0"]
    assert run_align(tmp_path, *files, "--symmetrise=intersection", f"--gold={tmp_path}/gold", "--gold-from=1"
                     ) == ["0-0", ""]
    assert "AER = 33.33  precision = 100.00  recall = 50.00" in capfd.readouterr().err
    (tmp_path / "gold").write_text("1-1\n")
    assert main(["align", f"--links={tmp_path}/one", f"--gold={tmp_path}/gold"]) == 1
    assert "gold has 1 lines, but there are more pairs" in capfd.readouterr().err


@pytest.mark.parametrize("arguments, message", [
    ([], "Pass --model to align"), (["--model=x"], "pass --source and --target"),
    (["--links=x", "--symmetrise=union"], "pass --reverse-model"), (["--links=x", "--json"], "single model"),
    (["--links=x", "--threshold=0"], "--threshold 0.0: pass"),
    (["--links=x", "--threshold=0.5"], "--threshold: these options are about a model, but --links"),
    (["--links=x", "--checkpoint=last", "--last-weights", "--trust-code", "--batch-tokens=9", "--cpu"],
     "--checkpoint, --trust-code, --last-weights, --batch-tokens, --cpu: these options are about a model"),
    (["--links=x", "--reverse-model=y", "--source=s", "--target=t", "--checkpoint=last"],
     "--checkpoint last is a checkpoint of --model: leave it out"),
    (["--links=x", "--source=s"], "--source and --target are text for a model, but --links"),
    (["--links=x", "--gold-from=1"], "--gold-from 1 needs reference alignments: pass --gold"),
    (["--links=x", "--gold-from=0"], "--gold-from 0 needs reference alignments: pass --gold"),
])
def test_arguments_that_cannot_work_are_refused(arguments: list[str], message: str,
                                                capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["align", *arguments]) == 1
    assert message in capfd.readouterr().err


@pytest.mark.parametrize("piped", ["source", "target"])
def test_a_pipe_is_refused_as_text_for_two_models_because_each_reads_it(
        piped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for side in ("source", "target"):
        os.mkfifo(side) if side == piped else Path(side).write_text("w1\n")
    assert main(["align", "--model=x", "--reverse-model=y", "--source=source", "--target=target"]) == 1
    assert f"{piped}: a pipe or a device can be read only once" in capfd.readouterr().err


def test_a_model_without_attention_is_refused_with_its_name(tmp_path: Path) -> None:
    mute = Seq2Seq(Seq2SeqSettings(embedding_size=4, hidden_size=4, layers=1, attention="none", source_vocab_size=SIZE,
                                   target_vocab_size=SIZE))
    with pytest.raises(SettingsError, match=r"its model \(Seq2Seq\) has no attention to align words by"):
        Aligner(write_run(tmp_path, mute, 0))
