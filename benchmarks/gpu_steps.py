"""The steps of `gpu_session.sh`: each measures one thing on the first GPU, and prints lines `measured: ...`.

    python benchmarks/gpu_steps.py STEP DIRECTORY

With GPU_SESSION_SIZE=small, models and batches are tiny, so that the steps can be tried on any device.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.session import use_gpus
from towernmt.core.tf_compat import tf, tf1


@dataclass(frozen=True)
class Size:
    """Sizes of the work.

    Attributes:
        config: `--config` of `train.py`.
        tokens: batch sizes in tokens; the second is the default of GPUs.
        steps: measured steps.
        side: rows and columns of the product whose error is measured.
        rows: rows of the operations whose forms are compared.
        updates: updates of the run that is killed.
        sentences: two batch sizes of translation.
        memory_gb: memory limit of a step.
        too_large: tokens of a batch that does not fit into the memory of a card.
    """

    config: str
    tokens: tuple[int, int, int]
    steps: int
    side: int
    rows: int
    updates: int
    sentences: tuple[int, int]
    memory_gb: float
    too_large: int


FULL = Size("base", (4096, 12_500, 25_000), 25, 4096, 25_000, 200, (64, 512), 40.0, 3_000_000)
SMALL = Size("tiny", (200, 300, 400), 3, 64, 64, 20, (4, 8), 1.0, 200_000)
SPEED = "speed"
"""Instead of a step: `train.py` with the arguments that follow."""
SIZE = SMALL if os.environ.get("GPU_SESSION_SIZE") == "small" else FULL


def report(text: str) -> None:
    """Print a measured figure."""
    print(f"measured: {text}", flush=True)


def devices(_: Path) -> None:
    """Report the GPUs, and the error of a product with and without TF32."""
    cards = [tf.config.experimental.get_device_details(card) for card in tf.config.list_physical_devices("GPU")]
    names = [" ".join([card.get("device_name", "?"), ".".join(map(str, card.get("compute_capability", ())))])
             for card in cards]
    report(f"{len(cards)} GPU(s): {', '.join(names)}")
    random = np.random.default_rng(1)
    a, b = (random.normal(size=(SIZE.side, SIZE.side)).astype(np.float32) for _ in range(2))
    exact = a[:16].astype(np.float64) @ b.astype(np.float64)
    for allowed in (True, False):
        tf.config.experimental.enable_tensor_float_32_execution(allowed)
        with tf.Graph().as_default(), tf1.Session(config=_config()) as session:
            with tf1.device("/gpu:0"):
                left_matrix, right_matrix = (tf1.placeholder(tf.float32, a.shape, name) for name in "ab")
                product = tf.matmul(left_matrix, right_matrix)
            error = np.abs(session.run(product, {"a:0": a, "b:0": b})[:16] - exact).max() / np.abs(exact).max()
        report(f"relative error {error:.1e} {'with' if allowed else 'without'} TF32")


def resume(directory: Path) -> None:
    """Train, kill and resume a run, and compare its weights with those of an undisturbed run."""
    random, lines = np.random.default_rng(1), []
    for _ in range(400):
        lines.append(" ".join(random.choice(list("abcdefghij"), random.integers(2, 12))))
    for name in ("source", "target"):
        (directory / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = directory / "data"
    _towernmt("prepare", "--source", directory / "source", "--target", directory / "target", "--vocab-kind", "word",
              "--shared-vocab", "--output", data)
    half = SIZE.updates // 2
    arguments: list[str | Path] = [
        "train", "--data", data, "--preset", "tiny", "--gpu", "0", "--defaults", "fixed", "--set",
        f"train.steps={SIZE.updates}", f"checkpoint.steps={half}", "data.batch_tokens=512"]
    _towernmt(*arguments, "--logdir", directory / "undisturbed")
    killed = subprocess.Popen(_command(*arguments, "--logdir", directory / "killed"), stdout=sys.stderr)
    while killed.poll() is None and not (directory / f"killed/checkpoints/step-{half}").exists():
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    _towernmt(*arguments, "--logdir", directory / "killed")
    first, second = (tf.train.load_checkpoint(str(directory / run / f"checkpoints/step-{SIZE.updates}" / "model"))
                     for run in ("undisturbed", "killed"))
    names = first.get_variable_to_shape_map()
    unequal = [name for name in names if not np.array_equal(first.get_tensor(name), second.get_tensor(name))]
    report("equal bits" if not unequal else f"{len(unequal)} of {len(names)} variables differ, such as {unequal[0]}")


def train(_: Path) -> None:
    """Report the speed of training for three batch sizes and two precisions."""
    for tokens in SIZE.tokens:
        for precision in ("float32", "bfloat16"):
            figures = _train(tokens, precision)
            report(f"{tokens:,} tokens, {precision}: {_speed_of(figures)}, MFU {figures['mfu']:.2f}")


def variants(_: Path) -> None:
    """Report the speed of training with other options, beside the step of `train` in bfloat16."""
    usual = _train(SIZE.tokens[1], "bfloat16")
    report(f"Adam, deterministic, cuDNN's norms: {_speed_of(usual)}")
    for name, option in (("any order", ["--nondeterministic"]), ("plain norms", ["--plain-norm"]),
                         ("Muon", ["--optimizer", "muon"])):
        figures = _train(SIZE.tokens[1], "bfloat16", *option)
        report(f"{name}: {_speed_of(figures)}, {figures['tgt_tok_s'] / usual['tgt_tok_s']:.3f} of the speed")


def models(_: Path) -> None:
    """Report the speed of the other architectures, with the sizes of their papers."""
    for name in ("seq2seq", "rnnsearch", "convs2s"):
        figures = _train(SIZE.tokens[1], "bfloat16", "--model", name)
        report(f"{name}: {_speed_of(figures)}, MFU {figures['mfu']:.2f}")


def _speed_of(figures: dict[str, Any]) -> str:
    return f"{figures['tgt_tok_s']:,.0f} target tokens/s, {1000 / figures['steps_s']:.1f} ms a step"


def gradients(_: Path) -> None:
    """Report the distance of the gradients on the GPU from those on the CPU: Adam's mean after three updates."""
    for name in ("transformer", "seq2seq", "rnnsearch", "convs2s"):
        expected, distance_texts = _gradients(name, None, "float32", tf32=False), []
        least = 1e-3 * max(map(np.linalg.norm, expected.values()))      # some gradients are only rounding errors
        for precision, tf32 in (("float32", False), ("float32", True), ("bfloat16", True)):
            distances = {key: float(np.linalg.norm(value - expected[key])
                                    / max(np.linalg.norm(expected[key]), least))
                         for key, value in _gradients(name, 0, precision, tf32).items()}
            worst = max(distances, key=lambda key: distances[key])
            middle = np.median(list(distances.values()))
            distance_texts.append(f"{middle:.0e}, at most {distances[worst]:.0e} ({worst})")
        report(f"{name}: float32 {distance_texts[0]}; TF32 {distance_texts[1]}; bfloat16 {distance_texts[2]}")


