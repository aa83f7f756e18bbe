"""Write docs/reference/settings.md from the dataclasses of the settings.

python docs/make_settings.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from towernmt.core.setting_values import assigned
from towernmt.core.settings import describe
from towernmt.dataflow import PrepareSettings
from towernmt.models import ARCHITECTURES, architecture
from towernmt.run import default_settings
from towernmt.run.run_settings import VOCABULARY_SIZES

PAGE = Path(__file__).parent / "reference" / "settings.md"
GROUPS = {
    "data": "How data becomes batches and reaches the towers.",
    "init": "Initial values of a new run, instead of random ones.",
    "train": "How long to train, how to compute an update, and which variables to train.",
    "optimizer": "The optimizer and its step size.",
    "schedule": "How the learning rate depends on the step; [callbacks](../guide/callbacks.md) has the formulas.",
    "validation": "When to validate the model, on which text, and with which score.",
    "search": "How to search for translations in validation, and in `towernmt translate` unless its options differ.",
    "checkpoint": "When to write checkpoints and which of them to keep.",
    "log": "Output to the log and to TensorBoard.",
    "recovery": "How to react when training diverges or a batch does not fit into memory.",
}
HEAD = """\
# Settings

Every setting of a run with its default, its meaning and its range, then the options of `towernmt prepare`.

```sh
towernmt train --data data/de-en --logdir runs/de-en --config mine.yaml --set train.steps=20000 data.batch_tokens=2048
```

`towernmt train` resolves settings in this order, later ones override earlier ones: the defaults or `--preset`, the
`settings.yaml` of the run, `--config FILE` (YAML, nested or with dotted keys), and `--set key=value ...`. A value is
YAML: `none`, `true`, `1e-3`, `["a, b", c]`. Text needs no quotes, and a list may also be written as `a,b`.
`train={steps: 5}` sets keys of a group. An unknown key or a value of the wrong type is an error.

Once a run has checkpoints, its `model.*` settings (except dropout and label smoothing), `optimizer.name`,
`optimizer.ema_decay`, `optimizer.adafactor_momentum`, `train.only` and `train.freeze` are fixed.

(`python docs/make_settings.py` generates this page from the dataclasses.)
"""


def page() -> str:
    """Return the Markdown text of the page."""
    parts = [HEAD]
    for name in ARCHITECTURES:
        kind = architecture(name)
        rows = [row for row in describe(kind.settings(), "model.") if row[0] not in VOCABULARY_SIZES]
        parts.append(f"## model.* of `{name}`\n\n" + _table(rows))
        parts.append(_presets(kind))
    settings = default_settings()
    for group, text in GROUPS.items():
        parts.append(f"## {group}.*\n\n{text}\n\n" + _table(describe(getattr(settings, group), f"{group}.")))
    rows = [(f"--{key.replace('_', '-')}", value, text) for key, value, text in describe(PrepareSettings()) if text]
    needed = "`--source` and `--output` are required, and `--target` if `--source` is a text file."
    parts.append(f"## towernmt prepare\n\n{needed}\n\n" + _table(rows))
    return "\n".join(parts)


def _table(rows: Iterable[tuple[str, Any, str]]) -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for key, value, text in rows:
        lines.append(f"| `{key}` | {_shown(value)} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _presets(kind: Any) -> str:
    keys = list(dict.fromkeys(key for sizes in kind.presets.values() for key in sizes))
    lines = ["| preset | " + " | ".join(f"`{key}`" for key in keys) + " |", "|---" * (len(keys) + 1) + "|"]
    for name, sizes in kind.presets.items():
        settings = kind.settings(**sizes)
        lines.append(f"| `{name}` | " + " | ".join(_shown(getattr(settings, key)) for key in keys) + " |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value in (None, "", []):
        return ""
    return f"`{assigned(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
