"""Text: lines of files, words, language codes, word alignments, filters of sentence pairs."""
