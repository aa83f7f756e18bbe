r"""COMET as a metric of `towernmt evaluate`, computed by a separate process.

    python -m venv comet && comet/bin/pip install unbabel-comet
    COMET_PYTHON=comet/bin/python towernmt evaluate --source test.de --reference test.en \
        --system base=base.en --system new=new.en --metric examples/comet_metric.py:comet

COMET needs PyTorch, whose packages do not fit into one environment with TensorFlow. COMET_PYTHON is the Python of an
environment with COMET; COMET_MODEL is the model (default: Unbabel/wmt22-comet-da, which is downloaded once). Scores are
multiplied by 100.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from towernmt import DataError, SettingsError

_PROGRAM = """
import json, os, sys
from comet import download_model, load_from_checkpoint
output, sys.stdout = sys.stdout, sys.stderr     # libraries print to standard output
model = load_from_checkpoint(download_model(os.environ.get("COMET_MODEL", "Unbabel/wmt22-comet-da")))
data = json.load(sys.stdin)
json.dump([float(score) for score in model.predict(data, batch_size=16, gpus=0).scores], output)
"""


def comet(sources: Sequence[str] | None, translations: Sequence[str], references: Sequence[Sequence[str]]
          ) -> list[float]:
    """Return the COMET score of each translation, with the first reference."""
    if sources is None:
        raise SettingsError("COMET compares translations with the source, too: pass --source.")
    rows = [{"src": source, "mt": translation, "ref": reference}
            for source, translation, reference in zip(sources, translations, references[0], strict=True)]
    python = os.environ.get("COMET_PYTHON", sys.executable)
    try:
        process = subprocess.run([python, "-c", _PROGRAM], input=json.dumps(rows), capture_output=True, text=True)
    except OSError as error:
        raise DataError(f"COMET_PYTHON={python} cannot be started ({error.strerror}): set it to the Python of an "
                        "environment with unbabel-comet.") from None
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise DataError(f"COMET failed ({reason}): set COMET_PYTHON to the Python of an environment with "
                        "unbabel-comet.")
    return [100 * score for score in json.loads(process.stdout)]
