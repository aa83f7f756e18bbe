"""The settings of a preparation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from towernmt.core.errors import SettingsError, mask_uri
from towernmt.core.settings import check_ranges, setting
from towernmt.dataflow.text.pair_filters import DUPLICATES, PairFilter, TextFilters, check_near
from towernmt.dataflow.text.pharaoh_alignments import LONGEST
from towernmt.dataflow.text.validation_set import ValidationFiles, named_sets
from towernmt.dataflow.vocabulary.base import MAX_SIZE, MIN_SIZE, SPECIAL_PIECES
from towernmt.dataflow.vocabulary.character_coverage import LEAST_COVERAGE
from towernmt.farm.ray_workers import check_ray

VOCABULARY_KINDS = ("unigram", "bpe", "bpe-codes", "word")
SENTENCEPIECE_KINDS = ("unigram", "bpe")
LEARN = "learn"
"""Value of `alignments` to learn them. A file of this name is passed as ./learn."""


def _filter(name: str) -> Any:
    """Return the declaration of a setting of `TextFilters`."""
    declared = TextFilters.__dataclass_fields__[name]
    return field(default=declared.default, metadata=declared.metadata)


@dataclass(frozen=True)
class PrepareSettings:
    """Settings of `prepare`: input, processing, and output."""

    source: str = setting(
        "", "Training text in the source language: UTF-8, one sentence a line (.gz is read too). Without --target: the "
        "URI of a source of sentence pairs, or a corpora.yaml.")
    target: str = setting("", "Translation of --source, line by line; not with a URI.")
    output: str = setting("", "Directory for the prepared data, or s3://bucket/prefix.")
    valid_source: str | list[str] | None = setting(
        None, "Validation text in the source language, stored as raw text; one file for each validation set.")
    valid_target: str | list[str] | None = setting(
        None, "Reference translations: one file for each --valid-source file, in the same order. For two references, "
        "pass two files for each source: both of the first set, then both of the second.")
    valid_name: list[str] = setting(
        [], "Name of each validation set in logs and scores. Default: the names of the source files without suffixes, "
        "and no name for a single set.")
    validation: Sequence[ValidationFiles] = ()      # for programs, instead of the three settings above
    source_factors: int = setting(
        0, "Number of source factors: each source word is followed by this number of fields after |, such as its "
        "part of speech (Haus|NOUN).", at_least=0, at_most=100)
    source_factor_files: list[str] = setting(
        [], "Source factors in separate files, line by line, one for each word; instead of --source-factors. In "
        "validation text and text to translate, factors always follow the words.")
    alignments: str | None = setting(
        None, "Word alignments of source and target for model.guided_alignment_weight: `learn` learns them from the "
        "text; or a file with a line for each pair, from 0, in the format of fast_align, eflomal and awesome-align "
        "(0-0 1-2).")
    vocab_kind: str = setting(
        "unigram", "Kind of vocabulary: SentencePiece unigram or bpe, subword-nmt bpe-codes, or plain words.",
        VOCABULARY_KINDS)
    vocab_size: int | None = setting(
        None, "Number of ids of each vocabulary, the four special ones included; none: chosen by the text, 8000 for "
        "plain words.",
        at_least=MIN_SIZE, at_most=MAX_SIZE)
    shared_vocab: bool | None = setting(
        None, "Whether both languages share one vocabulary; none: chosen together with the size, by their letters; two "
        "vocabularies with --vocab-size, an existing vocabulary or plain words.")
    source_vocab: str | None = setting(
        None, "An existing vocabulary for the source (.model, .codes or .words file); none: learn it.")
    target_vocab: str | None = setting(None, "An existing vocabulary for the target; none: learn it.")
    character_coverage: float | None = setting(
        None, "SentencePiece: share of the text's characters that become subwords; none: all characters, but at most "
        "as many as fill half of the vocabulary.", at_least=LEAST_COVERAGE, at_most=1)
    byte_fallback: bool = setting(
        False, "SentencePiece: encode other characters as bytes (256 subwords) instead of as unknown.")
    split_digits: bool = setting(False, "Make each digit a separate subword; not for plain words.")
    vocab_symbols: str | None = setting(
        None, "SentencePiece: tokens that are always subwords, separated by commas, in addition to the tags of a "
        "corpora.yaml.")
    vocab_sentences: int = setting(
        1_000_000, "Number of sentences that a vocabulary is learned from: a random sample of a larger text.",
        at_least=1)
    max_length: int = setting(
        200, "Maximum number of tokens of either side, after segmentation; longer pairs are dropped.", at_least=1)
    max_length_ratio: float = setting(
        9.0, "Maximum ratio of the lengths of the longer and the shorter side, in tokens; other pairs are dropped.",
        at_least=1)
    drop_identical: bool = _filter("drop_identical")
    match_digits: bool = _filter("match_digits")
    match_punctuation: bool = _filter("match_punctuation")
    source_script: str | None = _filter("source_script")
    target_script: str | None = _filter("target_script")
    script_share: float = _filter("script_share")
    source_language: str | None = _filter("source_language")
    target_language: str | None = _filter("target_language")
    language_confidence: float = _filter("language_confidence")
    duplicates: str = setting(
        "keep", "Repeated pairs: keep them, drop exact duplicates, or drop near duplicates, too (most of their "
        "two-word sequences are equal; needs towernmt[filters]). The first is kept.", DUPLICATES)
    shard_pairs: int = setting(
        1_000_000, "Number of lines of each shard; training shuffles shards, and pairs within a shard.", at_least=1)
    seed: int = setting(1, "Seed of the sample for the vocabulary and of the distribution over shards.", at_least=0)
    workers: int = setting(
        0, "Number of processes; 0: one for each processor. The result does not depend on it.", at_least=0,
        at_most=1000)
    ray: str | None = setting(
        None, "Run on a Ray cluster: the one at this address; without an address the running one, or a new one on this "
        "machine. All machines need the text and --output (for s3://, TMPDIR) under the same paths. Needs "
        "towernmt[ray].")
    overwrite: bool = setting(False, "Replace another preparation in the output directory.")

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the result, except files, which are compared by content."""
        others = ("source", "target", "output", "valid_source", "valid_target", "valid_name", "validation",
                  "source_vocab", "target_vocab", "workers", "ray", "overwrite", "source_factors",
                  "source_factor_files", "alignments")
        settings = {name: value for name, value in asdict(self).items() if name not in others}
        names = [f"{files.tag} {files.name}".strip() for files in self.validation_files()]
        if self.learns_alignments:
            settings["alignments"] = LEARN
        return {**settings, "source_factors": self.factors, "validation_sets": names}

    def validation_files(self) -> list[ValidationFiles]:
        """Return the files of the validation sets.

        Raises:
            SettingsError: the numbers of files differ, or a name is invalid.
        """
        if self.validation:
            return named_sets(self.validation, "validation")
        sources, targets = _listed(self.valid_source), _listed(self.valid_target)
        if bool(sources) != bool(targets):
            raise SettingsError("--valid-source and --valid-target belong together: pass both or none.")
        if sources and len(targets) % len(sources):
            raise SettingsError(f"--valid-target names {len(targets)} files for {len(sources)} validation sets: "
                                "pass the same number of references for each (in a corpora.yaml, numbers may differ).")
        if self.valid_name and len(self.valid_name) != len(sources):
            raise SettingsError(f"--valid-name gives {len(self.valid_name)} names for {len(sources)} validation sets: "
                                "pass one for each, or none.")
        count = len(targets) // max(len(sources), 1)        # references of each source
        return named_sets([ValidationFiles(name, source, targets[number * count:(number + 1) * count])
                           for number, (name, source) in enumerate(
                               zip(self.valid_name or [""] * len(sources), sources, strict=True))], "--valid-name")

    @property
    def pair_filter(self) -> PairFilter:
        """The filter of the pairs."""
        texts = TextFilters(**{name: getattr(self, name) for name in TextFilters.__dataclass_fields__})
        return PairFilter(self.max_length, self.max_length_ratio, texts, self.duplicates)

    @property
    def learns_alignments(self) -> bool:
        """Whether the preparation learns the alignments."""
        return self.alignments == LEARN

    @property
    def alignment_file(self) -> str | None:
        """Path of the file of alignments; None without one."""
        return None if self.learns_alignments else self.alignments

    @property
    def symbols(self) -> tuple[str, ...]:
        """The distinct tokens of `vocab_symbols`."""
        tokens = (token.strip() for token in (self.vocab_symbols or "").split(","))
        return tuple(dict.fromkeys(token for token in tokens if token))

    @property
    def factors(self) -> int:
        """Number of source factors."""
        return self.source_factors or len(self.source_factor_files)

    def text_files(self) -> list[str]:
        """Return the paths of all text files that are read line by line."""
        training = [self.source, self.target] if self.target else []
        validation = [path for files in self.validation_files() for path in (files.source, *files.targets)]
        alignments = [self.alignment_file] if self.alignment_file else []
        return [*training, *validation, *alignments, *self.source_factor_files]

    def check(self) -> None:
        """Refuse missing and invalid settings.

        Raises:
            SettingsError: a setting is missing or invalid.
        """
        for name in ("source", "output"):
            if not getattr(self, name):
                raise SettingsError(f"--{name} is missing: `towernmt prepare` needs --source (with --target, or a "
                                    "URI) and --output.")
        self._refuse_empty_texts()
        self._check_locations()
        check_ranges(self, format_value=lambda key, value: f"--{key.replace('_', '-')} {value}")
        self._check_annotations()
        self.pair_filter.texts.check()
        if self.duplicates == "near":
            check_near()
        if self.split_digits and self.vocab_kind == "word":
            raise SettingsError("--split-digits with --vocab-kind word: plain words are not split. Choose another "
                                "--vocab-kind, or remove --split-digits.")
        for symbol in self.symbols:
            if len(symbol.split()) > 1 or symbol in SPECIAL_PIECES:
                problem = "a token cannot contain white space" if symbol.split()[1:] else "this token is reserved"
                raise SettingsError(f"--vocab-symbols {symbol}: {problem}. Write tokens such as <a>,<b>.")
        for name in ("character_coverage", "byte_fallback", "vocab_symbols"):
            if getattr(self, name) and self.vocab_kind not in SENTENCEPIECE_KINDS:
                option = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{option} with --vocab-kind {self.vocab_kind}: only SentencePiece has it. "
                                    f"Remove {option}, or choose --vocab-kind {' or '.join(SENTENCEPIECE_KINDS)}.")
        if self.ray is not None:
            check_ray()
        files = {path for path in (self.source_vocab, self.target_vocab) if path}
        if self.shared_vocab and len(files) > 1:
            raise SettingsError("--shared-vocab with two different vocabulary files: pass one file, or remove "
                                "--shared-vocab.")

    def _refuse_empty_texts(self) -> None:
        """Refuse empty texts, such as the value of a shell variable that is not set."""
        for setting_field in fields(self):
            name, value = setting_field.name, getattr(self, setting_field.name)
            if name not in ("target", "ray") and (value == "" or (isinstance(value, list) and "" in value)):
                option = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{option} is empty: pass a value, or leave out {option}.")

    def _check_locations(self) -> None:
        if "://" in self.output and not self.output.startswith("s3://"):
            raise SettingsError(f"--output {mask_uri(self.output)}: expected a directory, or s3://bucket/prefix.")
        for path in self.text_files():
            if "://" in path:
                raise SettingsError(f"{mask_uri(path)}: expected the path of a text file, not a URI. If --source is "
                                    "the URI of sentence pairs, do not pass --target.")

    def _check_annotations(self) -> None:
        if self.source_factors and self.source_factor_files:
            raise SettingsError("--source-factors is for factors in the source text, --source-factor-files for factors "
                                "in other files: pass one of them.")
        if not self.target and (self.alignment_file or self.source_factor_files):
            option = "--alignments" if self.alignment_file else "--source-factor-files"
            raise SettingsError(f"{option} belongs to text files, line by line: pass --source and --target files "
                                "instead of a URI or a corpora.yaml.")
        if self.alignments and self.max_length >= LONGEST:
            raise SettingsError(f"--max-length {self.max_length} with --alignments: links can point into {LONGEST - 1} "
                                "tokens at most; lower it.")


def _listed(paths: str | list[str] | None) -> list[str]:
    return [paths] if isinstance(paths, str) else list(paths or ())
