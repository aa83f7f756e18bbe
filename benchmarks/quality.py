"""Compare BLEU over the minutes of towernmt and other programs on the same text, subwords and processors.

    python benchmarks/quality.py --text corpora/de-en --languages de en --work quality --minutes 10 30 60 --cpus 0,1 \
        --opennmt-python venvs/onmttf/bin/python --fairseq-python venvs/fairseq/bin/python \
        --marian marian-dev/build/marian --pytorch-python venvs/pytorch/bin/python --draw quality.svg
    python benchmarks/quality.py ... --only fairseq             # one program; the results of all programs are kept
    python benchmarks/quality.py ... --shape tiny               # peers with a model of the size of preset `tiny`

Each program trains with its own recipe and translates the test set with its own beam search (beam 5). sacreBLEU scores
the detokenised text.

    towernmt    `train --defaults automatic --set train.minutes=M`: a separate run for each M, since the rate decays
                to the end of a run. Its minutes include validation and checkpoints.
    fairseq     the recipe for IWSLT'14 German-English of examples/translation/README.md (github.com/facebookresearch/
                fairseq): transformer_iwslt_de_en, Adam (0.9, 0.98), 5e-4, inverse_sqrt, 4,000 updates of warm-up,
                dropout 0.3, weight decay 1e-4, label smoothing 0.1, 4,096 tokens; the best checkpoint by validation
                up to that minute.
    opennmt-tf  `--auto_config --model_type Transformer`, as https://opennmt.net/OpenNMT-tf/configuration.html and
                .../training.html recommend (LazyAdam, Noam 2.0, 8,000 updates of warm-up, 25,000 tokens per update in
                batches of 3,072, dropout 0.1, label smoothing 0.1); the last checkpoint or the average of the last 8,
                whichever is better in validation. Its documentation has no recipe for small corpora; its author says
                that 20,856 sentences are not enough, "especially with the default auto configuration"
                (github.com/OpenNMT/OpenNMT-tf/issues/771).
    marian      `--task transformer-base` (Adam, 3e-4, 16,000 updates of warm-up, inverse square root, dropout 0.1,
                label smoothing 0.1, a moving average of the weights, as many tokens as fit 9,500 MB); the last
                checkpoint.
    pytorch     a loop in PyTorch, compiled by torch.compile, with the recipe that towernmt chose for the longest
                minutes, and towernmt's initial embeddings; the last checkpoint.

A peer trains once, up to the largest value of --minutes, and keeps a checkpoint every --every minutes. Its time to
start, to make the first update, and to save and select checkpoints does not count (`quality_clock.py`).
`--opennmt-config`, `--fairseq-options` and `--marian-options` change a recipe; name the changed recipe with --variant.

All files are in --work; results are appended to --results (default WORK/results.jsonl). Finished work is skipped, and
an interrupted training (Ctrl-C, SIGTERM) resumes from its last checkpoint. Programs on different processors may run at
the same time with the same --work.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from quality_peers import Mark, Ours, Peer, Plan, run_program
from quality_recipes import Fairseq, Marian, OpenNMTTF, PyTorch
from quality_results import Result, append_result, draw, read_results, scores
from quality_text import Texts, read_lines, shared_vocabulary, unpieced, write_pieces

from towernmt.core.directories import DirectoryLock
from towernmt.core.errors import DataError, SettingsError, TowerNMTError
from towernmt.core.files import write_text
from towernmt.dataflow.preparation.prepared_data import PreparedData
from towernmt.dataflow.vocabulary.base import Vocabulary

PEERS = ("towernmt", "opennmt-tf", "fairseq", "marian", "pytorch")


def main(arguments: list[str] | None = None) -> None:
    """Train, score and draw as the options request."""
    run(compare, parser(__doc__).parse_args(arguments))


def run(program: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Call `program(options)`, and end as command-line programs do after an error, Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        program(options)
    except TowerNMTError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="with train, valid and test text")
    parser.add_argument("--languages", nargs=2, default=["de", "en"], metavar="NAME", help="suffixes of the file names")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="folder of all output")
    parser.add_argument("--data", type=Path, metavar="DIR", help="prepared data, instead of WORK/prepared")
    parser.add_argument("--vocab-size", type=int, default=8000, metavar="N", help="vocabulary size of WORK/prepared")
    parser.add_argument("--minutes", type=float, nargs="+", default=[10, 30, 60], metavar="M")
    parser.add_argument("--every", type=float, metavar="MINUTES", help="between checkpoints (default: longest / 10)")
    parser.add_argument("--cpus", default="", metavar="N,N", help="processors to use (default: all available)")
    parser.add_argument("--only", choices=PEERS, action="append", help="run only this program; repeatable")
    parser.add_argument("--shape", choices=("recipe", "tiny"), default="recipe", help="size of the peers' models")
    parser.add_argument("--opennmt-python", metavar="FILE", help="a Python with OpenNMT-tf")
    parser.add_argument("--fairseq-python", metavar="FILE", help="a Python with fairseq")
    parser.add_argument("--marian", metavar="FILE", help="Marian's program of this name")
    parser.add_argument("--pytorch-python", metavar="FILE", help="a Python with PyTorch")
    parser.add_argument("--opennmt-config", type=Path, metavar="FILE", help="overrides the automatic configuration")
    parser.add_argument("--fairseq-options", default="", metavar="'WORDS'", help="appended to the recipe")
    parser.add_argument("--marian-options", default="", metavar="'WORDS'", help="appended to the recipe")
    parser.add_argument("--variant", metavar="NAME", help="name of the peers' runs (default: --shape)")
    parser.add_argument("--valid-sentences", type=int, default=500, metavar="N", help="to select a peer's checkpoint")
    parser.add_argument("--results", type=Path, metavar="FILE", help="default: WORK/results.jsonl")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="plot of BLEU over minutes, .svg or .png")
    parser.add_argument("--draw-only", action="store_true", help="only draw the existing results")
    return parser


def compare(options: argparse.Namespace) -> None:
    """Run the unfinished trainings, score their checkpoints and draw the results."""
    results = options.results or options.work / "results.jsonl"
    if not options.draw_only:
        plan = plan_of(options)
        peers = peers_of(options, plan)
        texts = Texts(options.text, options.languages)
        vocabulary = prepare(options, plan, texts)
        for peer in peers:
            with training_lock(peer):
                print(f"{peer.name}, {peer.variant}: training", flush=True)
                peer.train()
                score(peer, texts, vocabulary, results)
    if options.draw:
        draw(read_results(results), options.draw)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan of the options, and bind this process and its children to the processors.

    Raises:
        SettingsError: an option has an invalid value.
    """
    minutes = tuple(sorted(set(options.minutes)))
    every = options.every or minutes[-1] / 10
    if not minutes[0] > 0 or not every > 0:
        raise SettingsError(f"--minutes {minutes[0]:g} and --every {every:g} must be above 0.")
    allowed = os.sched_getaffinity(0)
    try:
        cpus = {int(number) for number in options.cpus.split(",")} if options.cpus else allowed
    except ValueError:
        raise SettingsError(f"--cpus {options.cpus}: expected numbers with commas between them, such as 0,1.") from None
    if not cpus <= allowed:
        raise SettingsError(f"--cpus {options.cpus}: this process may use {','.join(map(str, sorted(allowed)))}.")
    os.sched_setaffinity(0, cpus)
    work = options.work.resolve()
    return Plan(work, (options.data or work / "prepared").resolve(), minutes, every, len(cpus), options.shape)


