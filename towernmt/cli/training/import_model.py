"""`towernmt import`: a model that another system trained, as a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote

from towernmt.importing.formats import FORMATS, foreign_format


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `towernmt import`."""
    systems = "; ".join(f"{name}: {system.help}" for name, system in FORMATS.items())
    parser.add_argument("path", metavar="PATH", help="the model: which file or folder, --from says")
    parser.add_argument("--from", dest="system", metavar="SYSTEM", required=True, help=systems)
    parser.add_argument("--output", metavar="DIRECTORY", required=True, help="where the run goes")
    parser.add_argument("--vocabularies", nargs=2, metavar="FILE",
                        help="the vocabularies of source and target (default: those that the model names, or that lie "
                             "beside it)")
    parser.add_argument("--pieces", nargs=2, metavar="FILE",
                        help="what divides source and target into pieces: SentencePiece models (.spm, .model) or "
                             "subword-nmt codes (.bpe) (default: source.spm and target.spm, or .bpe, beside the model)")
    parser.add_argument("--heads", type=int, metavar="N",
                        help="attention heads, which some systems do not write down (default: as is usual for the "
                             "model's width)")


def run(args: argparse.Namespace) -> int:
    """Import, and print how to go on; returns the exit status."""
    system = foreign_format(args.system)

    from towernmt.importing.foreign_model import ImportRequest
    from towernmt.importing.imported_run import KEPT, write_imported_run  # imports TensorFlow

    request = ImportRequest(Path(args.path), _pair(args.vocabularies), _pair(args.pieces), args.heads)
    model = system.reader()(request)
    write_imported_run(model, args.output)
    s = model.settings
    print(f"{args.output}: {model.origin}, {s.encoder_layers} + {s.decoder_layers} layers of {s.hidden_size}, "
          f"{model.source.size} and {model.target.size} pieces.")
    if model.kept:
        print(f"{Path(args.output) / KEPT}: {', '.join(file.name for file in model.kept)}, as they came.")
    for note in model.notes:
        print(note)
    print(f"Translate with\ntowernmt translate --model {quote(args.output)}\nand train it on data with its vocabulary "
          f"with\ntowernmt train --data DATA --logdir NEW --config {quote(str(Path(args.output) / 'settings.yaml'))} "
          f"--set {quote(f'init.checkpoint={args.output}')}")
    return 0


def _pair(files: list[str] | None) -> tuple[Path, Path] | None:
    return (Path(files[0]), Path(files[1])) if files else None
