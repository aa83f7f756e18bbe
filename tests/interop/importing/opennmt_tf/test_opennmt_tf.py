"""Compare imported OpenNMT-tf models with its formulas in NumPy, for random weights."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from towernmt.core.errors import CheckpointError, TowerNMTError
from towernmt.core.tf_compat import tf1
from towernmt.interop.foreign_model import ImportRequest
from towernmt.interop.opennmt_tf_import import find_opennmt_tf_files, opennmt_tf_search, read_opennmt_tf
from towernmt.predict.search.search_settings import SearchSettings

DEPTH, INNER, HEADS, LAYERS, DISTANCE = 8, 12, 2, 2, 2
SOURCE_WORDS, TARGET_WORDS = ([f"{letter}{number}" for number in range(9)] for letter in "st")
SPECIAL = ["<blank>", "<s>", "</s>"]


def random_values(shared: bool, relative: bool = False, post_norm: bool = False) -> dict[str, np.ndarray]:
    """Return random values by OpenNMT-tf's names, without prefix and suffix."""
    norm = "output_layer_norm" if post_norm else "input_layer_norm"
    rows = len(SPECIAL) + len(SOURCE_WORDS) + 1
    shapes: dict[str, tuple[int, ...]] = {"examples_inputter/features_inputter/embedding": (rows, DEPTH),
                                          "decoder/output_layer/bias": (rows,)}
    if not shared:
        shapes |= {"examples_inputter/labels_inputter/embedding": (rows, DEPTH),
                   "decoder/output_layer/kernel": (DEPTH, rows)}
    for stack, attentions in (("encoder", ["self_attention"]), ("decoder", ["self_attention", "attention/0"])):
        norms = [] if post_norm else [f"{stack}/layer_norm"]
        for layer in range(LAYERS):
            for scope in (f"{stack}/layers/{layer}/{attention}" for attention in attentions):
                norms.append(f"{scope}/{norm}")
                if relative and scope.endswith("self_attention"):
                    shapes |= {f"{scope}/layer/relative_position_{part}": (2 * DISTANCE + 1, DEPTH // HEADS)
                               for part in ("keys", "values")}
                for part in ("queries", "keys", "values", "output"):
                    shapes |= {f"{scope}/layer/linear_{part}/kernel": (DEPTH, DEPTH),
                               f"{scope}/layer/linear_{part}/bias": (DEPTH,)}
            scope = f"{stack}/layers/{layer}/ffn"
            norms.append(f"{scope}/{norm}")
            for part, (first, last) in (("inner", (DEPTH, INNER)), ("outer", (INNER, DEPTH))):
                shapes |= {f"{scope}/layer/{part}/kernel": (first, last), f"{scope}/layer/{part}/bias": (last,)}
        shapes |= {f"{norm}/{name}": (DEPTH,) for norm in norms for name in ("gamma", "beta")}
    random = np.random.default_rng(4)
    return {name: random.normal(0, 0.4, shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(path: Path, values: dict[str, np.ndarray], params: dict[str, Any] | None = None, **data: Any) -> Path:
    """Write a directory with a checkpoint, vocabularies and `data.yml`, and return the path of `data.yml`.

    Args:
        params: further `params` of `data.yml`.
        **data: further `data` of `data.yml`.
    """
    (path / "run").mkdir(parents=True)
    names = [f"model/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in values]
    names += ["optimizer/iter/.ATTRIBUTES/VARIABLE_VALUE", f"{names[0].removesuffix('/.ATTRIBUTES/VARIABLE_VALUE')}"
              "/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE"]
    arrays = [*values.values(), np.array(7), np.zeros(3, np.float32)]
    with tf1.Graph().as_default(), tf1.Session() as session:
        session.run(tf1.raw_ops.SaveV2(prefix=str(path / "run/ckpt-7"), tensor_names=names,
                                       shape_and_slices=[""] * len(names), tensors=[tf1.constant(a) for a in arrays]))
    (path / "run/checkpoint").write_text('model_checkpoint_path: "ckpt-7"\nall_model_checkpoint_paths: "ckpt-7"\n')
    shared = "examples_inputter/labels_inputter/embedding" not in values
    for side, words in (("source", SOURCE_WORDS), ("target", SOURCE_WORDS if shared else TARGET_WORDS)):
        (path / f"{side}.vocab").write_text("".join(f"{word}\n" for word in [*SPECIAL, *words]))
        data.setdefault(f"{side}_vocabulary", f"{side}.vocab")
    (path / "data.yml").write_text(yaml.safe_dump({"model_dir": "run", "data": data,
                                                   "params": {"beam_width": 3, **(params or {})}}))
    return path / "data.yml"


class Reference:
    """The forward pass of a Transformer with a bias on every map; positions count from 1, or are relative."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self.v = values
        self.relative = any("relative" in name for name in values)
        self.post_norm = "encoder/layer_norm/gamma" not in values

    def log_probs(self, source: list[int], target: list[int]) -> np.ndarray:
        """Return the log-probability of `target` in OpenNMT-tf's ids, which ends with </s>."""
        memory = self.stack("encoder", self.embed("features", source), None)
        output = self.stack("decoder", self.embed("labels", [1, *target[:-1]]), memory)
        table = self.v["examples_inputter/features_inputter/embedding"].T
        logits = output @ self.v.get("decoder/output_layer/kernel", table) + self.v["decoder/output_layer/bias"]
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        return logits[range(len(target)), target]

    def embed(self, side: str, ids: list[int]) -> np.ndarray:
        name = f"examples_inputter/{side}_inputter/embedding"
        table = self.v.get(name, self.v["examples_inputter/features_inputter/embedding"])
        if self.relative:
            return table[ids] * math.sqrt(DEPTH)
        rates = 10000.0 ** (-np.arange(DEPTH // 2) / (DEPTH // 2 - 1))
        angles = np.arange(1, len(ids) + 1)[:, None] * rates
        return table[ids] * math.sqrt(DEPTH) + np.concatenate([np.sin(angles), np.cos(angles)], 1)

    def stack(self, name: str, x: np.ndarray, memory: np.ndarray | None) -> np.ndarray:
        for layer in range(LAYERS):
            scope = f"{name}/layers/{layer}"
            x = self.sublayer(x, f"{scope}/self_attention", lambda y, at: self.attention(y, y, at, memory is not None))
            if memory is not None:
                x = self.sublayer(x, f"{scope}/attention/0", lambda y, at: self.attention(y, memory, at, False))
            x = self.sublayer(x, f"{scope}/ffn", lambda y, at: self.affine(
                np.maximum(self.affine(y, f"{at}/inner"), 0), f"{at}/outer"))
        return x if self.post_norm else self.norm(x, f"{name}/layer_norm")

    def sublayer(self, x: np.ndarray, scope: str, layer: Any) -> np.ndarray:
        if self.post_norm:
            return self.norm(x + layer(x, f"{scope}/layer"), f"{scope}/output_layer_norm")
        return x + layer(self.norm(x, f"{scope}/input_layer_norm"), f"{scope}/layer")

    def attention(self, x: np.ndarray, seen: np.ndarray, scope: str, causal: bool) -> np.ndarray:
        query, key, value = (self.affine(y, f"{scope}/linear_{part}").reshape(len(y), HEADS, -1).transpose(1, 0, 2)
                             for y, part in ((x, "queries"), (seen, "keys"), (seen, "values")))
        scores = query @ key.transpose(0, 2, 1)
        far = np.clip(np.arange(len(seen)) - np.arange(len(x))[:, None], -DISTANCE, DISTANCE) + DISTANCE
        keys, values = (self.v.get(f"{scope}/relative_position_{part}") for part in ("keys", "values"))
        if keys is not None:
            scores = scores + np.einsum("hqd,qkd->hqk", query, keys[far])
        scores = scores / math.sqrt(DEPTH // HEADS)
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -1e9)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = weights / weights.sum(-1, keepdims=True)
        context = weights @ value
        if values is not None:
            context = context + np.einsum("hqk,qkd->hqd", weights, values[far])
        return self.affine(context.transpose(1, 0, 2).reshape(x.shape), f"{scope}/linear_output")

    def affine(self, x: np.ndarray, scope: str) -> np.ndarray:
        return x @ self.v[f"{scope}/kernel"] + self.v[f"{scope}/bias"]

    def norm(self, x: np.ndarray, scope: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return (centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + 1e-3) * self.v[f"{scope}/gamma"]
                + self.v[f"{scope}/beta"])


@pytest.mark.thorough
@pytest.mark.parametrize(("shared", "end", "variant"), [
    pytest.param(False, False, {}, marks=pytest.mark.slow), (True, True, {}), (True, False, {"relative": True}),
    (False, True, {"post_norm": True})],
    ids=str)
def test_an_imported_model_gives_the_probabilities_of_opennmt_tfs_formulas(
        tmp_path: Path, shared: bool, end: bool, variant: dict[str, bool]) -> None:
    from towernmt.cli.main import main
    from towernmt.predict.scorer import Scorer

    values = random_values(shared, **variant)
    config = write_model(tmp_path / "model", values, **({"source_sequence_controls": {"end": True}} if end else {}))
    run = tmp_path / "run"
    assert main(["import", str(config), "--from", "opennmt-tf", "--output", str(run), "--heads", str(HEADS)]) == 0
    letter, unknown = "s" if shared else "t", len(SPECIAL) + len(SOURCE_WORDS)
    found = Scorer(run).score([("s3 s1 nobody s7", f"{letter}2 {letter}8"), ("s5", f"nobody {letter}0 {letter}4")],
                              per_token=True)
    reference, closing = Reference(values), [2] if end else []
    expected = [reference.log_probs([6, 4, unknown, 10, *closing], [5, 11, 2]),
                reference.log_probs([8, *closing], [unknown, 3, 7, 2])]
    for ours, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.log_probs, other, atol=1e-4)


def test_the_settings_follow_from_shapes_and_configuration(tmp_path: Path) -> None:
    model = read_opennmt_tf(ImportRequest(write_model(tmp_path / "model", random_values(False)), heads=HEADS))
    s = model.settings
    assert (s.hidden_size, s.filter_size, s.encoder_layers, s.decoder_layers) == (DEPTH, INNER, LAYERS, LAYERS)
    assert (s.tie_embeddings, s.first_position, s.source_end, s.norm_epsilon) == ("none", 1, False, 1e-3)
    assert model.search.beam_size == 3 and model.source.id_to_piece(4) == "s0"


@pytest.mark.parametrize(("params", "heads"), [({}, 0), ({"guided_alignment_type": None}, 0),
                                               ({"guided_alignment_type": "ce"}, 1)])
def test_the_first_head_aligns_words_if_the_configuration_says_that_it_was_guided(
        tmp_path: Path, params: dict[str, Any], heads: int) -> None:
    config = write_model(tmp_path / "model", random_values(False), params)
    s = read_opennmt_tf(ImportRequest(config, heads=HEADS)).settings
    assert (s.guided_alignment_layer, s.guided_alignment_heads) == (LAYERS, heads)


def test_the_search_is_that_of_the_configuration_with_the_defaults_of_opennmt_tf(tmp_path: Path) -> None:
    def search(name: str, **params: Any) -> SearchSettings:
        config = write_model(tmp_path / name, random_values(False), params)
        return read_opennmt_tf(ImportRequest(config, heads=HEADS)).search

    assert search("defaults") == SearchSettings(beam_size=3, length_penalty=0.0)
    expected = SearchSettings(beam_size=3, length_normalization="gnmt", length_penalty=0.2, min_length=4,
                              max_length_factor=0.0, max_length_constant=50)
    assert search("set", length_penalty=0.2, minimum_decoding_length=4, maximum_decoding_length=50) == expected
    vocabularies = tmp_path / "set/source.vocab", tmp_path / "set/target.vocab"
    without_config = ImportRequest(tmp_path / "set/run", vocabularies, heads=HEADS)
    assert read_opennmt_tf(without_config).search == SearchSettings()


@pytest.mark.parametrize(("params", "note"), [
    ({"coverage_penalty": 0.2}, "coverage_penalty=0.2 of the .* heads: pass --coverage-penalty 0.2 for"),
    ({"sampling_topk": 0}, "sampling_topk=0 of the .*: pass --sample --top-k 0 for samples"),
    ({"replace_unknown_target": True}, "replace_unknown_target=True of the .*: pass --replace-unknown to translate"),
    ({"length_penalty": -1}, "length_penalty=-1 of the .* search.length_penalty must be a number of at least 0"),
    ({"minimum_decoding_length": 1.5}, "search.min_length must be an integer of at least 0")])
def test_a_search_setting_that_a_run_cannot_contain_is_reported(params: dict[str, Any], note: str) -> None:
    search, (sentence,) = opennmt_tf_search(params)
    assert search == SearchSettings(length_penalty=0.0)
    assert re.search(note, sentence) and sentence.endswith(".")


@pytest.mark.parametrize("params", [{}, {"coverage_penalty": 0.0, "sampling_topk": 1, "decoding_noise": [],
                                         "replace_unknown_target": False}])
def test_a_setting_without_an_effect_is_not_reported(params: dict[str, Any]) -> None:
    assert opennmt_tf_search(params) == (SearchSettings(length_penalty=0.0), ())


def test_files_of_another_machine_are_found_by_their_names(tmp_path: Path) -> None:
    names = {f"{side}_vocabulary": f"/of/another/machine/{side}.vocab" for side in ("source", "target")}
    config = write_model(tmp_path / "model", random_values(False), **names)
    config.write_text(config.read_text().replace("model_dir: run", "model_dir: /of/another/machine/run"))
    files = find_opennmt_tf_files(ImportRequest(config))
    assert files.vocabularies == (config.parent / "source.vocab", config.parent / "target.vocab")
    assert files.checkpoint == config.parent / "run" / "ckpt-7"


@pytest.mark.parametrize(("damage", "said"), [
    ("heads", "--heads"), ("lacking", "is missing"), ("more", "attention/1"), ("cut", "checkpoint"),
    ("vocabulary", "vocabulary"), ("start", "source_sequence_controls"), ("none", "no OpenNMT-tf checkpoint"),
    ("controls", "`source_sequence_controls` is not a mapping"), ("params", "`params` is not a mapping"),
    ("bytes", "source.vocab: not UTF-8 text"), ("yaml", "expected ',' or ']', but got '<stream end>'")])
def test_what_cannot_be_imported_is_one_sentence(tmp_path: Path, damage: str, said: str) -> None:
    values = random_values(False)
    if damage == "lacking":
        del values["encoder/layers/1/ffn/layer/inner/bias"]
    if damage == "more":
        values["decoder/layers/0/attention/1/layer/linear_keys/bias"] = np.zeros(DEPTH, np.float32)
    controls = {"start": {"start": True}, "controls": ["start"]}.get(damage)
    config = write_model(tmp_path / "model", values, **({"source_sequence_controls": controls} if controls else {}))
    if damage == "params":
        config.write_text(config.read_text().replace("params:\n  beam_width: 3", "params: 3"))
    if damage == "yaml":
        config.write_text("model_dir: [run")
    if damage == "bytes":
        (tmp_path / "model/source.vocab").write_bytes(b"<blank>\n<s>\n</s>\n\xff\n")
    if damage == "cut":
        file = next((tmp_path / "model/run").glob("*.index"))
        file.write_bytes(file.read_bytes()[:50])
    if damage == "vocabulary":
        (tmp_path / "model/source.vocab").write_text("a\nb\n")
    if damage == "none":
        (tmp_path / "model/run/checkpoint").unlink()
    with pytest.raises(TowerNMTError) as caught:
        read_opennmt_tf(ImportRequest(config, heads=None if damage == "heads" else HEADS))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_of_weights_that_ends_too_early_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    config = write_model(tmp_path / "model", random_values(False))
    file = next((tmp_path / "model/run").glob("*.data-*"))
    content = file.read_bytes()
    for size in (0, len(content) // 2):
        file.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match="ckpt-7: cannot read the variable .*: the checkpoint is damaged"):
            read_opennmt_tf(ImportRequest(config, heads=HEADS))


def test_the_name_of_a_folder_is_not_a_pattern(tmp_path: Path) -> None:
    write_model(tmp_path / "plain", random_values(False))
    folder = (tmp_path / "plain").rename(tmp_path / "de-en [v2]*?")
    model = read_opennmt_tf(ImportRequest(folder / "data.yml", heads=HEADS))
    for name, value in read_opennmt_tf(ImportRequest(folder.rename(tmp_path / "plain") / "data.yml", heads=HEADS)
                                       ).weights.items():
        np.testing.assert_array_equal(model.weights[name], value)


def test_a_file_next_to_the_configuration_comes_before_the_one_at_its_old_path(tmp_path: Path) -> None:
    """The old path may by now be the vocabulary of another model."""
    names = {f"{side}_vocabulary": str(tmp_path / f"trained/{side}.vocab") for side in ("source", "target")}
    config = write_model(tmp_path / "copy", random_values(False), **names)
    for name in names.values():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("other")
    assert find_opennmt_tf_files(ImportRequest(config)).vocabularies == (
        config.parent / "source.vocab", config.parent / "target.vocab")
    for side in ("source", "target"):
        (config.parent / f"{side}.vocab").unlink()
    assert [str(path) for path in find_opennmt_tf_files(ImportRequest(config)).vocabularies] == [*names.values()]
