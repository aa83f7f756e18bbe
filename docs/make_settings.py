"""Write docs/reference/settings.md from the dataclasses that hold the settings: python docs/make_settings.py"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from towernmt.checkpoint.former_settings import FORMER
from towernmt.core.settings import describe
from towernmt.dataflow import PrepareSettings
from towernmt.models import ARCHITECTURES, architecture
from towernmt.run import default_settings
from towernmt.run.settings import FACTS

PAGE = Path(__file__).parent / "reference" / "settings.md"
GROUPS = {
    "data": "How the data become batches, and reach the towers.",
    "init": "What a new run begins with, instead of random values.",
    "train": "How long to train, how an update is made, and of which variables.",
    "optimizer": "Which optimizer, and how large its steps are.",
    "schedule": "How the learning rate changes with the step; [callbacks](../guide/callbacks.md) has the formulas.",
    "validation": "When and on what the model is validated, and by which score.",
    "search": "How translations are searched for, in validation and, unless the command line says otherwise, "
              "in `towernmt translate`.",
    "checkpoint": "When checkpoints are written, and which of them stay.",
    "log": "What the log and TensorBoard get.",
    "recovery": "What happens when training diverges, or a batch does not fit into memory.",
}
HEAD = """\
# Settings

Every setting of a run with its default, its meaning and its range, then the options of `towernmt prepare`.

```sh
towernmt train --data data/de-en --logdir runs/de-en --config mine.yaml --set train.steps=20000 data.batch_tokens=2048
```

`towernmt train` takes settings from, low to high: the defaults (or `--preset`), what was saved with the run
(`settings.yaml`), `--config FILE` (YAML, nested or with dotted keys), and `--set key=value ...`. Lists are
written with commas, and `none` is no value. An unknown key or a value of the wrong type is refused.

Once a run has checkpoints, its `model.*` settings (but for dropout and label smoothing), `optimizer.name`,
`optimizer.ema_decay`, `optimizer.adafactor_momentum`, `train.only` and `train.freeze` are fixed.
The names that settings had before are understood, too; a table at the end has them.

(`python docs/make_settings.py` makes this page from the dataclasses: change those, and make it again.)
"""
FORMER_KEYS = """\
## Former names

`settings.yaml`, `--config` and `--set` take the settings by the names that they had before, too.

"""


def page() -> str:
    """The text of the page."""
    parts = [HEAD]
    for name in ARCHITECTURES:
        kind = architecture(name)
        rows = [row for row in describe(kind.settings(), "model.") if row[0] not in FACTS]
        parts.append(f"## model.* of `{name}`\n\n" + _table(rows))
        parts.append(_presets(kind))
    settings = default_settings()
    for group, text in GROUPS.items():
        parts.append(f"## {group}.*\n\n{text}\n\n" + _table(describe(getattr(settings, group), f"{group}.")))
    rows = [(f"--{key.replace('_', '-')}", value, text) for key, value, text in describe(PrepareSettings()) if text]
    needed = "`--source` and `--output` must be given, and `--target` where `--source` is a text file."
    parts.append(f"## towernmt prepare\n\n{needed}\n\n" + _table(rows))
    parts.append(FORMER_KEYS + _former())
    return "\n".join(parts)


def _table(rows: Iterable[tuple[str, Any, str]]) -> str:
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for key, value, text in rows:
        lines.append(f"| `{key}` | {_shown(value)} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _former() -> str:
    lines = ["| former name | name |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in FORMER.renamed.items()]
    lines += [f"| `{old}` | removed; it is always {_shown(removed.value)} |" for old, removed in FORMER.removed.items()]
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
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
