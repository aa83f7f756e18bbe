"""The commands: the module of each, what it does, an example, and the options that name its outputs and inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from towernmt.core.directories import AVERAGES, PREPARATION, RUN


class Output(NamedTuple):
    """An option that names an output of a command. `check_output_paths` checks the output before the command runs.

    Attributes:
        owned: kinds of directories that the output may be written into; no command may write into other kinds.
        is_directory: whether the option names a directory, and not a file.
        may_be_several: whether a folder, or a path with `{name}`, stands for a file for each input.
        makes_folder: whether the command makes the folder of the file if it is missing.
        is_replaced: whether the command replaces the file as a whole, so that the file cannot be a pipe or a device.
        may_be_package: whether the command may replace a package.
    """

    owned: Collection[str] = ()
    is_directory: bool = False
    may_be_several: bool = False
    makes_folder: bool = False
    is_replaced: bool = False
    may_be_package: bool = False


FILE, DIRECTORY = Output(), Output(is_directory=True)
FILES = Output(may_be_several=True, makes_folder=True)
REPLACED_FILE = Output(makes_folder=True, is_replaced=True)


class Command(NamedTuple):
    """A command of `towernmt`.

    Attributes:
        module: contains the functions of the command; see `function_of`.
        help: one line about the command.
        example: lines for a shell.
        outputs: the options that name an output, by their destination. All other options that name paths are inputs.
        prints: whether the results go to standard output.
        instead_of_stdout: the option that sends these results to a file, or "".
        instead_of_stdin: for a command that reads standard input, the options that name files to read instead.
    """

    module: str
    help: str
    example: str
    outputs: Mapping[str, Output] = {}
    prints: bool = False
    instead_of_stdout: str = ""
    instead_of_stdin: tuple[str, ...] = ()


COMMANDS = {
    "prepare": Command(
        "towernmt.cli.data_commands", "make vocabularies and shards of integer ids from text",
        """towernmt prepare --source train.de --target train.en --valid-source valid.de \\
    --valid-target valid.en --output data/de-en""",
        {"output": DIRECTORY._replace(owned={PREPARATION})}),
    "load": Command(
        "towernmt.cli.data_commands", "put sentence pairs into a database table",
        "towernmt load --source 'crawl.{de,en}.gz' --output 'sqlite:///crawl.db?table=pairs'",
        {"output": FILE}),
    "inspect": Command(
        "towernmt.cli.data_commands", "report on sources: pairs, samples, lengths, speed, problems",
        """towernmt inspect corpora.yaml
towernmt inspect data/de-en --samples 10""",
        prints=True),
    "lexicon": Command(
        "towernmt.cli.data_commands", "learn a table of likely word translations, for shortlists",
        """towernmt lexicon --data data/de-en --output de-en.lexicon
towernmt lexicon --model runs/de-en --source train.de --target train.en --output de-en.lexicon""",
        {"output": REPLACED_FILE}),
    "pairs": Command(
        "towernmt.cli.pairs", "turn translated documents into sentence pairs with scores",
        """towernmt pairs brief.de.docx brief.en.docx --output pairs.tsv --review review.tsv
towernmt pairs german/ english/ --languages de-en --output pairs.tsv --threshold 0.3
towernmt pairs --reviewed review.tsv --output pairs.tsv""",
        {"output": FILE, "review": FILE}),
    "train": Command(
        "towernmt.cli.train", "train a model, or resume a run",
        """towernmt train --data data/de-en --logdir runs/de-en --set train.minutes=30
towernmt train --data data/de-en --logdir runs/de-en --workers 4
towernmt train --help-settings schedule""",
        {"logdir": DIRECTORY._replace(owned={RUN})}),
    "tune": Command(
        "towernmt.cli.tune", "search for settings by many runs, of which the best continue",
        """towernmt tune --data data/de-en --preset tiny --space space.yaml --output search \\
    --set train.steps=3000 validation.steps=300 --trials 20""",
        {"output": DIRECTORY}),
    "plot": Command(
        "towernmt.cli.comparison_commands", "draw loss, scores, rate and speed of runs, and what differs between them",
        """towernmt plot runs/de-en --output curves.png
towernmt plot base=runs/a new=runs/b --x minutes --output curves.html
towernmt plot 'runs/*' --output curves.svg --panels loss validation-bleu""",
        {"output": FILE}),
    "compare": Command(
        "towernmt.cli.comparison_commands", "report how runs and their results differ",
        """towernmt compare runs/a runs/b
towernmt compare base=runs/a new=runs/b --source test.de --reference test.en --html page.html""",
        {"html": FILE}, prints=True, instead_of_stdout="html"),
    "translate": Command(
        "towernmt.cli.translate", "translate lines from standard input",
        """towernmt translate --model runs/de-en --beam 5 < test.de > test.hyp
