"""Vocabularies: text to ids and back, by subwords or words, random segmentations, and source factors."""
