"""Find the numbers that a model writes instead of placeholders."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace

from towernmt.documents.atom_alignment import TargetAtom
from towernmt.documents.shields import number_of_usual_placeholder
from towernmt.documents.source_sentences import SourceSentence

_NUMBER_AFTER_WORD = re.compile(r"([^\W\d_]+)(\d+)")


def with_numbers_of_placeholders(sentence: SourceSentence, atoms: Sequence[TargetAtom], numbers: Set[str]
                                 ) -> list[TargetAtom]:
    """Return the atoms, where numbers that neither the source nor `numbers` has are the missing placeholders.

    A model may translate `X1` as `1`, and also damage numbers: it writes `91` for `X1`, or `255` for the placeholder
    `25`. Then there must be as many such numbers as missing placeholders, and each must contain the number of its
    placeholder: the model may also write `20` for the word twenty. It may also join the number to a word, as in
    `costs111`, from which it is removed. The number of `y_1` belongs to this name.

    Args:
        sentence: the source.
        atoms: the atoms of its translation.
        numbers: numbers that the translation may contain although the source does not.
    """
    present = {atom.stands_for for atom in atoms}
    missing = {number: source for name, source in sentence.names.items()
               if source not in present and (number := name if name.isdigit() else number_of_usual_placeholder(name))}
    known_texts = {*numbers, *(atom.text for atom in sentence.atoms if atom.shield is None)}
    joined_indices = {index for index, atom in enumerate(atoms) if missing and atom.stands_for is None
                      and atom.text not in known_texts and _NUMBER_AFTER_WORD.fullmatch(atom.text)}
    end_indices: set[int] = set()
    if joined_indices:
        divided: list[TargetAtom] = []
        for index, atom in enumerate(atoms):
            match = _NUMBER_AFTER_WORD.fullmatch(atom.text) if index in joined_indices else None
            divided.append(replace(atom, text=match[1]) if match else atom)
            if match:
                end_indices.add(len(divided))
                divided.append(replace(atom, text=match[2], space=False))
        atoms = divided
    foreign_indices = [index for index, atom in enumerate(atoms)
                       if missing and atom.stands_for is None and atom.text.isdigit() and atom.text not in known_texts
                       and not _is_subscript(atoms, index)]
    sources_by_index = {index: missing[atoms[index].text] for index in foreign_indices if atoms[index].text in missing}
    if len(foreign_indices) == len(missing) and len(sources_by_index) < len(missing) and all(
            number in atoms[index].text for index, number in zip(foreign_indices, missing, strict=True)):
        sources_by_index = dict(zip(foreign_indices, missing.values(), strict=True))
    new_atoms = list(atoms)
    for index, source in sources_by_index.items():
        if source not in present:
            # The source has no space before its first atom.
            space = sentence.spaces[source] if source else atoms[index].space or index in end_indices
            new_atoms[index] = replace(atoms[index], space=index > 0 and space, stands_for=source, sources=[source])
            present.add(source)
    return [atom for index, atom in enumerate(new_atoms) if index not in end_indices or atom.stands_for is not None]


def _is_subscript(atoms: Sequence[TargetAtom], index: int) -> bool:
    """Return whether an atom follows an underscore in the same word."""
    return index > 0 and not atoms[index].space and atoms[index - 1].text.endswith("_")
