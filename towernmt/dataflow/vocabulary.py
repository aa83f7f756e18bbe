"""Special token ids shared by every vocabulary."""

PAD, BOS, EOS, UNK = 0, 1, 2, 3
