"""Languages by their codes: their names in English, the directions of models, and the codes that clients write."""

from __future__ import annotations

import re
from typing import NamedTuple

from towernmt.core.errors import SettingsError

NAMES = {
    "af": "Afrikaans", "am": "Amharic", "ar": "Arabic", "as": "Assamese", "az": "Azerbaijani", "be": "Belarusian",
    "bg": "Bulgarian", "bn": "Bengali", "br": "Breton", "bs": "Bosnian", "ca": "Catalan", "cs": "Czech", "cy": "Welsh",
    "da": "Danish", "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fo": "Faroese", "fr": "French",
    "fy": "West Frisian", "ga": "Irish", "gd": "Scottish Gaelic", "gl": "Galician", "gu": "Gujarati", "ha": "Hausa",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hsb": "Upper Sorbian", "ht": "Haitian Creole",
    "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "ig": "Igbo", "is": "Icelandic", "it": "Italian",
    "ja": "Japanese", "jv": "Javanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "kn": "Kannada",
    "ko": "Korean", "ku": "Kurdish", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish", "lo": "Lao",
    "lt": "Lithuanian", "lv": "Latvian", "mg": "Malagasy", "mi": "Maori", "mk": "Macedonian", "ml": "Malayalam",
    "mn": "Mongolian", "mr": "Marathi", "ms": "Malay", "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmal",
    "nds": "Low German", "ne": "Nepali", "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian",
    "oc": "Occitan", "or": "Odia", "pa": "Punjabi", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese",
    "rm": "Romansh", "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda", "sd": "Sindhi", "si": "Sinhala",
    "sk": "Slovak", "sl": "Slovenian", "so": "Somali", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish",
    "sw": "Swahili", "ta": "Tamil", "te": "Telugu", "tg": "Tajik", "th": "Thai", "tk": "Turkmen", "tl": "Tagalog",
    "tr": "Turkish", "tt": "Tatar", "ug": "Uyghur", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek",
    "vi": "Vietnamese", "xh": "Xhosa", "yi": "Yiddish", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu"}
"""Names of ISO 639 codes; others are called by their code."""
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_DIRECTION = re.compile(rf"({_CODE.pattern.replace('[-_]', '_')})-({_CODE.pattern.replace('[-_]', '_')})")


class Direction(NamedTuple):
    """From which language to which; codes as `plain_code` has them."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def plain_code(code: str) -> str:
    """A code as it is compared: in lower case, with hyphens. `EN_us` is `en-us`."""
    return code.strip().lower().replace("_", "-")


def base_code(code: str) -> str:
    """The language without its region or script: `en` of `en-us`."""
    return plain_code(code).partition("-")[0]


def is_code(text: str) -> bool:
    """Whether a text can be the code of a language."""
    return _CODE.fullmatch(text.strip()) is not None


def language_name(code: str) -> str:
    """The name of a language in English."""
    base, _, region = code.partition("-")
    name = NAMES.get(base, base)
    return f"{name} ({region})" if region else name


def parse_direction(text: str) -> Direction:
    """A direction as `de-en`; a region or script stands behind an underscore, as in `zh_hant-en`.

    Raises:
        SettingsError: it is none.
    """
    found = _DIRECTION.fullmatch(text)
    if found is None:
        raise SettingsError(f"'{text}' is no direction: write the codes of two languages, as de-en or zh_hant-en.")
    source, _, target = text.partition("-")
    return Direction(plain_code(source), plain_code(target))


def spoken(code: str, known: list[str]) -> str | None:
    """Which of the known languages a client means by a code; None: none.

    The language itself, else the same without its region, else the only one known of this language.
    """
    code = plain_code(code)
    if code in known:
        return code
    if base_code(code) in known:
        return base_code(code)
    same = [other for other in known if base_code(other) == code]
    return same[0] if len(same) == 1 else None
