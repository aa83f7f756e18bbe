"""Commands that look for the cause of a problem.

`towernmt check` checks a model against the rules of tower functions, and names the variable that breaks a rule.
`towernmt devices` lists the GPUs that TensorFlow can use, or reports why it can use none.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from towernmt import __version__
from towernmt.core.errors import SettingsError, suggestion
from towernmt.core.gpus import Gpu, cuda_driver, driver_version, has_gpu_driver, needs_compilation, why_missing
from towernmt.core.machine import has_fast_bfloat16, processors
from towernmt.core.settings import parse_assignments
from towernmt.models.architectures import settings_class


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt check`."""
    parser.add_argument("model", metavar="MODEL", help=(
        "my_model.py:MyModel (a model, a class or function that makes one without arguments, or a class with a "
        "settings dataclass), or the name of an architecture, such as transformer"))
    parser.add_argument("--preset", help="named sizes of the model, for example tiny; small ones are checked faster")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings of the model, for example model.encoder_layers=1; any number, may be repeated")


def run_check(args: argparse.Namespace) -> int:
    """Check a model and print the result; returns 0 if the model obeys every rule, else 1."""
    from towernmt.check import check_tower, rules_for
    from towernmt.core.session import use_no_gpu

    use_no_gpu()
    model = load_model(args.model, args.preset, args.assignments)
    breaches = check_tower(model)
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"{args.model} obeys the {len(rules_for(model))} rules of tower functions.")
        only_training = _only_training(model)
        if only_training:
            print(f"Only training uses these weights, and translations do not depend on them: "
                  f"{', '.join(only_training)}.")
        return 0
    rules = sorted({breach.rule for breach in breaches})
    number = f"{len(breaches)} breaches" if len(breaches) > 1 else "1 breach"
    print(f"{args.model}: {number} of the {'rule' if len(rules) == 1 else 'rules'} {', '.join(rules)}; "
          "docs/extend/tower-rules.md gives the reasons.")
    return 1


def _only_training(model: Any) -> list[str]:
    """Return the names of the weights that only training uses."""
    from towernmt.checkpoint.weights import training_tower, weights_of_model
    from towernmt.models.interface import NMTModel

    if not isinstance(model, NMTModel):
        return []
    trained = training_tower(model).weights
    return sorted({*trained} - {*weights_of_model(model, trained)})


