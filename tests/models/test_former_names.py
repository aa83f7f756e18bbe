"""Code that was written when modules had other names: it is loaded, is told the new names once, and works."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from towernmt.models.registry.former_modules import MODULES, PACKAGES

ROOT = Path(__file__).parents[2]
AVERAGING = '''
from dataclasses import dataclass

from towernmt.models import DecoderState, NMTModel
from towernmt.models.embeddings import look_up, shared_table
from towernmt.models.layers import linear
from towernmt.models.loss import Projection
from towernmt.models.precision import to_float32
from towernmt.settings import setting
from towernmt.tf_compat import tf, tf1


@dataclass(frozen=True)
class AveragingSettings:
    hidden_size: int = setting(8, "depth of embeddings and layers", at_least=1)
    source_vocab_size: int = setting(0, "set from the data")
    target_vocab_size: int = setting(0, "set from the data")


class Averaging(NMTModel):
    def __init__(self, settings: AveragingSettings):
        self.settings, self.depth = settings, settings.hidden_size
        self.source_vocab_size = settings.source_vocab_size
        self.target_vocab_size = settings.target_vocab_size

    def encode(self, source, source_length):
        x = look_up(self.table("source"), source)
        mask = tf.sequence_mask(source_length, tf.shape(source)[1], tf.float32)
        return tf.tanh(to_float32(linear(x, self.depth, "encoder"))), (mask - 1.0) * 1e9

    def decode_hidden(self, memory, target_in):
        y = look_up(self.table("target"), target_in)
        count = tf.cast(tf.range(1, tf.shape(y)[1] + 1), tf.float32)
        return self.attend(tf.cumsum(y, 1) / count[None, :, None], memory)

    def output_projection(self):
        bias = tf1.get_variable("softmax_bias", [self.target_vocab_size], initializer=tf1.zeros_initializer())
        return Projection(self.table("softmax"), bias)

    def start_state(self, memory, beam):
        rows = tf.shape(memory[0])[0] * beam
        return DecoderState(memory, tf.zeros([rows, self.depth]), tf.constant(0))

    def decode_step(self, token, state):
        total, step = state.cache + look_up(self.table("target"), token), state.step + 1
        mean = tf.reshape(total / tf.cast(step, tf.float32), [tf.shape(state.memory[0])[0], -1, self.depth])
        hidden = tf.reshape(self.attend(mean, state.memory), [-1, self.depth])
        return self.output_projection().logits(hidden), DecoderState(state.memory, total, step)

    def attend(self, query, memory):
        weights = tf.nn.softmax(tf.matmul(query, memory[0], transpose_b=True) + memory[1][:, None])
        return query + tf.matmul(weights, memory[0])

    def table(self, role):
        size = self.source_vocab_size if role == "source" else self.target_vocab_size
        return shared_table(role, "target", size, self.depth)


def import_from_everywhere():
    from towernmt.callbacks.nan_guard import NaNGuard
    from towernmt.dataflow.vocabulary import BOS, load_vocabularies
    from towernmt.models.attention import causal_bias, memory_keys_values, self_attention, source_attention
    from towernmt.models.convs2s import ConvS2S, convolutions
    from towernmt.models.randomness import StatelessNormal, dropout, set_seed
    from towernmt.models.recompute import recompute
    from towernmt.models.ssru import ssru
    from towernmt.models.transformer import PRESETS, Transformer, TransformerSettings
    from towernmt.train import RunDirectory, SyncMultiGPUTrainer, default_settings, train
    from towernmt.train.optimizer import OptimizerSettings, make_optimizer
'''
"""As an older manual had it, but shorter."""
PROGRAM = '''
import sys, warnings
from pathlib import Path
from towernmt.check import check_tower
from towernmt.models import architecture
from towernmt.models.registry.kept_code import keep_code, kept_place
from towernmt.models.registry.locate import find_place, load

place, code = find_place("averaging.py:Averaging"), Path("run/code")
keep_code(place, code)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    kept = load(kept_place(code, place.name))
    for _ in range(2):
        load(place)
    sys.modules[kept.__module__].import_from_everywhere()
told = [str(warning.message) for warning in seen if warning.category is FutureWarning]
settings = architecture(place.spelled).settings(source_vocab_size=12, target_vocab_size=12)
print("\\n".join([*told, *map(str, check_tower(kept(settings)))]))
'''


@pytest.mark.thorough
def test_kept_code_with_former_names_is_loaded_and_decodes_as_it_is_taught(tmp_path: Path) -> None:
    (tmp_path / "averaging.py").write_text(AVERAGING)
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True,
                          env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert ("towernmt.tf_compat is found in towernmt.core.tf_compat now: import it from there when you change the code."
            in told)
    assert all(line.startswith("towernmt.") and " is found in " in line for line in told)       # and no broken rule
    assert len(set(told)) == len(told)


@pytest.mark.parametrize("table", [MODULES, PACKAGES])
def test_every_former_module_leads_to_modules_that_are_there(table: dict[str, tuple[str, ...]]) -> None:
    assert {module for modules in table.values() for module in modules
            if importlib.util.find_spec(f"towernmt.{module}") is None} == set()


def test_no_former_module_hides_one_that_is_there() -> None:
    there = {path.relative_to(ROOT / "towernmt").with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
             for path in (ROOT / "towernmt").rglob("*.py")}
    assert MODULES.keys() & there == set()
    assert PACKAGES.keys() <= there


@pytest.mark.thorough
def test_a_program_may_import_by_former_names() -> None:
    program = """
from towernmt.errors import SettingsError
from towernmt.train import RunDirectory, Settings, TrainSettings, default_settings, settings_of_model
from towernmt.train.run_directory import RunDirectory as same
from towernmt.dataflow.batches import Batch

assert RunDirectory is same and default_settings().train == TrainSettings()
for missing in ("import towernmt.nothing", "from towernmt.train import nothing"):
    try:
        exec(missing)
    except ImportError as error:
        print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["ModuleNotFoundError", "ImportError"], done.stderr
