"""fairseq, OpenNMT-tf, Marian and a PyTorch loop for `quality.py`, each with its own recipe and its own search."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from quality_peers import BEAM, HERE, LONGEST, Marked, Ours, Plan
from quality_text import PARTS, read_lines

from towernmt.core.errors import SettingsError
from towernmt.core.files import write_text
from towernmt.dataflow.preparation.prepared_data import PreparedData


class Fairseq(Marked):
    """fairseq with the recipe for IWSLT'14 German-English in its examples/translation/README.md.

    The recipe keeps the best checkpoint by validation. Here it is selected from the marks so far, and this validation
    does not count as training time.
    """

    name, modules, option = "fairseq", ("fairseq", "torch"), "--fairseq-python"
    driver = ("quality_fairseq.py",)

    RECIPE = ("--arch transformer_iwslt_de_en --optimizer adam --adam-betas (0.9,0.98) --clip-norm 0.0 --lr 5e-4 "
              "--lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 "
              "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096")
    SHAPES = {"recipe": "--share-decoder-input-output-embed",
              "tiny": "--share-all-embeddings " + " ".join(
                  f"--{side}-layers 3 --{side}-embed-dim 256 --{side}-ffn-embed-dim 1024 --{side}-attention-heads 4"
                  for side in ("encoder", "decoder"))}

    def __init__(self, plan: Plan, variant: str, program: str | None, further_options: Sequence[str] = ()) -> None:
        super().__init__(plan, variant, program, further_options)
        self._data = plan.work / "fairseq"

    def prepare(self) -> None:
        self._binarise(self._data, *(f"--{part}pref={self.plan.pieces / part}" for part in PARTS))

    def _binarise(self, folder: Path, *arguments: str) -> None:
        """Write subwords as fairseq's binary data to `folder`, unless they are there."""
        if not (folder / "finished").exists():
            self._run([self.python, "-m", "fairseq_cli.preprocess", "--source-lang", "src", "--target-lang", "tgt",
                       "--joined-dictionary", "--srcdict", str(self.plan.pieces / "fairseq.txt"), "--destdir",
                       str(folder), "--workers", str(self.plan.threads), *arguments], "prepare.log")
            write_text(folder / "finished", "")

    def training(self, checkpoint: str | None) -> list[str]:
        return [str(self._data), "--source-lang", "src", "--target-lang", "tgt", *self.RECIPE.split(),
                *self.SHAPES[self.plan.shape].split(), "--cpu", "--no-save", "--log-format", "json", "--log-interval",
                "50", *(["--restore-file", checkpoint] if checkpoint else []), *self._further_options]

    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        return tuple(checkpoints)

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        # fairseq-fixed drops the last sentences if batches must be multiples of 8, its default.
        output = self.folder / "translation.txt"
        data, subset = self._data, part
        if part not in PARTS:
            data, subset = self.folder / part, "test"
            self._binarise(data, "--only-source", f"--testpref={source.with_suffix('')}")
            for dictionary in self._data.glob("dict.*.txt"):
                shutil.copy(dictionary, data)
        self._run([self.python, "-m", "fairseq_cli.generate", str(data), "--source-lang", "src", "--target-lang", "tgt",
                   "--path", checkpoint, "--gen-subset", subset, "--beam", str(BEAM), "--max-len-a", "1.2",
                   "--max-len-b", "10", "--batch-size", "128", "--required-batch-size-multiple", "1", "--cpu"],
                  "translate.log", output)
        return generated(output.read_text(encoding="utf-8"))


def generated(text: str) -> list[str]:
    """Return the translations in `fairseq-generate`'s output in input order, from the lines that begin with `H-`."""
    translations = {}
    for line in text.split("\n"):
        if line.startswith("H-"):
            number, _, pieces = line.removeprefix("H-").split("\t")
            translations[int(number)] = pieces
    return [translations[number] for number in sorted(translations)]


