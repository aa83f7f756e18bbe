"""Write docs/reference/settings.md from the dataclasses of the settings.

python docs/make_settings.py
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from towernmt.core.settings import assigned, describe
from towernmt.dataflow import PrepareSettings
from towernmt.models import ARCHITECTURES, architecture
from towernmt.run import default_settings
from towernmt.run.resume import FIXED_KEYS
from towernmt.run.run_settings import VOCABULARY_SIZES

PAGE = Path(__file__).parent / "reference" / "settings.md"
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
[Callbacks](../guide/callbacks.md#learning-rate) has the formulas of the schedules.

(`python docs/make_settings.py` generates this page from the dataclasses.)
"""
FIXED = f"""\
Once a run has checkpoints, these settings are fixed: `model.*`, except dropout and label smoothing;
{", ".join(f"`{key}`" for key in FIXED_KEYS)}.
"""


def page() -> str:
    """Return the Markdown text of the page."""
    parts = [HEAD, FIXED]
    for name in ARCHITECTURES:
        kind = architecture(name)
        rows = [row for row in describe(kind.settings(), "model.") if row[0] not in VOCABULARY_SIZES]
        parts.append(f"## model.* of `{name}`\n\n" + _table(rows))
        parts.append(_presets(kind))
    for name, group in vars(default_settings()).items():
        if name != "model" and dataclasses.is_dataclass(group):
            purpose = (inspect.getdoc(group) or "").splitlines()[0]
            parts.append(f"## {name}.*\n\n{purpose}\n\n" + _table(describe(group, f"{name}.")))
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
