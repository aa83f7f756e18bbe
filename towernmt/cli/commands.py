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
    --valid-target valid.en --output data/de-en"""),
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
        """towernmt train --data data/de-en --logdir runs/de-en --set train.minutes=30
towernmt train --data data/de-en --logdir runs/de-en --workers 4
towernmt train --help-settings schedule"""),
    "tune": Command(
        "towernmt.cli.training.tune", "search for settings by many runs, of which the best go on",
        """towernmt tune --data data/de-en --preset tiny --space space.yaml --output search \\
    --set train.steps=3000 validation.steps=300 --trials 20"""),
    "plot": Command(
        "towernmt.cli.runs.plot", "draw loss, scores, rate and speed of runs, and what differs between them",
        """towernmt plot runs/de-en --output curves.png
towernmt plot base=runs/a new=runs/b --x minutes --output curves.html
towernmt plot 'runs/*' --output curves.svg --panels loss validation-bleu"""),
    "compare": Command(
        "towernmt.cli.runs.compare", "tell how runs differ and how they went; with a test set, which is better",
        """towernmt compare runs/a runs/b
towernmt compare base=runs/a new=runs/b --source test.de --reference test.en --html page.html"""),
    "translate": Command(
        "towernmt.cli.translation.translate", "translate lines from standard input",
        """towernmt translate --model runs/de-en --beam 5 < test.de > test.hyp
towernmt translate --model runs/de-en --input test.de --n-best 3
towernmt translate --model runs/en-de --input 'mono/*.en.gz' --output back/ --workers 4
towernmt translate --model de-en.towernmt.zip --document brief.docx --output letter.docx"""),
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
    "export": Command(
        "towernmt.cli.translation.export", "write a trained model for other programs",
        "towernmt export --model runs/de-en --format FORMAT --output de-en"),
    "package": Command(
        "towernmt.cli.shipping.package", "put a trained model into one file, with its model card, for others",
        """towernmt package --model runs/de-en --output de-en.towernmt.zip --languages de-en \\
    --licence CC-BY-4.0 --test test.de test.en
towernmt package --model runs/de-en --output de-en.towernmt.zip --card card.yaml --precision int8 \\
    --include ctranslate2:int8"""),
    "serve": Command(
        "towernmt.cli.serving.serve", "serve trained models over HTTP, as LibreTranslate and DeepL do",
        """towernmt serve --model de-en=runs/de-en
towernmt serve --model de-en=runs/de-en --model en-de=runs/en-de --engine ctranslate2 --precision int8 \\
    --host 0.0.0.0 --keys keys.jsonl"""),
    "serve-keys": Command(
        "towernmt.cli.serving.serve_keys", "make, list and remove the keys of a server's callers",
        """towernmt serve-keys add anna --keys keys.jsonl --rate 60
towernmt serve-keys remove anna --keys keys.jsonl"""),
    "check": Command(
        "towernmt.cli.training.check", "check a model against the rules of tower functions",
        "towernmt check my_model.py:MyModel"),
    "average": Command(
        "towernmt.cli.training.average", "make one checkpoint from the mean weights of several",
        "towernmt average --model runs/de-en --last 5"),
    "grow": Command(
        "towernmt.cli.training.grow", "give a trained run the vocabulary of other data",
        "towernmt grow --model runs/de-en --vocabulary data/more --output runs/grown"),
    "import": Command(
        "towernmt.cli.training.import_model", "make a run of a model that another system trained",
        "towernmt import opus-mt-de-en --from marian --output runs/opus-de-en"),
    "completion": Command(
        "towernmt.cli.completion", "print the completion of commands and options for a shell",
        "towernmt completion bash > ~/.local/share/bash-completion/completions/towernmt"),
}
