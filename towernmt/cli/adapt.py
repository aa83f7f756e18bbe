"""`towernmt adapt`: adapt a model to corrections of its translations, and package it if it became better."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from towernmt.core.errors import SettingsError
from towernmt.core.settings import parse_assignments


def add_adapt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `towernmt adapt`."""
    parser.add_argument("--model", metavar="MODEL", required=True,
                        help="the model to adapt: a run, a package, or a model of another system (see `towernmt train "
                             "--start`)")
    parser.add_argument("--corrections", metavar="FILE", required=True,
                        help="corrections: a file of `towernmt serve --suggestions`, or lines with time, model, "
                             "source, translation and suggestion, separated by tabs")
    parser.add_argument("--test", nargs=2, metavar=("SOURCE", "REFERENCE"), required=True,
                        help="test set of the old domain, of at least 100 sentences, on which the new model must not "
                             "be significantly worse")
    parser.add_argument("--output", metavar="FILE", required=True,
                        help="file of the new package; an older package is replaced only by a better model")
    parser.add_argument("--general", metavar="DATA",
                        help="prepared data of the old domain, which are mixed in (see `towernmt train --general`)")
    parser.add_argument("--direction", metavar="CODE", help="direction of the corrections, as de-en, if the file has "
                                                            "several")
    parser.add_argument("--no-text-check", action="store_true",
                        help="accept corrections and a test set that seem to have the opposite direction, or to be no "
                             "translations")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N",
                        help="maximum training time; 0: until the validation no longer improves (default: %(default)s)")
    parser.add_argument("--licence", "--license", metavar="NAME",
                        help="licence of the package (default: that of the package to adapt)")
    parser.add_argument("--languages", metavar="PAIR",
                        help="source and target of the package, as de-en (default: those of the package to adapt)")
    parser.add_argument("--source-prefix", metavar="TEXT",
                        help="text before each source line, such as the tag of the target language of a multilingual "
                             "model: '<2de>' (default: that of the package to adapt)")
    parser.add_argument("--work-directory", metavar="DIRECTORY",
                        help="directory of the prepared corrections and the run, from which an interrupted adaptation "
                             "resumes (default: OUTPUT.work)")
    parser.add_argument("--set", dest="assignments", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="settings of the training, as for `towernmt train`")
    parser.add_argument("--trust-code", action="store_true", help="execute the code of a custom model in a package")


def run_adapt(options: argparse.Namespace) -> int:
    """Adapt a model, print the comparison, and return the exit status: 1 if no package was written."""
    if not 0 <= options.minutes < math.inf:
        raise SettingsError(f"--minutes {options.minutes:g} must be a number of at least 0.")
    overrides = {"train.minutes": options.minutes, **parse_assignments(options.assignments)}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    from towernmt.checkpoint.packaged_run import PackagedRun
    from towernmt.core.terminal_log import configure_terminal_log
    from towernmt.interop.model_card import card_text, card_text_of_package
    from towernmt.interop.starting_models import open_starting_model
    from towernmt.jobs.adaptation import AdaptationJob, adapt_model  # imports TensorFlow

    model = open_starting_model(options.model, "--model", options.trust_code)
    card_fields = {name: getattr(options, name) for name in ("licence", "languages", "source_prefix")}
    card = (card_text_of_package(model.run.card, card_fields) if isinstance(model.run, PackagedRun)
            else card_text(None, card_fields))
    configure_terminal_log(verbose=False)
    work = Path(options.work_directory or f"{options.output}.work")
    job = AdaptationJob(model, Path(options.corrections), tuple(options.test), Path(options.output), work, card,
                        options.direction, options.general, overrides, not options.no_text_check)
    result = adapt_model(job, lambda text: print(text, flush=True))
    if result.status:
        print("The adaptation was stopped; the same command resumes it.")
        return result.status
    if result.rejection:
        print(f"No package was written, because {result.rejection}.")
        return 1
    print(f"{options.output}: the adapted model. A server that serves this file takes it up without a pause after "
          "SIGHUP or POST /admin/reload.")
    return 0