class OpenNMTTF(Marked):
    """OpenNMT-tf with its automatic configuration (`--auto_config`), as its documentation recommends.

    OpenNMT-tf averages the last 8 checkpoints at the end. Here the validation sentences select the average of the last
    8 marks or the last checkpoint.
    """

    name, modules, option = "opennmt-tf", ("opennmt", "tensorflow"), "--opennmt-python"
    driver = ("quality_onmttf.py", "train")
    AVERAGED = 8
    SHAPES = {"recipe": ("--model_type", "Transformer"),
              "tiny": ("--model", str(HERE / "quality_onmttf_model.py"))}

    def __init__(self, plan: Plan, variant: str, program: str | None, config_file: Path | None = None) -> None:
        super().__init__(plan, variant, program)
        self._config_file = config_file

    def prepare(self) -> None:
        import yaml

        pieces = self.plan.pieces
        vocabulary = str(pieces / "opennmt.txt")
        write_text(self._configuration, yaml.safe_dump({
            "model_dir": str(self.folder / "model"),
            "data": {"train_features_file": str(pieces / "train.src"), "train_labels_file": str(pieces / "train.tgt"),
                     "source_vocabulary": vocabulary, "target_vocabulary": vocabulary},
            "params": {"beam_width": BEAM, "maximum_decoding_length": LONGEST},
            # The clock saves the checkpoints; averages are made after training.
            "train": {"save_checkpoints_steps": None, "keep_checkpoint_max": 10_000, "average_last_checkpoints": 0}}))

    @property
    def _configuration(self) -> Path:
        return self.folder / "configuration.yml"

    def _main(self, *arguments: str) -> list[str]:
        threads = str(self.plan.threads)
        config_files = [self._configuration, *([self._config_file] if self._config_file else [])]
        return ["--config", *map(str, config_files), "--auto_config", *self.SHAPES[self.plan.shape],
                "--intra_op_parallelism_threads", threads, "--inter_op_parallelism_threads", threads, *arguments]

    def training(self, checkpoint: str | None) -> list[str]:
        path_option = ("--checkpoint_path", checkpoint) if checkpoint else ()
        return self._main(*path_option, "train", *(["--continue_from_checkpoint"] if checkpoint else []))

    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        last = checkpoints[-self.AVERAGED:]
        return (last[-1],) if len(last) == 1 else (last[-1], ",".join(last))

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        if "," in checkpoint:
            checkpoint = self._mean(checkpoint)
        output = self.folder / "translation.txt"
        arguments = self._main("--checkpoint_path", checkpoint, "infer", "--features_file", str(source),
                               "--predictions_file", str(output))
        self._run([self.python, "-m", "opennmt.bin.main", *arguments], "translate.log")
        return read_lines(output)

    def _mean(self, checkpoints: str) -> str:
        """Average checkpoints and return the directory of the average."""
        steps = [checkpoint.rpartition("-")[2] for checkpoint in checkpoints.split(",")]
        folder = self.folder / f"mean-{steps[0]}-{steps[-1]}"
        if not (folder / "checkpoint").exists():
            self._run([self.python, str(HERE / self.driver[0]), "average", checkpoints, *self._main(
                "average_checkpoints", "--output_dir", str(folder), "--max_count", str(self.AVERAGED))], "average.log")
        return str(folder)