def _gradients(name: str, gpu: int | None, precision: str, tf32: bool) -> dict[str, Any]:
    """Return Adam's mean of the gradients of each variable."""
    from tensorpack.callbacks import Callback
    from train_run import Plan, run
    from train_work import FixedBatches, draw, make_model

    class Means(Callback):
        values: dict[str, Any]

        def _after_train(self) -> None:
            variables = [v for v in tf1.global_variables() if v.op.name.endswith("/Adam")]
            values = self.trainer.sess.run(variables)
            self.values = {v.op.name[:-len("/Adam")]: x for v, x in zip(variables, values, strict=True)}

    means = Means()
    batches = FixedBatches(draw(500, SIZE.tokens[0], pairs=400))
    run(make_model(name, "tiny"), batches, Plan(precision=precision, gpu=gpu, warm=1, steps=2, tf32=tf32), [means])
    return means.values


def forms(_: Path) -> None:
    """Report the time of operations in several forms: microseconds for each of 20 in a row."""
    from towernmt.models.layers.multi_head import merge_heads

    depth, filters, heads = (64, 64, 2) if SIZE is SMALL else (512, 2048, 8)
    rows, half = SIZE.rows, tf.bfloat16
    x, kernel, bias = (rows, depth), (depth, filters), (filters,)

    def columns(count: int) -> Form:
        def form(x: Any, kernel: Any, bias: Any) -> Any:
            wide = tf.concat([x, tf.ones([rows, count], x.dtype)], 1)
            return tf.matmul(wide, tf.concat([kernel, bias[None], tf.zeros([count - 1, filters], x.dtype)], 0))
        return form

    def sum_by_product(x: Any) -> Any:
        return tf.matmul(tf.ones([1, rows], x.dtype), x)

    words = np.random.default_rng(1).zipf(1.2, rows) % 8000
    words[: rows // 6] = 0      # padding

    def gradient_without_padding(x: Any) -> Any:
        padding = tf.constant(words[:, None] == 0, x.dtype)
        others = tf.math.unsorted_segment_sum(x, np.where(words == 0, -1, words), 8000)     # leaves out -1
        return others + tf.pad(tf.matmul(padding, x, transpose_a=True), [[0, 7999], [0, 0]])

    by_heads = (rows // 32, heads, 32, depth // heads)
    _compare("product with bias", half, [x, kernel, bias], {
        "2 columns": columns(2), "32 columns": columns(32),
        "addition": lambda x, kernel, bias: tf.nn.bias_add(tf.matmul(x, kernel), bias)})
    _compare("heads", half, [by_heads], {
        "elements": lambda x: tf.transpose(x, [0, 2, 1, 3]), "16 bytes": merge_heads})
    _compare("gradient of an embedding", tf.float32, [x], {
        "rows of words": lambda x: tf.math.unsorted_segment_sum(x, words, 8000),
        "padding by a product": gradient_without_padding})
    for dtype, width in ((half, filters), (tf.float32, depth)):
        _compare(f"sum of columns in {dtype.name}", dtype, [(rows, width)], {
            "reduction": lambda x: tf.reduce_sum(x, 0), "product": sum_by_product,
            "gradient of a bias": lambda x: tf.raw_ops.BiasAddGrad(out_backprop=x)})


Form = Callable[..., Any]
"""Makes an operation from tensors."""


def _compare(title: str, dtype: Any, shapes: Sequence[tuple[int, ...]], forms: dict[str, Form]) -> None:
    """Report the time of each form of an operation of tensors with these shapes."""
    repeats, times = 3 if SIZE is SMALL else 20, []
    for name, form in forms.items():
        with tf.Graph().as_default(), tf1.Session(config=_config()) as session:
            with tf1.device("/gpu:0"):
                values = [tf1.get_variable(f"value_{i}", initializer=tf.cast(tf.random.stateless_normal(
                    shape, [1, i]), dtype)) for i, shape in enumerate([shapes[0]] * repeats + [*shapes[1:]])]
                further_values = [value.read_value() for value in values[repeats:]]
                results = [form(value.read_value(), *further_values) for value in values[:repeats]]
            session.run(tf1.global_variables_initializer())
            times.append(f"{name} {1e6 * _seconds(session, results) / repeats:.0f} us")
    report(f"{title}: {', '.join(times)}")


def _seconds(session: Any, results: Sequence[Any]) -> float:
    """Return the seconds of a run of operations, the best of five."""
    call, shortest = session.make_callable([result.op for result in results]), float("inf")
    for _ in range(6):
        begin = time.perf_counter()
        call()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def norms(_: Path) -> None:
    """Report the time of layer normalisation with its gradient by cuDNN and by plain operations, and their distance."""
    from tensorpack.tfutils.tower import TrainTowerContext

    from towernmt.core.graph_state import GraphSettings, graph_state
    from towernmt.models.layers.feed_forward import layer_norm

    depth, repeats = (64, 2) if SIZE is SMALL else (512, 20)
    value = np.random.default_rng(1).normal(size=(SIZE.rows, depth)).astype(np.float32)
    results = []
    for fused in (True, False):
        with tf.Graph().as_default(), tf1.Session(config=_config()) as session:
            graph_state().settings = GraphSettings(fused_norm=fused)
            with tf1.device("/gpu:0"), TrainTowerContext(""):
                inputs = [tf1.get_variable(f"x_{i}", initializer=value) for i in range(repeats)]
                normal = [layer_norm(x.read_value(), f"norm_{i}") for i, x in enumerate(inputs)]
                gradients = tf.gradients(normal, inputs, [tf.square(y) for y in normal])
            session.run(tf1.global_variables_initializer())
            results.append(session.run([normal[0], gradients[0]]))
            report(f"{'by cuDNN' if fused else 'by plain operations'}: "
                   f"{1e6 * _seconds(session, gradients) / repeats:.0f} us")
    distance = max(np.linalg.norm(fused - plain) / np.linalg.norm(fused)
                   for fused, plain in zip(*results, strict=True))
    report(f"relative distance {distance:.1e}")


def translate(_: Path) -> None:
    """Report the speed of beam search for two batch sizes."""
    import translate as benchmark

    for sentences in SIZE.sentences:
        options = benchmark.parser().parse_args([
            "--config", SIZE.config, "--batch-sentences", str(sentences), "--precision", "bfloat16", "--gpu", "0"])
        rows = benchmark.random_rows(benchmark.VOCABULARY[options.config], 2 * sentences if SIZE is SMALL else 1024)
        batches, predictor = benchmark.batches_of(rows, sentences), benchmark.predictor_of(options)
        benchmark.translate(predictor, batches[:1], 1)
        begin = time.perf_counter()
        benchmark.translate(predictor, batches, 1)
        seconds = time.perf_counter() - begin
        steps = sum(source.shape[1] - 1 + benchmark.EXTRA_TOKENS for source, _ in batches)
        report(f"{sentences} sentences a batch: {1000 * seconds / steps:.2f} ms a step, "
               f"{len(rows) / seconds:,.0f} sentences/s")


def memory(directory: Path) -> None:
    """Report the batch size that fits into a memory limit."""
    if not (directory / "data").exists():
        raise FileNotFoundError("the step `resume` prepares the data: run it first")
    preset = "tiny" if SIZE is SMALL else "base"
    training = subprocess.Popen(_command(
        "train", "--data", directory / "data", "--logdir", directory / "memory", "--preset", preset, "--gpu", "0",
        "--defaults", "fixed", "--set", f"data.memory_gb={SIZE.memory_gb}", "train.steps=1"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = []
    for line in training.stdout or ():
        print(line, end="", flush=True)     # for the log of a search that takes too long
        lines.append(line)
    reports = re.findall(r"data\.batch_tokens=\d+ is the largest.*", "".join(lines))
    if training.wait() or not reports:
        raise RuntimeError(f"towernmt train ended with status {training.returncode}")
    report(reports[0])


def skip(_: Path) -> None:
    """Report how training continues after a batch that does not fit."""
    from tensorpack.train.interface import launch_train_with_config
    from train_work import LONGEST, VOCABULARY, FixedBatches, draw, make_batch, make_model

    from towernmt.callbacks.stopping import StopAtStep
    from towernmt.input_source import GeneralQueueInput
    from towernmt.train.config import TrainConfig
    from towernmt.train.trainer import SyncMultiGPUTrainer

    small = draw(VOCABULARY[SIZE.config], SIZE.tokens[0], pairs=200)[:3]
    words = np.full([SIZE.too_large // LONGEST, LONGEST], 5, np.int32)
    words[:, -1] = 2
    batches = [small[0], make_batch(words, words), *small[1:]]
    with tf.Graph().as_default():
        trainer = SyncMultiGPUTrainer([0], skip_out_of_memory=1)
        launch_train_with_config(TrainConfig(make_model("transformer", SIZE.config),
                                             GeneralQueueInput(FixedBatches(batches)), [StopAtStep(3)], monitors=[]),
                                 trainer)
    report(f"{trainer.skipped_batches} batch skipped, {trainer.loop.global_step} updates")


def trace(directory: Path) -> None:
    """Report the kernels and copies of one training step, and write its trace for chrome://tracing."""
    from tensorflow.python.client.timeline import Timeline
    from tensorpack.callbacks import Callback
    from train_run import Plan, run
    from train_work import VOCABULARY, FixedBatches, draw, make_model

    class Trace(Callback):
        def _before_run(self, _: Any) -> Any:
            if self.global_step < 3:
                return None
            return tf1.train.SessionRunArgs([], options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE))

        def _after_run(self, _: Any, values: Any) -> None:
            if values.run_metadata.step_stats.dev_stats:
                _report_trace(values.run_metadata.step_stats, directory, Timeline)

    batches = FixedBatches(draw(VOCABULARY[SIZE.config], SIZE.tokens[0], pairs=400))
    run(make_model("transformer", SIZE.config), batches, Plan(gpu=0, warm=3, steps=1), [Trace()])


def _report_trace(stats: Any, directory: Path, timeline: Any) -> None:
    """Report what a card did; without its own record, what TensorFlow started on it."""
    streams = [device for device in stats.dev_stats if "/device:gpu" in device.device.lower()
               and device.device.endswith("stream:all")]
    started = [device for device in stats.dev_stats if device.device.lower().endswith("gpu:0")]
    nodes = [node for device in streams or started for node in device.node_stats]
    moved = {kind: sum(len(device.node_stats) for device in stats.dev_stats
                       if f"<memcpy{kind}>" in device.device.lower()) for kind in ("h2d", "d2h")}
    busy = sum(node.all_end_rel_micros for node in nodes)
    report(f"{len(nodes)} {'kernels' if streams else 'operations'}, {busy / 1000:.1f} ms, "
           f"{moved['h2d']} copies to the card, {moved['d2h']} from it")
    (directory / "trace.json").write_text(timeline(stats).generate_chrome_trace_format(), encoding="utf-8")


def _config() -> Any:
    from towernmt.core.session import session_config

    use_gpus([0])
    return session_config()


def _train(tokens: int, precision: str, *arguments: str) -> dict[str, Any]:
    """Return the record of `train.py`, run in a separate process because determinism is a switch of the process."""
    command = [*_python(), __file__, SPEED, "--gpu", "0", "--config", SIZE.config, "--batch-tokens", str(tokens),
               "--precision", precision, "--warm", "3", "--steps", str(SIZE.steps), "--pairs", "0", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def speed(arguments: Sequence[str]) -> None:
    """Run `train.py`, in the small size without large products."""
    import machine
    import train as benchmark

    if SIZE is SMALL:
        machine.SIZE["gpu"] = SIZE.side
    benchmark.main(list(arguments))


def _python() -> list[str]:
    return shlex.split(os.environ.get("GPU_SESSION_PYTHON", sys.executable))


def _command(*arguments: str | Path) -> list[str]:
    return [*_python(), "-m", "towernmt", *map(str, arguments)]


def _towernmt(*arguments: str | Path) -> None:
    subprocess.run(_command(*arguments), stdout=sys.stderr, check=True)


STEPS = {step.__name__: step for step in (
    devices, gradients, resume, train, variants, models, forms, norms, translate, memory, skip, trace)}


def main(arguments: Sequence[str]) -> None:
    """Run the step of the session that the first argument names."""
    name, *step_arguments = arguments
    if name == SPEED:
        speed(step_arguments)
    else:
        STEPS[name](Path(step_arguments[0]).absolute())


if __name__ == "__main__":
    main(sys.argv[1:])
