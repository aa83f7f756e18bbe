"""The commands: where each lies, what it does, and an example of it."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command of `towernmt`.

    Attributes:
        module: has `add_arguments(parser)` and `run(options) -> int`; imported when the command is asked for.
        help: what it does, in one line.
        example: lines for a shell.
    """

    module: str
    help: str
    example: str


COMMANDS = {
    "prepare": Command(
        "towernmt.cli.data.prepare", "make vocabularies and shards of integer ids from text",
        """towernmt prepare --source train.de --target train.en --valid-source valid.de \\
    --valid-target valid.en --vocab-size 8000 --shared-vocab --output data/de-en"""),
    "load": Command(
        "towernmt.cli.data.load", "put sentence pairs into a database table",
        "towernmt load --source 'crawl.{de,en}.gz' --output 'sqlite:///crawl.db?table=pairs'"),
    "inspect": Command(
        "towernmt.cli.data.inspect", "look at sources: pairs, samples, lengths, speed, trouble",
        """towernmt inspect corpora.yaml
towernmt inspect data/de-en --samples 10"""),
    "lexicon": Command(
        "towernmt.cli.data.lexicon", "learn which words translate which, for shortlists",
        """towernmt lexicon --data data/de-en --output de-en.lexicon
towernmt lexicon --model runs/de-en --source train.de --target train.en --output de-en.lexicon"""),
    "train": Command(
        "towernmt.cli.training.train", "train a model, or go on with a run",
        """towernmt train --data data/de-en --preset tiny --logdir runs/de-en --set train.minutes=30
towernmt train --help-settings schedule"""),
    "translate": Command(
        "towernmt.cli.translation.translate", "translate lines from standard input",
        """towernmt translate --model runs/de-en --beam 5 < test.de > test.hyp
towernmt translate --model runs/de-en --input test.de --n-best 3"""),
    "evaluate": Command(
        "towernmt.cli.translation.evaluate", "score translations of a test set (BLEU, chrF, TER), compare systems",
        """towernmt evaluate --model runs/de-en --source test.de --reference test.en
towernmt evaluate --source test.de --reference test.en --system runs/de-en --system other.en \\
    --html page.html"""),
    "score": Command(
        "towernmt.cli.translation.score", "the log-probability that a model gives to translations",
        "towernmt score --model runs/de-en --source test.de --target test.en > scores"),
    "rerank": Command(
        "towernmt.cli.translation.rerank", "put n-best lists into another order, by further models or by MBR",
        """towernmt rerank --source test.de --reverse-model runs/en-de:0.5 < test.nbest > test.hyp
towernmt rerank --mbr chrf --input test.nbest --output test.hyp"""),
    "align": Command(
        "towernmt.cli.translation.align", "link the words of sentence pairs, and rate alignments",
        """towernmt align --model runs/de-en --source train.de --target train.en --output train.links
towernmt align --links train.links --gold gold.links"""),
    "check": Command(
        "towernmt.cli.training.check", "check a model against the rules of tower functions",
        "towernmt check my_model.py:MyModel"),
    "average": Command(
        "towernmt.cli.training.average", "make one checkpoint from the mean weights of several",
        "towernmt average --model runs/de-en --last 5"),
    "grow": Command(
        "towernmt.cli.training.grow", "give a trained run the vocabulary of other data",
        "towernmt grow --model runs/de-en --vocabulary data/more --output runs/grown"),
    "completion": Command(
        "towernmt.cli.completion", "print the completion of commands and options for a shell",
        "towernmt completion bash > ~/.local/share/bash-completion/completions/towernmt"),
}