towernmt translate --model runs/de-en --input test.de --n-best 3
towernmt translate --model runs/en-de --input 'mono/*.en.gz' --output back/ --workers 4
towernmt translate --model de-en.towernmt.zip --document brief.docx --output letter.docx""",
        {"output": FILES, "alignments": FILES, "plot": Output(makes_folder=True), "work_directory": DIRECTORY},
        prints=True, instead_of_stdout="output", instead_of_stdin=("input", "document")),
    "evaluate": Command(
        "towernmt.cli.evaluate", "score translations of a test set (BLEU, chrF, TER), compare systems",
        """towernmt evaluate --model runs/de-en --source test.de --reference test.en
towernmt evaluate --source test.de --reference test.en --system runs/de-en --system other.en \\
    --html page.html""",
        {"hypothesis": FILE, "html": FILE}, prints=True, instead_of_stdout="html"),
    "score": Command(
        "towernmt.cli.pair_commands", "compute the log-probability of translations by a model",
        "towernmt score --model runs/de-en --source test.de --target test.en > scores",
        {"output": FILE}, prints=True, instead_of_stdout="output"),
    "rerank": Command(
        "towernmt.cli.rerank", "reorder n-best lists by further models or by minimum Bayes risk",
        """towernmt rerank --source test.de --reverse-model runs/en-de:0.5 < test.nbest > test.hyp
towernmt rerank --mbr chrf --input test.nbest --output test.hyp""",
        {"output": FILE}, prints=True, instead_of_stdout="output", instead_of_stdin=("input",)),
    "align": Command(
        "towernmt.cli.pair_commands", "align the words of sentence pairs, and evaluate alignments",
        """towernmt align --model runs/de-en --source train.de --target train.en --output train.links
towernmt align --links train.links --gold gold.links""",
        {"output": FILE}, prints=True, instead_of_stdout="output"),
    "export": Command(
        "towernmt.cli.exchange_commands", "write a trained model for other programs",
        "towernmt export --model runs/de-en --format FORMAT --output de-en",
        {"output": DIRECTORY}),
    "package": Command(
        "towernmt.cli.exchange_commands", "put a trained model and its model card into one file",
        """towernmt package --model runs/de-en --output de-en.towernmt.zip --languages de-en \\
    --licence CC-BY-4.0 --test test.de test.en
towernmt package --model runs/de-en --output de-en.towernmt.zip --card card.yaml --precision int8 \\
    --include ctranslate2:int8""",
        {"output": REPLACED_FILE}),
    "adapt": Command(
        "towernmt.cli.adapt", "adapt a model to corrections, and package it if it became better",
        """towernmt adapt --model de-en.towernmt.zip --corrections suggestions.tsv --test test.de test.en \\
    --output better.towernmt.zip""",
        {"output": REPLACED_FILE._replace(may_be_package=True), "work_directory": DIRECTORY}),
    "serve": Command(
        "towernmt.cli.server_commands", "serve trained models over HTTP, as LibreTranslate and DeepL do",
        """towernmt serve --model de-en=runs/de-en
towernmt serve --model de-en=runs/de-en --model en-de=runs/en-de --engine ctranslate2 --precision int8 \\
    --host 0.0.0.0 --keys keys.jsonl""",
        {"glossaries": REPLACED_FILE, "suggestions": FILE}),
    "serve-keys": Command(
        "towernmt.cli.server_commands", "add, list and remove the API keys of a server",
        """towernmt serve-keys add anna --keys keys.jsonl --rate 60
towernmt serve-keys remove anna --keys keys.jsonl""",
        {"keys": REPLACED_FILE}, prints=True),
    "check": Command(
        "towernmt.cli.diagnosis_commands", "check a model against the rules of tower functions",
        "towernmt check my_model.py:MyModel",
        prints=True),
    "devices": Command(
        "towernmt.cli.diagnosis_commands", "list the GPUs that TensorFlow can use, or why it can use none",
        "towernmt devices --verbose",
        prints=True),
    "average": Command(
        "towernmt.cli.checkpoint_commands", "make one checkpoint from the mean weights of several",
        "towernmt average --model runs/de-en --last 5",
        {"output": DIRECTORY._replace(owned={AVERAGES})}),
    "grow": Command(
        "towernmt.cli.checkpoint_commands", "give a trained run the vocabulary of other data, or more subwords",
        """towernmt grow --model runs/de-en --source medical.de --target medical.en --output runs/grown
towernmt grow --model runs/de-en --vocabulary data/more --output runs/grown""",
        {"output": DIRECTORY}),
    "import": Command(
        "towernmt.cli.exchange_commands", "convert a model of another system into a run",
        "towernmt import opus-mt-de-en --from marian --output runs/opus-de-en",
        {"output": DIRECTORY}),
    "completion": Command(
        "towernmt.cli.main", "print the completion of commands and options for a shell",
        "towernmt completion bash > ~/.local/share/bash-completion/completions/towernmt",
        prints=True),
}


def function_of(name: str, pattern: str) -> Callable[..., Any]:
    """Return a function of a command, and import the command's module.

    Args:
        name: name of the command, such as "serve-keys".
        pattern: "add_{}_arguments" for the function that adds the options to a parser; "run_{}" for the function that
            executes the command and returns the exit status.
    """
    command: Callable[..., Any] = getattr(import_module(COMMANDS[name].module), pattern.format(name.replace("-", "_")))
    return command
