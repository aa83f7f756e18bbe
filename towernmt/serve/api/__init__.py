"""The interfaces of the server: those of LibreTranslate and DeepL, and the native one."""
