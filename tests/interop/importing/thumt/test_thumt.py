"""Compare imported THUMT models with THUMT's formulas in NumPy, for random weights."""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towernmt.core.errors import TowerNMTError
from towernmt.core.tf_compat import tf1
from towernmt.interop.foreign_model import ImportRequest
from towernmt.interop.thumt_import import HyperParameters, find_vocabularies, read_thumt

DEPTH, INNER, HEADS, LAYERS, DISTANCE = 8, 12, 2, 2, 2
SPECIAL = ["<pad>", "<eos>", "<unk>"]
SOURCE_WORDS, TARGET_WORDS = ([*SPECIAL, *(f"{letter}{number}" for number in range(9))] for letter in "st")
USUAL: dict[str, Any] = {
    "pad": "<pad>", "bos": "<eos>", "eos": "<eos>", "unk": "<unk>", "append_eos": False, "hidden_size": DEPTH,
    "filter_size": INNER, "num_heads": HEADS, "num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS,
    "attention_dropout": 0.0, "residual_dropout": 0.1, "relu_dropout": 0.2, "label_smoothing": 0.1,
    "attention_key_channels": 0, "attention_value_channels": 0, "layer_preprocess": "none",
    "layer_postprocess": "layer_norm", "multiply_embedding_mode": "sqrt_depth",
    "shared_embedding_and_softmax_weights": False, "shared_source_target_embedding": False}
PRE_NORM = {"layer_preprocess": "layer_norm", "layer_postprocess": "none"}
SHARED = {"shared_embedding_and_softmax_weights": True, "shared_source_target_embedding": True}
RELATIVE = {"position_info_type": "relative", "max_relative_dis": DISTANCE}
VARIANTS = {"as by default": {}, "one table": SHARED, "pre-norm": {**PRE_NORM, "multiply_embedding_mode": "none"},
            "relative positions": {**RELATIVE, "shared_embedding_and_softmax_weights": True},
            "pre- and post-norm": {"layer_preprocess": "layer_norm", **SHARED, "multiply_embedding_mode": ""}}


