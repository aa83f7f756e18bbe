"""`towernmt serve`: trained models behind HTTP, in the words of LibreTranslate, of DeepL, and in its own."""