def load_model(name: str, preset: str | None = None, assignments: Sequence[str] = ()) -> Any:
    """Return the model that a command line names.

    Args:
        name: an architecture, FILE.py:NAME or MODULE:NAME.
        preset: preset of the model's settings; None for its defaults.
        assignments: items of `--set`, such as `model.encoder_layers=1`.

    Raises:
        SettingsError: the model is missing, or it cannot be made without arguments.
    """
    from towernmt.models import model_location
    from towernmt.models.architectures import ARCHITECTURES, architecture

    if name in ARCHITECTURES:
        return _with_few_words(architecture(name).model, name, preset, assignments)
    if ":" not in name:
        if name.endswith(".py"):
            raise SettingsError(f"check {name}: add the name of a class or function of the file, such as "
                                f"{name}:MyModel.")
        raise SettingsError(f"check {name}: pass a file or module and a name in it, such as "
                            f"{model_location.SHAPES[0]}, or an architecture ({', '.join(ARCHITECTURES)})."
                            f"{suggestion(name, ARCHITECTURES)}")
    model_or_factory = model_location.load_attribute(model_location.find_location(name))
    parameters = inspect.signature(model_or_factory).parameters if callable(model_or_factory) else {}
    required = [p.name for p in parameters.values() if p.default is p.empty
                and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if "settings" in parameters and required in ([], ["settings"]) and settings_class(model_or_factory) is not None:
        return _with_few_words(model_or_factory, name, preset, assignments)
    if preset is not None or assignments:
        raise SettingsError(f"check {name}: --preset and --set need a class with a settings dataclass: leave them out.")
    return _model_of(model_or_factory() if callable(model_or_factory) and not required else model_or_factory, name)


def _model_of(model: Any, name: str) -> Any:
    """Return `model` if it is a model.

    Raises:
        SettingsError: `model` is not a model.
    """
    from tensorpack.train.model_desc import ModelDescBase

    if isinstance(model, ModelDescBase):
        return model
    raise SettingsError(f"check {name}: {name.rpartition(':')[2]} does not give a model: pass a class that derives "
                        "from towernmt's NMTModel or tensorpack's ModelDesc, or a function that returns such a model; "
                        "it may have no arguments, or only `settings` with a dataclass as annotation.")


def _with_few_words(kind: Any, name: str, preset: str | None, assignments: Sequence[str]) -> Any:
    """Return a model made from settings, with small vocabularies if the settings have their sizes.

    Raises:
        SettingsError: an assignment is invalid, or does not set a setting of the model.
    """
    from towernmt.run.resolve import Overrides, SettingsSources, resolve_settings

    overrides = Overrides("--set", parse_assignments(assignments))
    settings = resolve_settings(SettingsSources(name, preset, overrides=(overrides,))).settings.model
    other = next((key for key in overrides.values if not key.startswith("model.")), None)
    if other is not None:
        raise SettingsError(f"check {name}: --set {other}={overrides.values[other]} has no effect, because the check "
                            "does not train: pass only settings of the model (model.*).")
    names = {field.name for field in dataclasses.fields(settings)} & {"source_vocab_size", "target_vocab_size"}
    return kind(settings=dataclasses.replace(settings, **{name: 16 for name in names}))


def add_devices_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt devices`."""
    parser.add_argument("--verbose", action="store_true", help="print TensorFlow's own messages about GPUs, too")


def run_devices(args: argparse.Namespace) -> int:
    """Print what TensorFlow computes on, and return the exit status."""
    messages = _messages_of_start(_import_tensorflow)
    from towernmt.core.session import count_gpus
    from towernmt.core.tf_compat import tf

    build, gpu_count = tf.sysconfig.get_build_info(), count_gpus()
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")
               ] if gpu_count else []
    for line in _report(str(tf.__version__), build, details):
        print(line)
    if messages and (args.verbose or gpu_count < len(cuda_driver().gpus)):
        print("TensorFlow reports:")
        for message in messages:
            print(f"  {message}")
    return 0


def _import_tensorflow() -> None:
    import towernmt.core.tf_compat  # noqa: F401


def _report(version: str, build: Mapping[str, Any], details: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the report.

    Args:
        version: TensorFlow's version.
        build: `tf.sysconfig.get_build_info()`.
        details: what TensorFlow reports about each GPU that it sees.
    """
    cuda = (f"for CUDA {build.get('cuda_version')} and cuDNN {build.get('cudnn_version')}"
            if build.get("is_cuda_build") else "without CUDA")
    yield f"towernmt {__version__}, TensorFlow {version} {cuda}"
    driver = cuda_driver()
    if has_gpu_driver() or driver.gpus:
        yield (f"Driver: {driver_version() or 'unknown version'}, supports CUDA "
               f"{'.'.join(map(str, driver.cuda)) if any(driver.cuda) else '(unknown)'}")
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is not None:
        yield f"CUDA_VISIBLE_DEVICES={visible_devices or chr(39) * 2} selects the GPUs, which are numbered from 0"
    for number, detail in enumerate(details):
        gpu = driver.gpus[number] if number < len(driver.gpus) else None
        yield f"GPU {number}: {', '.join(_facts_of_gpu(detail, gpu))}"
        if gpu and (warning := needs_compilation(gpu, build)):
            yield f"  Warning: {warning}"
    if not details:
        yield f"No GPU: {why_missing(build)}."
    for number in range(len(details), len(driver.gpus)) if details else ():
        yield f"Not used by TensorFlow: {driver.gpus[number].name}. Its messages name the reason (--verbose)."
    yield (f"CPU: {processors()} processors, {'with' if has_fast_bfloat16() else 'without'} instructions for bfloat16 "
           "products")


def _facts_of_gpu(detail: Mapping[str, Any], gpu: Gpu | None) -> Iterator[str]:
    """Yield name, capability and memory of a GPU.

    Args:
        detail: what TensorFlow reports.
        gpu: what the driver reports; None if it reports fewer GPUs.
    """
    yield str(detail.get("device_name") or (gpu.name if gpu else "unknown name"))
    capability = detail.get("compute_capability") or (gpu.capability if gpu else None)
    if capability:
        yield f"compute capability {capability[0]}.{capability[1]}"
        yield "bfloat16 and TF32" if tuple(capability) >= (8, 0) else "no bfloat16"
    if gpu:
        yield f"{gpu.memory / 2 ** 30:.1f} GiB"


_ABOUT_GPUS = re.compile(r"^[IWE]\d{4} .*?\] (.*(cuda|gpu|dynamic library|dlopen|nvidia|PTX|driver).*)$", re.IGNORECASE)


def _messages_of_start(start: Callable[[], None]) -> list[str]:
    """Return TensorFlow's messages about GPUs while `start` imports it; [] if it is already imported."""
    if "tensorflow" in sys.modules:
        start()
        return []
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
    sys.stderr.flush()
    original_stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            start()
        finally:
            os.dup2(original_stderr, 2)
            os.close(original_stderr)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    messages = [match[1] for line in lines if (match := _ABOUT_GPUS.match(line))]
    return list(dict.fromkeys(messages))
