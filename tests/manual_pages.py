"""The code in pages of the manual, and small models and texts for the commands in it."""

from __future__ import annotations

import random
import re

SMALL_MODEL = ("train.precision=float32 model.hidden_size=32 model.filter_size=64 model.heads=2 model.encoder_layers=1 "
               "model.decoder_layers=1 search.beam_size=2 optimizer.learning_rate=0.01 data.batch_tokens=512 "
               "optimizer.name=adam")
"""Settings of a model that learns to translate `random_lines` in few updates."""


def code_blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def shell_lines(text: str) -> list[str]:
    """Return the commands of a page, one per line."""
    return [line for block in code_blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]


def on_one_tower(command: str) -> str:
    """Return a command which trains on one tower, if it trains: the graph of two is larger, and takes longer."""
    return re.sub("^towernmt train ", "towernmt train --towers 1 ", command)


def random_lines(chance: random.Random, count: int) -> list[list[str]]:
    """Return lines of three to six words of a toy language."""
    words = [first + second for first in "bdfgkl" for second in "aeio"]
    return [chance.choices(words, k=chance.randint(3, 6)) for _ in range(count)]