class Marian(Marked):
    """Marian with the preset `transformer-base` of its option `--task`.

    Marian has no recipe for little text, and its presets are made for GPUs: batches fill a workspace of 9,500 MB. With
    `--cost-type ce-sum`, Marian reports the target tokens. Adam's steps are the same as with the mean.
    """

    name, option, file = "marian", "--marian", "Marian's program of that name next to marian-decoder"
    driver = ("quality_marian.py",)

    RECIPE = "--task transformer-base --cost-type ce-sum"
    SHAPES = {"recipe": "", "tiny": "--dim-emb 256 --transformer-dim-ffn 1024 --transformer-heads 4 --enc-depth 3 "
                                    "--dec-depth 3"}

    @property
    def python(self) -> str:
        return sys.executable

    def _ask_version(self) -> str:
        done = self._ask("--version")
        version = (done.stdout + done.stderr).strip()
        if done.returncode or not version.startswith("v1."):
            raise SettingsError(f"{self.option} {self.program} is not Marian: it answers --version with {version!r}.")
        return f"marian {version}"

    def prepare(self) -> None:
        pieces = read_lines(self.plan.pieces / "opennmt.txt")[3:]
        write_text(self._vocabulary, "".join(f"{piece}\n" for piece in ("</s>", "<unk>", *pieces)))

    @property
    def _vocabulary(self) -> Path:
        return self.folder / "marian.txt"

    def training(self, checkpoint: str | None) -> list[str]:
        pieces, vocabulary = self.plan.pieces, str(self._vocabulary)
        return [self.program, "--model", str(self.folder / "model.npz"), "--train-sets", str(pieces / "train.src"),
                str(pieces / "train.tgt"), "--vocabs", vocabulary, vocabulary, "--cpu-threads", str(self.plan.threads),
                "--tempdir", str(self.folder), "--seed", "1", "--disp-freq", "1",
                "--save-freq", "1000000", *self.RECIPE.split(), *self.SHAPES[self.plan.shape].split(),
                *self._further_options]

    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        return (checkpoints[-1],)

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        output = self.folder / "translation.txt"
        self._run([str(Path(self.program).with_name("marian-decoder")), "--models", checkpoint, "--vocabs",
                   str(self._vocabulary), str(self._vocabulary), "--input", str(source), "--output", str(output),
                   "--beam-size", str(BEAM), "--normalize", "0.6", "--mini-batch", "64", "--maxi-batch", "100",
                   "--maxi-batch-sort", "src", "--cpu-threads", str(self.plan.threads)], "translate.log")
        return read_lines(output)


class PyTorch(Marked):
    """A compiled PyTorch loop with the recipe that towernmt chose for the longest of the minutes.

    It has towernmt's initial embeddings, whose computation does not count as training.
    """

    name, modules, option = "pytorch", ("torch",), "--pytorch-python"
    driver = ("quality_pytorch.py", "train")

    NEEDED = {"architecture": "transformer", "model.tie_embeddings": "none", "model.preprocess": "n",
              "model.postprocess": "dr", "model.norm": "layer", "model.positions": "sinusoidal",
              "model.feed_forward": "relu", "model.decoder_cell": "attention", "model.initialization": "zero_outputs",
              "model.residual_dropout": 0.0, "model.embedding_dropout": 0.0, "model.guided_alignment_weight": 0.0,
              "model.source_end": True, "init.embeddings": "cooccurrence", "data.batch_type": "target",
              "optimizer.name": "muon", "optimizer.muon_iterations": 3, "schedule.name": "budget",
              "train.precision": "float32"}
    """The settings of a run that the loop can train with."""

    def prepare(self) -> None:
        import yaml

        from towernmt.run.cooccurrence import cooccurrence_vectors  # imports TensorFlow

        run = Ours(self.plan, "chosen").run_folder(self.plan.minutes[-1])
        if not (run / "settings.yaml").exists():
            raise SettingsError(f"pytorch needs the settings that towernmt chooses, {run / 'settings.yaml'}: run the "
                                "same command with --only towernmt first.")
        settings = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
        for name, needed in self.NEEDED.items():
            value: Any = settings
            for part in name.split("."):
                value = value[part]
            if value != needed:
                raise SettingsError(f"{run}: towernmt chose {name}={value}, but the PyTorch loop has only {needed}; "
                                    "choose other minutes.")
        vectors = cooccurrence_vectors(PreparedData(self.plan.data), settings["model"]["hidden_size"],
                                       settings["data"]["seed"])
        np.save(self.folder / "vectors.npy", vectors.target)
        write_text(self.folder / "settings.json", json.dumps(settings, indent=1))

    def training(self, checkpoint: str | None) -> list[str]:
        return [str(self.plan.pieces), *([checkpoint] if checkpoint else [])]

    def candidates(self, checkpoints: list[str]) -> tuple[str, ...]:
        return (checkpoints[-1],)

    def translate(self, checkpoint: str, part: str, source: Path) -> list[str]:
        output = self.folder / "translation.txt"
        self._run([self.python, str(HERE / self.driver[0]), "translate", str(self.folder), checkpoint,
                   str(self.plan.pieces), str(source), str(BEAM), str(LONGEST)], "translate.log", output)
        return read_lines(output)
