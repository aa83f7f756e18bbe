"""Subtitles: their cues, the sentences in them, and their lines."""