def peers_of(options: argparse.Namespace, plan: Plan) -> list[Peer]:
    """Return the requested programs.

    Raises:
        SettingsError: the Python of a program is missing.
    """
    variant = options.variant or options.shape
    changed = options.opennmt_config or options.fairseq_options or options.marian_options
    if changed and variant in ("recipe", "tiny"):
        raise SettingsError("--opennmt-config, --fairseq-options and --marian-options change a recipe: name the change "
                            "with --variant.")
    make = {"towernmt": lambda: Ours(plan, "chosen"),
            "opennmt-tf": lambda: OpenNMTTF(plan, variant, options.opennmt_python, options.opennmt_config),
            "fairseq": lambda: Fairseq(plan, variant, options.fairseq_python, shlex.split(options.fairseq_options)),
            "marian": lambda: Marian(plan, variant, options.marian, shlex.split(options.marian_options)),
            "pytorch": lambda: PyTorch(plan, "chosen", options.pytorch_python)}
    return [make[name]() for name in PEERS if name in (options.only or PEERS)]


def prepare(options: argparse.Namespace, plan: Plan, texts: Texts) -> Vocabulary:
    """Prepare the data and the subword files unless they exist, and return the vocabulary."""
    with DirectoryLock(plan.work, "benchmarks/quality.py prepares"):
        if not (plan.data / "manifest.json").exists():
            words = [f"--{valid}{name}={texts.path(part, side)}" for valid, part in (("", "train"), ("valid-", "valid"))
                     for name, side in (("source", "src"), ("target", "tgt"))]
            run_program([sys.executable, "-m", "towernmt", "prepare", *words, "--vocab-size", str(options.vocab_size),
                         "--shared-vocab", "--output", str(plan.data)], plan.work / "prepare.log")
        vocabulary = shared_vocabulary(PreparedData(plan.data))
        if not (plan.pieces / "finished").exists():
            write_pieces(texts, vocabulary, plan.pieces, options.valid_sentences, plan.threads)
            write_text(plan.pieces / "finished", "")
    return vocabulary


