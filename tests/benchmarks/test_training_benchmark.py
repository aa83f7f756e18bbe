"""The benchmark of training: its workload, its line of JSON, and the computations of its steps."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
import train
import train_work
from machine import matmul_gflops
from overheads_startup import growth, phases_of
from overheads_steps import Stepper
from train_run import Plan
from train_work import FixedBatches, draw, make_batch, make_model, twice_each

from towernmt.core.tf_compat import tf1

pytestmark = pytest.mark.thorough

KEYS = ("peer", "mode", "config", "batch_tokens", "dtype", "tgt_tok_s", "src_tgt_tok_s", "steps_s", "peak_rss_mb",
        "gflops", "matmul_gflops", "mfu", "wait_share", "step_to_bare")
SMALL = {"hidden_size": 8, "heads": 2, "filter_size": 16, "encoder_layers": 1, "decoder_layers": 1}


def test_drawn_batches_are_full_and_the_same_each_time() -> None:
    batches = draw(200, 300, pairs=400)
    for batch, again in zip(batches, draw(200, 300, pairs=400), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(batch.arrays(), again.arrays(), strict=True))
    assert sum(len(batch.source) for batch in batches) == 400
    for batch in batches:
        longest = max(batch.source.shape[1], batch.target.shape[1])
        assert len(batch.source) * longest <= 300
        for ids, lengths in ((batch.source, batch.source_length), (batch.target, batch.target_length)):
            assert ids.max() < 200 and lengths.max() <= 99
            for row, length in zip(ids, lengths, strict=True):
                assert row[length - 1] == train_work.EOS and (row[:length - 1] >= train_work.FIRST_WORD).all()
                assert (row[length:] == train_work.PAD).all()
    mean = np.concatenate([batch.source_length for batch in draw(200, 300, pairs=4000)]).mean() - 1
    assert 21 < mean < 24


def test_the_target_can_be_learnt_from_the_source() -> None:
    translations: dict[int, int] = {}
    for batch in draw(60, 300, pairs=300):
        for source, target in zip(batch.source, batch.target, strict=True):
            words = [int(w) - 4 for w in source if w > 3]
            translated = [w for w in words if w % 10 != 1] or words[:1]
            at = 0
            for word in translated:
                if at < np.count_nonzero(target > 3):
                    assert translations.setdefault(word, int(target[at])) == target[at]
                at += 2 if word % 10 == 0 else 1
    assert len(set(translations.values())) == len(translations) > 40


def test_pairs_see_the_same_batches() -> None:
    assert twice_each(3, 2) == [3, 3, 4, 4]
    assert twice_each(1, 2, cycle=2) == [1, 2, 1, 2, 3, 4, 3, 4]
    batches = [make_batch(np.full((1, n), 2), np.full((1, n), 2)) for n in (1, 2, 3)]
    lengths = [int(b.source_length[0]) for _, b in islice(FixedBatches(batches, [0, 1, 1, 5]).read(), 5)]
    assert lengths == [1, 2, 2, 3, 1]


@pytest.mark.parametrize("update_cycle", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_run_prints_one_line_with_every_figure(update_cycle: int, monkeypatch: pytest.MonkeyPatch,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(train_work.VOCABULARY, "tiny", 50)
    monkeypatch.setattr("machine.SIZE", {"cpu": 64})
    monkeypatch.setattr(train, "make_model", lambda *chosen: make_model(*chosen, **SMALL))
    train.main(["--batch-tokens", "100", "--warm", "1", "--steps", "2", "--pairs", "2",
                "--update-cycle", str(update_cycle)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith('{"peer"')
    record = json.loads(lines[0])
    for key in KEYS:
        assert record[key] is not None, key
    assert record["tgt_tok_s"] < record["src_tgt_tok_s"]
    used = [b for _, b in islice(FixedBatches(draw(50, 100)).read(), update_cycle, 3 * update_cycle)]
    target = sum(int(b.target_length.sum()) for b in used)
    assert record["tgt_tok_s"] * record["wall_s"] == pytest.approx(target, rel=1e-4)
    assert record["mfu"] == pytest.approx(record["gflops"] / record["matmul_gflops"], rel=1e-2, abs=1e-3)


def test_the_machines_rate_is_that_of_products_that_were_made() -> None:
    # What TensorFlow leaves out of a graph takes microseconds: tens of thousands.
    assert 0 < matmul_gflops("float32", tf1.ConfigProto(), size=1024, repeats=2) < 8000


def test_forward_and_backward_passes_compute_every_product_and_change_nothing() -> None:
    batches = draw(50, 100, pairs=20)
    model = make_model("transformer", "tiny", source_vocab_size=50, target_vocab_size=50, **SMALL)
    stepper = Stepper(model, batches, Plan())
    session = stepper.trainer.sess
    with session.graph.as_default():
        weights = tf1.trainable_variables()
        before = session.run(weights)
        stepper.forward_and_backward(2)
        assert all(np.array_equal(a, b) for a, b in zip(before, session.run(weights), strict=True))
        trace = tf1.RunMetadata()
        session.run(stepper.gradients, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE),
                    run_metadata=trace)
        stepper.update()
        assert not np.array_equal(before[0], session.run(weights)[0])
        products = len([op for op in session.graph.get_operations() if op.type == "MatMul"])
    ran = [node.timeline_label for device in trace.step_stats.dev_stats for node in device.node_stats]
    # "name = Op(inputs)"; some operations were fused with the operations after them.
    assert len([label for label in ran if "MatMul(" in label and "BatchMatMul" not in label]) == products == 38
    stepper.close()


def test_gradients_are_found_in_float16_too() -> None:
    gradients = []
    for precision in ("float32", "float16"):
        model = make_model("transformer", "tiny", source_vocab_size=50, target_vocab_size=50, **SMALL)
        stepper = Stepper(model, draw(50, 100, pairs=20), Plan(precision))
        gradients.append(len(stepper.gradients))
        stepper.close()
    assert gradients[0] == gradients[1] > 0


def test_phases_end_at_their_lines() -> None:
    log = [(2.0, "[1] Building training tower 1 of 1 on /cpu:0 ...\n"), (3.5, "Setup callbacks graph ...\n"),
           (4.0, "Creating the session ...\n"), (4.5, "Graph Finalized.\n"), (5.5, "Start Epoch 1 ...\n"),
           (7.0, "step 1, epoch 1, loss 9\n"), (9.0, "Trained 1 steps\n")]
    assert phases_of(log) == {"imports": 2.0, "towers": 1.5, "callbacks_graph": 0.5, "session": 0.5,
                              "first_checkpoint": 1.0, "first_step": 1.5}
    with pytest.raises(SystemExit, match="first_step"):
        phases_of(log[:5])


def test_linear_growth_is_distinguished_from_faster_growth() -> None:
    depths = (1, 2, 4, 6, 8, 10, 12)
    linear = growth({n: 0.3 + 0.25 * n for n in depths})
    assert linear == {"layer_s": 0.25, "linearity": 1.0}
    assert growth({n: 0.1 * n * n for n in depths})["linearity"] > 2
