"""The interfaces that clients speak: LibreTranslate's, DeepL's, and a small one of our own."""