def training_lock(peer: Peer) -> DirectoryLock:
    """Return the lock that keeps two programs from training the same peer in the same directory."""
    return DirectoryLock(peer.folder, "benchmarks/quality.py")


def score(peer: Peer, texts: Texts, vocabulary: Vocabulary, results: Path) -> None:
    """Append a result for each mark without one."""
    scored = {result.key for result in read_results(results)}
    for mark in peer.marks():
        key = (peer.name, peer.variant, peer.plan.threads, mark.minutes)
        if key not in scored:
            result = result_of(peer, mark, texts, vocabulary)
            append_result(results, result)
            print(f"{peer.name}, {peer.variant}: {result.minute:.1f} minutes, {result.updates:,} updates, BLEU "
                  f"{result.bleu:.2f}, chrF {result.chrf:.1f}", flush=True)


def result_of(peer: Peer, mark: Mark, texts: Texts, vocabulary: Vocabulary) -> Result:
    """Score a mark with the candidate that is best on the validation sentences."""
    checkpoint, valid_bleu = best_candidate(peer, mark, texts, vocabulary)
    bleu, chrf, signature = quality_of(peer, checkpoint, "test", texts, vocabulary)
    return Result(peer.name, peer.variant, peer.plan.threads, mark.minutes, mark.minute, bleu, chrf, valid_bleu,
                  mark.updates, mark.target_tokens, checkpoint_name(checkpoint), signature, peer.version)


def best_candidate(peer: Peer, mark: Mark, texts: Texts, vocabulary: Vocabulary) -> tuple[str, float | None]:
    """Return the checkpoint with the highest validation BLEU (the last one on a tie), and this BLEU.

    BLEU is None if there is only one candidate.
    """
    if len(mark.candidates) == 1:
        return mark.candidates[0], None
    bleu, number = max((quality_of(peer, candidate, "valid", texts, vocabulary)[0], number)
                       for number, candidate in enumerate(mark.candidates))
    return mark.candidates[number], bleu


def quality_of(peer: Peer, checkpoint: str, part: str, texts: Texts, vocabulary: Vocabulary
               ) -> tuple[float, float, str]:
    """Translate a part with a checkpoint, keep the translations, and return BLEU, chrF and the BLEU signature.

    Raises:
        DataError: the number of translations is wrong.
    """
    translation_path = peer.folder / "translations" / f"{checkpoint_name(checkpoint)}.{part}"
    source = peer.plan.pieces / f"{part}.src" if peer.reads_pieces else texts.path(part, "src")
    if not translation_path.exists():
        lines = peer.translate(checkpoint, part, source)
        if peer.reads_pieces:
            lines = unpieced(lines, vocabulary)
        write_text(translation_path, "".join(f"{line}\n" for line in lines))
    translations, expected = read_lines(translation_path), len(read_lines(source))
    if len(translations) != expected:
        raise DataError(f"{translation_path} has {len(translations)} translations of {expected} sentences: remove the "
                        "file, and read the log next to it.")
    return scores(translations, texts.lines(part, "tgt")[:expected])


def checkpoint_name(checkpoint: str) -> str:
    """Return a short name of a checkpoint or of an average of several."""
    names = [Path(name).name for name in checkpoint.split(",")]
    return names[0] if len(names) == 1 else f"mean-{names[0]}-{names[-1]}"


if __name__ == "__main__":
    main()
