"""Draw the learning curve of a run: python docs/make_curve.py RUN FILE.svg (needs matplotlib)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

TRAINING, VALIDATION, BLEU = "#5c6bc0", "#ff7043", "#26a69a"


def curve(rows: list[dict[str, float]], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of a scalar, where it was written."""
    found = [(int(row["global_step"]), row[name]) for row in rows if name in row]
    return [step for step, _ in found], [value for _, value in found]


def main(run: Path, output: Path) -> None:
    """Loss on the left, BLEU on the right, over the updates."""
    lines = (run / "log" / "stats.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    plt.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 11})
    figure, loss = plt.subplots(figsize=(7.2, 3.4), layout="constrained", facecolor="white")
    score = loss.twinx()
    loss.plot(*curve(rows, "nll"), color=TRAINING, label="training")
    loss.plot(*curve(rows, "validation_loss"), color=VALIDATION, marker="o", markersize=4, label="validation")
    score.plot(*curve(rows, "validation_bleu"), color=BLEU, marker="s", markersize=4, label="BLEU")
    loss.set(xlabel="updates", ylabel="loss, nats a target token", ylim=(0, None), xlim=(0, None))
    score.set_ylabel("validation BLEU", color=BLEU)
    score.set_ylim(0, None)
    loss.grid(alpha=0.25)
    for axes in (loss, score):
        axes.spines["top"].set_visible(False)
    handles = [*loss.get_lines(), *score.get_lines()]
    loss.legend(handles, [str(handle.get_label()) for handle in handles], loc="center right", frameon=False)
    figure.savefig(output, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
