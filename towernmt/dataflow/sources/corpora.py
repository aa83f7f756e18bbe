"""The content of `corpora.yaml`: sources, their mixture, and the vocabulary, validation sets and filters of a training.

```yaml
sources:
  - {uri: '/data/europarl.{de,en}.gz', weight: 2}
  - {uri: 'sqlite:///crawl.db?table=pairs&where=score>0.7', tag: <crawl>, on_end: drop}
mix: temperature 5                   # or: by weight, or: concatenate
vocabulary: prepared/de-en           # or {source: de.model, target: en.model}, or one file for both
validation: {source: valid.de, target: valid.en}       # or a list of sets, each with a name, a tag, several targets
source_factors: 1                    # words as `Haus|NOUN`; by default, as the vocabulary's directory records
max_length: 200
max_length_ratio: 9
```
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from towernmt.core.errors import SettingsError, mask_text, mask_uri, remedy, suggestion
from towernmt.core.settings import apply_overrides, setting
from towernmt.core.structured_files import load_strict, read_yaml_text
from towernmt.dataflow.sources.mixture import ON_END, Ingredient, Mixture
from towernmt.dataflow.text.clean_text import clean
from towernmt.dataflow.text.pair_filters import PairFilter, TextFilters
from towernmt.dataflow.text.validation_set import ValidationFiles, named_sets
from towernmt.dataflow.vocabulary.base import UNK, Vocabulary
from towernmt.dataflow.vocabulary.source_factors import FactorError

if TYPE_CHECKING:
    from towernmt.dataflow.vocabulary.source_text import SourceText

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class SourceEntry:
    """One entry of `sources` in `corpora.yaml`."""

    uri: str = setting("", "URI of the source.")
    weight: float = setting(1.0, "Share of the pairs, in proportion to all weights.", above=0)
    tag: str = setting("", "Text that is put before each source text.")
    on_end: str | None = setting(None, "Action if the source ends before the epoch.", ON_END)

    def open(self) -> Ingredient:
        """Open the source that the URI names.

        Raises:
            SettingsError: the URI is not valid.
        """
        from towernmt.dataflow.sources.open_source import open_source

        return Ingredient(open_source(self.uri), self.weight, self.tag, self.on_end)


@dataclass(frozen=True)
class Sides:
    """A file for each side."""

    source: str = setting("", "file of the source language")
    target: str = setting("", "file of the target language")


@dataclass(frozen=True)
class Corpora:
    """The content of `corpora.yaml`, or its equivalent made by a program, before its sources are opened.

    Attributes:
        name: origin of the content, for messages.
        sources: one or more, as URIs, or as ingredients with a custom `Source`.
        mix, temperature: see `towernmt.dataflow.sources.mixture`.
        vocabulary: a directory, or the files of both sides; None if not specified.
        validation: the files of each validation set.
        source_factors: number of factors of each source word; None if not specified.
        pair_filter: filter of the pairs.
    """

    name: str
    sources: Sequence[SourceEntry | Ingredient]
    mix: str = "weight"
    temperature: float = 1.0
    vocabulary: Sides | str | None = None
    validation: Sequence[ValidationFiles] = ()
    source_factors: int | None = None
    pair_filter: PairFilter = field(default_factory=lambda: PairFilter(200, 9.0))

    def mixture(self, seed: int = 1, report: Callable[[str], None] | None = None) -> Mixture:
        """Open the sources and return their mixture.

        Args:
            seed: seed of the draws.
            report: called with a sentence when a source ends; None to write it to the log.

        Raises:
            SettingsError, DataError: a URI is not valid, or a setting has an impossible value.
        """
        ingredients = [entry if isinstance(entry, Ingredient) else entry.open() for entry in self.sources]
        return Mixture(ingredients, self.mix, self.temperature, seed, report)

    def open_vocabularies(self, replacement: str | Path | None = None) -> tuple[Vocabulary, Vocabulary, bool] | None:
        """Return the source and target vocabulary, and whether they are shared; None if no vocabulary is named.

        Args:
            replacement: replaces `vocabulary`: a directory, or the file of one vocabulary for both sides.

        Raises:
            DataError: see `towernmt.dataflow.vocabulary.vocabulary_files.open_vocabularies`.
        """
        from towernmt.dataflow.vocabulary.vocabulary_files import open_vocabularies

        location = self._location(replacement)
        return None if location is None else open_vocabularies(*location, self.source_factors)

    def source_text(self, replacement: str | Path | None = None) -> SourceText:
        """Return the facts about a source text next to the vocabulary of `open_vocabularies`; may be empty."""
        from towernmt.dataflow.vocabulary.source_text import SourceText

        location = self._location(replacement)
        return SourceText() if location is None else SourceText.load(location[0])

    def _location(self, replacement: str | Path | None) -> tuple[str | Path, str | Path | None] | None:
        """Return the paths of the source and target vocabulary; None as second path for a shared one or a directory."""
        location = self.vocabulary if replacement is None else replacement
        if isinstance(location, Sides):
            return location.source, location.target
        return None if location is None else (location, None)


def read_corpora(location: str | Path) -> Corpora:
    """Read a YAML file of sources, or return the corpus of a single source.

    Args:
        location: path of a YAML file, or the URI of a source.

    Raises:
        SettingsError: the file cannot be read, has an unknown name, or a value of the wrong type.
    """
    text = str(location)
    if not text.endswith(SUFFIXES) or "://" in text:
        return Corpora(name="", sources=[SourceEntry(text)])
    path = Path(text)
    try:
        content = load_strict(_quote_uris(read_yaml_text(path)), booleans=False)     # `no` is a language
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}). {remedy(error, 'Check the path.')}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: the file is not UTF-8 text ({error.reason} at byte {error.start}). Convert it "
                            "to UTF-8.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        # The file may contain passwords, so the line itself is not shown.
        problem = mask_text(getattr(error, "problem", None) or "malformed")
        raise SettingsError(f"{path}{line}: not valid YAML ({problem}). Fix it, and put URIs in quotes.") from None
    return _corpora(content, str(path))


def check_tags(tags: Iterable[str], vocabulary: Vocabulary, name: str) -> None:
    """Check that a vocabulary has no unknown words in tags.

    Args:
        tags: tags of sources.
        vocabulary: the source vocabulary.
        name: origin of the tags, for messages.

    Raises:
        SettingsError: a tag has an unknown word or factor, or a word lacks a factor.
    """
    for tag in tags:
        try:
            pieces = vocabulary.encode(tag)
        except FactorError as error:
            raise SettingsError(f"{name}: the tag {error.reason}") from None
        if UNK in np.ravel(pieces):
            raise SettingsError(f"{name}: the tag {tag} is not in the source vocabulary, so it would be an unknown "
                                "word. Choose a tag of characters that occur in the text of the vocabulary, or learn "
                                "a vocabulary with it: run `towernmt prepare --source corpora.yaml` without an "
                                "existing vocabulary.")


_CONTINUES = re.compile(r"[ \t]+[^\s#,}\]]")      # the rest of a URI after a space


def _quote_uris(text: str) -> str:
    """Put quotes around each plain `uri:`, since its braces and commas would have a meaning within YAML's `{...}`.

    A URI with spaces gets no quotes, because only YAML itself knows where it ends.
    """

    def quote(match: re.Match[str]) -> str:
        key, uri = match.groups()
        end = len(uri)
        while uri[:end].endswith(",") or (uri[:end].endswith("}") and uri.count("}", 0, end) > uri.count("{", 0, end)):
            end -= 1
        if end == len(uri) and _CONTINUES.match(text, match.end()):
            return match[0]
        return key + "'" + uri[:end].replace("'", "''") + "'" + uri[end:]

    return re.sub(r"(\buri:[ \t]+)([^\s'\",&*!|>]\S*)", quote, text)


def _corpora(content: Any, name: str) -> Corpora:
    names = ("sources", "mix", "vocabulary", "validation", "source_factors", *_LIMITS)
    fields = _mapping(content, names, name, "`sources:` with a list of sources")
    entries = fields.get("sources")
    if not isinstance(entries, list) or not entries:
        raise SettingsError(f"{name}: `sources` is missing or not a list. Write one entry for each source, for example "
                            "`- {uri: 'text.{de,en}.gz', weight: 1}`.")
    mix, temperature = _mix(fields.get("mix", "weight"), name)
    defaults = _Limits()
    limits = apply_overrides(defaults, {key: fields[key] for key in _LIMITS if key in fields},
                             origin=name)
    factors = fields.get("source_factors")
    if factors is not None and (not isinstance(factors, int) or isinstance(factors, bool) or factors < 0):
        raise SettingsError(f"{name}: source_factors {factors}: expected the number of factors of each source word.")
    vocabulary, validation = fields.get("vocabulary"), fields.get("validation")
    sources = [_entry(entry, f"{name}, source {number}") for number, entry in enumerate(entries, 1)]
    for number, source in enumerate(sources, 1):
        if mix == "concatenate" and source.weight != 1:
            raise SettingsError(f"{name}, source {number}: weight {source.weight:g} has no effect, because the sources "
                                "are read one after another (mix: concatenate). Leave it out, or write mix: by weight.")
    return Corpora(
        name, sources, mix, temperature,
        vocabulary if vocabulary is None or isinstance(vocabulary, str) else _sides(vocabulary, f"{name}, vocabulary"),
        [] if validation is None else _validation(validation, {source.tag for source in sources} - {""},
                                                  f"{name}, validation"),
        factors, _pair_filter(limits))


def _pair_filter(limits: _Limits) -> PairFilter:
    texts = TextFilters(**{name: getattr(limits, name) for name in TextFilters.__dataclass_fields__})
    texts.check()
    return PairFilter(limits.max_length, limits.max_length_ratio, texts)


@dataclass(frozen=True)
class _Limits(TextFilters):
    max_length: int = setting(200, "Maximum number of tokens of either side; longer pairs are dropped.", at_least=1)
    max_length_ratio: float = setting(9.0, "Maximum ratio of the tokens of the longer side to those of the shorter.",
                                      at_least=1)


_LIMITS = tuple(_Limits.__dataclass_fields__)


def _entry(content: Any, origin: str) -> SourceEntry:
    if isinstance(content, str):
        content = {"uri": content}
    names = [field.name for field in dataclasses.fields(SourceEntry)]
    fields = _mapping(content, names, origin, "`{uri: ..., weight: ...}`")
    if not isinstance(fields.get("uri"), str) or not fields["uri"]:
        raise SettingsError(f"{origin}: `uri` is missing or not text. Write the URI of the source.")
    entry = apply_overrides(SourceEntry(), fields, origin=origin)
    _check_tag(entry.tag, origin)
    return entry


def _check_tag(tag: str, origin: str) -> None:
    if tag != clean(tag):
        raise SettingsError(f"{origin}: tag {tag!r}: expected words with one space between them, without line ends, "
                            f"for example {clean(tag)!r}.")


def _sides(content: Any, origin: str) -> Sides:
    fields = _mapping(content, ("source", "target"), origin, "`{source: FILE, target: FILE}`")
    for side in ("source", "target"):
        if not isinstance(fields.get(side), str) or not fields[side]:
            raise SettingsError(f"{origin}: `{side}` is missing or not a path. Write {{source: FILE, target: FILE}}.")
    return Sides(fields["source"], fields["target"])


def _validation(content: Any, tags: Collection[str], origin: str) -> list[ValidationFiles]:
    """Return the files of validation sets; a tag must be that of a source if sources have `tags`."""
    entries = content if isinstance(content, list) else [content]
    files = []
    for entry in entries:
        fields = _mapping(entry, ("name", "source", "target", "tag"), origin, "`{source: FILE, target: FILE}`")
        targets = fields.get("target")
        targets = targets if isinstance(targets, list) else [targets]
        if not targets or not all(isinstance(path, str) and path for path in (fields.get("source"), *targets)):
            raise SettingsError(f"{origin}: `source` or `target` is missing or not a path. Write {{source: FILE, "
                                "target: FILE}, or {name: NAME, source: FILE, target: [FILE, FILE]}.")
        name, tag = fields.get("name"), fields.get("tag")
        tag = "" if tag is None else str(tag)
        _check_tag(tag, origin)
        if tag and tags and tag not in tags:
            raise SettingsError(f"{origin}: no source has the tag '{tag}', so the model would not know it: write one "
                                f"of {', '.join(sorted(tags))}.")
        files.append(ValidationFiles("" if name is None else str(name), str(fields["source"]), targets, tag))
    return named_sets(files, origin)


def _mapping(content: Any, names: Sequence[str], origin: str, expected: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise SettingsError(f"{origin}: expected {expected}, found {type(content).__name__}.")
    for key in content:
        if key not in names:
            raise SettingsError(f"{origin}: unknown name '{mask_uri(str(key))}'.{suggestion(str(key), names, 'names')}")
    return content


def _mix(value: Any, name: str) -> tuple[str, float]:
    """Parse `temperature 5`, `{temperature: 5}`, `weight`, `by weight` or `concatenate` to (mix, temperature)."""
    words = [str(word) for item in value.items() for word in item] if isinstance(value, dict) else str(value).split()
    words = words[1:] if words[:1] == ["by"] else words
    if words in (["weight"], ["concatenate"]):
        return words[0], 1.0
    if words[:1] == ["temperature"] and len(words) == 2:
        try:
            temperature = float(words[1])
        except ValueError:
            temperature = math.nan      # refused below
        if temperature < 1:
            raise SettingsError(f"{name}: mix: temperature {words[1]}: expected 1 (by size) or more; 5 is usual.")
        if math.isfinite(temperature):
            return "temperature", temperature
    mix = " ".join(words)
    raise SettingsError(f"{name}: mix '{mix}' is not one of: temperature NUMBER, by weight, concatenate."
                        f"{suggestion(mix, ('temperature 5', 'by weight', 'concatenate'))}")
