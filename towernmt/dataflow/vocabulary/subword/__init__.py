"""Sub-word vocabularies: SentencePiece and BPE codes, how they are learned, and how segmentations are drawn."""