def random_values(more: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return random values by THUMT's names, without the scope."""
    params, rows = {**USUAL, **more}, len(SOURCE_WORDS)
    shapes: dict[str, tuple[int, ...]] = {"bias": (DEPTH,)}
    if params["shared_source_target_embedding"]:
        shapes["weights"] = (rows, DEPTH)
    else:
        shapes |= {"source_embedding": (rows, DEPTH), "target_embedding": (rows, DEPTH)}
    if not params["shared_embedding_and_softmax_weights"]:
        shapes["softmax"] = (rows, DEPTH)
    norms = []
    for stack, attentions in (("encoder", ["self_attention"]), ("decoder", ["self_attention", "encdec_attention"])):
        for layer in range(LAYERS):
            for name in (*attentions, "feed_forward"):
                scope = f"{stack}/layer_{layer}/{name}"
                count = (params["layer_preprocess"], params["layer_postprocess"]).count("layer_norm")
                norms += [f"{scope}/layer_norm", f"{scope}/layer_norm_1"][:count]
            for name in attentions:
                scope = f"{stack}/layer_{layer}/{name}/multihead_attention"
                parts = {"qkv_transform": 3} if name == "self_attention" else {"q_transform": 1, "kv_transform": 2}
                for part, width in {**parts, "output_transform": 1}.items():
                    shapes |= {f"{scope}/{part}/matrix": (DEPTH, width * DEPTH),
                               f"{scope}/{part}/bias": (width * DEPTH,)}
                if params.get("position_info_type") == "relative" and name == "self_attention":
                    shapes |= {f"{scope}/rpr_{side}": (2 * DISTANCE + 1, DEPTH // HEADS) for side in "kv"}
            scope = f"{stack}/layer_{layer}/feed_forward/ffn_layer"
            for part, (first, last) in (("input_layer", (DEPTH, INNER)), ("output_layer", (INNER, DEPTH))):
                shapes |= {f"{scope}/{part}/linear/matrix": (first, last), f"{scope}/{part}/linear/bias": (last,)}
        norms += [f"{stack}/layer_norm"] * (params["layer_preprocess"] == "layer_norm")
    shapes |= {f"{norm}/{name}": (DEPTH,) for norm in norms for name in ("scale", "offset")}
    random = np.random.default_rng(5)
    return {name: random.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(path: Path, values: dict[str, np.ndarray], more: dict[str, Any], **training: Any) -> Path:
    """Write a directory like that of THUMT's training, with further variables in the checkpoint."""
    path.mkdir(parents=True)
    others = {"global_step": np.array(7), "transformer/bias/Adam": np.zeros(DEPTH, np.float32),
              "transformer/losses_avg/bias": np.zeros(1, np.float32), "beta1_power": np.float32(0.9)}
    arrays = {**{f"transformer/{name}": value for name, value in values.items()}, **others}
    with tf1.Graph().as_default(), tf1.Session() as session:
        session.run(tf1.raw_ops.SaveV2(
            prefix=str(path / "model.ckpt-7"), tensor_names=list(arrays), shape_and_slices=[""] * len(arrays),
            tensors=[tf1.constant(array) for array in arrays.values()]))
    (path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/train/model.ckpt-7"\n')
    for side, words in (("source", SOURCE_WORDS), ("target", TARGET_WORDS)):
        (path / f"{side}.txt").write_text("".join(f"{word}\n" for word in words))
    (path / "transformer.json").write_text(json.dumps({**USUAL, **more}))
    usual = {"model": "transformer", "vocab": ["/elsewhere/source.txt", "/elsewhere/target.txt"], "beam_size": 3,
             "decode_alpha": 0.8, "decode_length": 20, "num_heads": 99}
    (path / "params.json").write_text(json.dumps({**usual, **training}))
    return path


class Reference:
    """The forward pass of THUMT's Transformer; positions count from 0, and the decoder's first input is zeros."""

    def __init__(self, values: dict[str, np.ndarray], more: dict[str, Any]) -> None:
        self.v, self.params = values, {**USUAL, **more}
        self.scale = math.sqrt(DEPTH) if self.params["multiply_embedding_mode"] == "sqrt_depth" else 1.0

    def log_probs(self, source: list[int], target: list[int]) -> np.ndarray:
        """Return the log-probability of `target` in THUMT's ids; source and target end with <eos>."""
        read = self.v.get("weights", self.v.get("source_embedding"))
        written = self.v.get("weights", self.v.get("target_embedding"))
        memory = self.stack("encoder", self.placed(read[source] * self.scale + self.v["bias"]), None)
        shifted = np.concatenate([np.zeros([1, DEPTH]), written[target[:-1]] * self.scale])
        logits = self.stack("decoder", self.placed(shifted), memory) @ self.v.get("softmax", written).T
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        return logits[range(len(target)), target]

    def placed(self, x: np.ndarray) -> np.ndarray:
        if self.params.get("position_info_type") == "relative":
            return x
        rates = 10000.0 ** (-np.arange(DEPTH // 2) / (DEPTH // 2 - 1))
        angles = np.arange(len(x))[:, None] * rates
        return x + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def stack(self, name: str, x: np.ndarray, memory: np.ndarray | None) -> np.ndarray:
        for layer in range(LAYERS):
            scope = f"{name}/layer_{layer}"
            x = self.sublayer(f"{scope}/self_attention", x, lambda y, at: self.self_attention(at, y, name == "decoder"))
            if memory is not None:
                x = self.sublayer(f"{scope}/encdec_attention", x, lambda y, at: self.cross_attention(at, y, memory))
            x = self.sublayer(f"{scope}/feed_forward", x, self.feed_forward)
        return self.norm(f"{name}/layer_norm", x) if self.params["layer_preprocess"] == "layer_norm" else x

    def sublayer(self, scope: str, x: np.ndarray, layer: Any) -> np.ndarray:
        before, after = (self.params[f"layer_{name}process"] == "layer_norm" for name in ("pre", "post"))
        x = x + layer(self.norm(f"{scope}/layer_norm", x) if before else x, scope)
        return self.norm(f"{scope}/layer_norm{'_1' if before else ''}", x) if after else x

    def feed_forward(self, x: np.ndarray, scope: str) -> np.ndarray:
        hidden = np.maximum(self.linear(f"{scope}/ffn_layer/input_layer/linear", x), 0)
        return self.linear(f"{scope}/ffn_layer/output_layer/linear", hidden)

    def self_attention(self, scope: str, x: np.ndarray, causal: bool) -> np.ndarray:
        query, key, value = np.split(self.linear(f"{scope}/multihead_attention/qkv_transform", x), 3, 1)
        return self.attention(scope, query, key, value, causal)

    def cross_attention(self, scope: str, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        query = self.linear(f"{scope}/multihead_attention/q_transform", x)
        key, value = np.split(self.linear(f"{scope}/multihead_attention/kv_transform", memory), 2, 1)
        return self.attention(scope, query, key, value, False)

    def attention(self, scope: str, query: np.ndarray, key: np.ndarray, value: np.ndarray, causal: bool) -> np.ndarray:
        """Compute relative attention for each head and query, like the formula."""
        size, outputs = DEPTH // HEADS, np.zeros_like(query)
        keys = self.v.get(f"{scope}/multihead_attention/rpr_k")
        values = self.v.get(f"{scope}/multihead_attention/rpr_v")
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            for i, q in enumerate(query[:, part]):
                seen = range(i + 1) if causal else range(len(key))
                far = [min(max(i - j, -DISTANCE), DISTANCE) + DISTANCE for j in seen]
                ks = [key[j, part] + (keys[far[j]] if keys is not None else 0) for j in seen]
                vs = [value[j, part] + (values[far[j]] if values is not None else 0) for j in seen]
                scores = np.array([q @ k for k in ks]) / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                outputs[i, part] = weights / weights.sum() @ np.array(vs)
        return self.linear(f"{scope}/multihead_attention/output_transform", outputs)

    def linear(self, scope: str, x: np.ndarray) -> np.ndarray:
        return x @ self.v[f"{scope}/matrix"] + self.v[f"{scope}/bias"]

    def norm(self, scope: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return (centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-6) * self.v[f"{scope}/scale"]
                + self.v[f"{scope}/offset"])


@pytest.mark.thorough
@pytest.mark.parametrize("variant", [
    pytest.param(variant, marks=[pytest.mark.slow] * (variant in ("pre-norm", "one table"))) for variant in VARIANTS])
def test_an_imported_model_gives_the_probabilities_of_thumts_formulas(tmp_path: Path, variant: str) -> None:
    from towernmt.cli.main import main
    from towernmt.predict.scorer import Scorer

    more = VARIANTS[variant]
    values, run = random_values(more), tmp_path / "run"
    model = write_model(tmp_path / "model", values, more)
    assert main(["import", str(model), "--from", "thumt", "--output", str(run)]) == 0
    found = Scorer(run).score([("s3 s1 nobody s7", "t2 t8"), ("s5", "nobody t0 t4")], per_token=True)
    reference = Reference(values, more)
    expected = [reference.log_probs([6, 4, 2, 10, 1], [5, 11, 1]), reference.log_probs([8, 1], [2, 3, 7, 1])]
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.log_probs, other, atol=1e-4)


@pytest.mark.thorough
def test_an_imported_model_is_packaged_and_exported_and_translates_the_same(tmp_path: Path) -> None:
    from towernmt.cli.main import main
    from towernmt.predict.translator import Translator

    run, package = tmp_path / "run", tmp_path / "model.towernmt.zip"
    model = write_model(tmp_path / "model", random_values(SHARED), SHARED)
    assert main(["import", str(model), "--from", "thumt", "--output", str(run)]) == 0
    assert main(["package", "--model", str(run), "--output", str(package), "--languages", "de-en", "--licence",
                 "CC0-1.0"]) == 0
    assert zipfile.is_zipfile(package)
    lines = ["s3 s1 s7", "s5 s5", "nobody"]
    expected = Translator(run, engine="graph").translate(lines)
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    assert main(["translate", "--model", str(package), "--engine", "ctranslate2", "--input", str(tmp_path / "lines"),
                 "--output", str(tmp_path / "translations")]) == 0
    assert (tmp_path / "translations").read_text().splitlines() == expected


def test_settings_and_search_are_those_of_its_hyper_parameters(tmp_path: Path) -> None:
    model = read_thumt(ImportRequest(write_model(tmp_path / "model", random_values(RELATIVE), RELATIVE)))
    s, search = model.settings, model.search
    assert (s.hidden_size, s.filter_size, s.heads, s.encoder_layers, s.decoder_layers) == (
        DEPTH, INNER, HEADS, LAYERS, LAYERS)
    assert (s.start, s.preprocess, s.postprocess, s.tie_embeddings) == ("zero", "", "drn", "none")
    assert (s.positions, s.max_distance, s.residual_dropout, s.activation_dropout) == ("relative", DISTANCE, 0.1, 0.2)
    assert (search.beam_size, search.length_penalty) == (3, 0.8)
    assert (search.max_length_factor, search.max_length_constant) == (1.0, 20)
    assert model.source.id_to_piece(4) == "s0" and model.target.id_to_piece(4) == "t0"


def test_a_vocabulary_next_to_the_model_comes_before_one_in_the_working_directory(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "model", random_values({}), {}, vocab=["source.txt", "data/target.txt"])
    working_directory = tmp_path / "other" / "directory"
    for name in ("source.txt", "data/target.txt"):
        (working_directory / name).parent.mkdir(parents=True, exist_ok=True)
        (working_directory / name).write_text("of another model\n")
    monkeypatch.chdir(working_directory)
    request = ImportRequest(model)
    assert find_vocabularies(request, HyperParameters(model)) == (model / "source.txt", model / "target.txt")
    (model / "target.txt").unlink()
    assert find_vocabularies(request, HyperParameters(model))[1] == Path("data/target.txt")


def test_a_vocabulary_next_to_the_model_comes_before_one_at_the_path_of_the_training(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    names = [str(old / "source.txt"), str(old / "target.txt")]
    for name in names:
        Path(name).write_text("of another model\n")
    model = write_model(tmp_path / "model", random_values({}), {}, vocab=names)
    request = ImportRequest(model)
    assert find_vocabularies(request, HyperParameters(model)) == (model / "source.txt", model / "target.txt")
    (model / "target.txt").unlink()
    assert find_vocabularies(request, HyperParameters(model))[1] == old / "target.txt"


def test_a_best_checkpoint_has_its_hyper_parameters_in_the_folder_above(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", random_values({}), {})
    (model / "eval").mkdir()
    for file in (*model.glob("model.ckpt-7*"), model / "checkpoint"):
        file.rename(model / "eval" / file.name)
    assert read_thumt(ImportRequest(model / "eval")).settings.hidden_size == DEPTH
    assert read_thumt(ImportRequest(model / "eval" / "model.ckpt-7")).settings.hidden_size == DEPTH


def test_eos_that_is_appended_to_the_vocabulary(tmp_path: Path) -> None:
    more = {"append_eos": True}
    model = write_model(tmp_path / "model", random_values(more), more)
    for side in ("source", "target"):
        words = [word for word in (model / f"{side}.txt").read_text().split() if word != "<eos>"]
        (model / f"{side}.txt").write_text("".join(f"{word}\n" for word in words))
    embedding = read_thumt(ImportRequest(model)).weights["transformer/target_embedding"]
    theirs = random_values(more)["target_embedding"]
    np.testing.assert_array_equal(embedding[2], theirs[-1])     # EOS, by our id, is its last row


@pytest.mark.parametrize(("damage", "said"), [
    ({"attention_key_channels": 4}, "attention_key_channels is 4"), ({"layer_preprocess": "batch"}, "layer_preprocess"),
    ({"multiply_embedding_mode": "log"}, "multiply_embedding_mode"), ({"hidden_size": "wide"}, "hidden_size"),
    ({"num_decoder_layers": 1}, "decoder/layer_1"), ({"num_encoder_layers": 3}, "encoder/layer_2"),
    ({"filter_size": 13}, "shape"), ({"unk": "<what>"}, "<what>")])
def test_hyper_parameters_that_do_not_fit_are_named(tmp_path: Path, damage: dict[str, Any], said: str) -> None:
    model = write_model(tmp_path / "model", random_values({}), damage)
    with pytest.raises(TowerNMTError) as caught:
        read_thumt(ImportRequest(model))
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("damage", "said"), [
    ("lacking", "is missing"), ("cut", "checkpoint"), ("words", "12 words"), ("twice", "s1 occurs twice"),
    ("no vocabulary", "--vocabularies"), ("not told", "--vocabularies"), ("json", "cannot read"),
    ("rnnsearch", "rnnsearch.json"), ("no json", "does not contain transformer.json"), ("none", "no THUMT checkpoint"),
    ("torch", "PyTorch")])
def test_what_cannot_be_imported_is_one_sentence(tmp_path: Path, damage: str, said: str) -> None:
    values = random_values({})
    if damage == "lacking":
        del values["encoder/layer_1/feed_forward/ffn_layer/input_layer/linear/bias"]
    model = write_model(tmp_path / "model", values, {}, **({"vocab": ["", ""]} if damage == "not told" else {}))
    path, vocabulary, settings = model, model / "source.txt", model / "transformer.json"
    if damage == "cut":
        file = next(model.glob("*.index"))
        file.write_bytes(file.read_bytes()[:50])
    elif damage == "words":
        values["source_embedding"] = np.zeros([14, DEPTH], np.float32)
        path = write_model(tmp_path / "other", values, {})
    elif damage == "twice":
        vocabulary.write_text(vocabulary.read_text().replace("s3", "s1"))
    elif damage == "no vocabulary":
        vocabulary.unlink()
    elif damage == "json":
        settings.write_text("{")
    elif damage == "rnnsearch":
        settings.rename(model / "rnnsearch.json")
    elif damage == "no json":
        settings.unlink()
    elif damage == "none":
        (model / "checkpoint").unlink()
    elif damage == "torch":
        path = model / "model-7.pt"
    with pytest.raises(TowerNMTError) as caught:
        read_thumt(ImportRequest(path))
    assert said in str(caught.value) and "\n" not in str(caught.value)
