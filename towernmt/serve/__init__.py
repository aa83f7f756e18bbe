"""`towernmt serve`: trained models over HTTP, by interfaces of LibreTranslate and DeepL, a native one, and a page."""
