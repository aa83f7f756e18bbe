"""Language codes: the spellings of a code, English names of languages, and pairs of languages.

All commands, settings and interfaces that take a language code read it with these functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
"""English names of languages by their ISO 639 codes."""
TWO_LETTERS = dict(pair.split(":") for pair in """
    afr:af amh:am ara:ar arb:ar asm:as aze:az azj:az bel:be bul:bg ben:bn bre:br bos:bs cat:ca ces:cs cym:cy dan:da
    deu:de ell:el eng:en epo:eo spa:es est:et ekk:et eus:eu fas:fa pes:fa fin:fi fao:fo fra:fr fry:fy gle:ga gla:gd
    glg:gl guj:gu hau:ha heb:he hin:hi hrv:hr hat:ht hun:hu hye:hy ind:id ibo:ig isl:is ita:it jpn:ja jav:jv kat:ka
    kaz:kk khm:km kan:kn kor:ko kur:ku kir:ky lat:la ltz:lb lao:lo lit:lt lav:lv lvs:lv mlg:mg plt:mg mri:mi mkd:mk
    mal:ml mon:mn khk:mn mar:mr msa:ms zsm:ms mlt:mt mya:my nob:nb nep:ne npi:ne nld:nl nno:nn nor:no oci:oc ori:or
    ory:or pan:pa pol:pl pus:ps pbt:ps por:pt roh:rm ron:ro rus:ru kin:rw snd:sd sin:si slk:sk slv:sl som:so sqi:sq
    als:sq srp:sr swe:sv swa:sw swh:sw tam:ta tel:te tgk:tg tha:th tuk:tk tgl:tl fil:tl tur:tr tat:tt uig:ug ukr:uk
    urd:ur uzb:uz uzn:uz vie:vi xho:xh yid:yi ydd:yi yor:yo zho:zh cmn:zh zul:zu iw:he in:id ji:yi jw:jv mo:ro
    ger:de fre:fr chi:zh dut:nl gre:el cze:cs rum:ro slo:sk per:fa alb:sq arm:hy baq:eu bur:my geo:ka ice:is mac:mk
    mao:mi may:ms wel:cy jp:ja cn:zh gr:el cz:cs dk:da ua:uk vn:vi zt:zh pb:pt bod:bo tib:bo dzo:dz
    """.split())
"""Codes of two letters by other codes of the same languages: of three letters, obsolete ones, and codes of countries
that are often written for their language and belong to no other language."""
_CHINESE = ("yue", "wuu", "nan", "hak", "gan", "hsn", "cdo", "lzh")
"""Codes of the languages that are written like Chinese."""
OTHER_CODES = {"zt": "zh-hant", "pb": "pt-br", "nb": "no", "no": "nb"}
"""Codes that clients use for a language that a model may name differently."""
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")
_LOCALE_SUFFIX = re.compile(r"[.@].*")
_SCRIPT = r"(?:[-_][A-Za-z]{4})"
_REGION = r"(?:[-_](?:[A-Za-z]{2}|[0-9]{3}))"
_VARIANT = r"(?:[-_](?:[A-Za-z0-9]{5,8}|[0-9][A-Za-z0-9]{3}))"
_TAG = re.compile(rf"[A-Za-z]{{2,3}}{_SCRIPT}?{_REGION}?{_VARIANT}*")
"""A code as BCP 47 has it: language, script, region, variants."""
_NARROWED = re.compile(r"[a-z]{2,3}([-_]([A-Z][A-Za-z0-9]*|[0-9][A-Za-z0-9]*))*")
"""A code whose script and region are not in lower case, so that they are not taken for a language."""


class Direction(NamedTuple):
    """A pair of source and target language, with codes in the form of `plain_code`."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def plain_code(code: str) -> str:
    """Return a code in the spelling for comparisons: in lower case, with hyphens. `EN_us.UTF-8` is `en-us`."""
    return _LOCALE_SUFFIX.sub("", code.strip()).lower().replace("_", "-")


def bcp47_code(code: str) -> str:
    """Return a code in the spelling of BCP 47: `zh-Hant-TW` for `ZH_hant_tw`."""
    first, *others = plain_code(code).split("-")
    return "-".join([first, *(part.title() if len(part) == 4 and part.isalpha() else
                              part.upper() if len(part) == 2 else part for part in others)])


def base_code(code: str) -> str:
    """Return a code without region and script: `en` for `en-us`."""
    return plain_code(code).partition("-")[0]


def two_letter_code(code: str) -> str:
    """Return the two-letter code of a language, without region and script, or the base code if it has none."""
    base = base_code(code)
    return TWO_LETTERS.get(base, base)


def is_code(text: str) -> bool:
    """Return whether a text has the form of a language code."""
    return _CODE.fullmatch(_LOCALE_SUFFIX.sub("", text.strip())) is not None


def check_code(text: str, where: str) -> None:
    """Check that a text has the form of a language code. The name of a language is refused.

    Args:
        text: the text.
        where: the option or setting, for the message.

    Raises:
        SettingsError: the text does not have the form of a language code.
    """
    if not is_code(text):
        named = [code for code, name in NAMES.items() if name.lower() == text.strip().lower()]
        raise SettingsError(f"{where} {text}: expected the code of a language, such as "
                            f"{named[0] if named else 'de or zh-Hans'}.")


def written_language(code: str) -> str:
    """Return the two-letter code of a language, and `zh` for every language that is written like Chinese."""
    return "zh" if base_code(code) in _CHINESE else two_letter_code(code)


def language_name(code: str) -> str:
    """Return the English name of a language."""
    base, _, region = code.partition("-")
    name = NAMES.get(base) or NAMES.get(two_letter_code(base), base)
    return f"{name} ({region})" if region else name


def parse_direction(text: str) -> Direction:
    """Return the direction that a text names: `de-en`, `zh_hant-en`, `zh-Hant-en`, `de_DE-en_GB`.

    Raises:
        SettingsError: the text does not name two languages, or can be read in two ways.
    """
    splits = list(_splits(text.strip()))
    if len(splits) != 1:
        problem = "can be read in several ways" if splits else "is not a pair of languages"
        raise SettingsError(f"'{text}' {problem}. Write the codes of two languages, as de-en, zh_hant-en or "
                            "zh-Hans-en, with an underscore before a script or region in lower case.")
    return Direction(*map(plain_code, splits[0]))


def _splits(text: str) -> Iterator[tuple[str, str]]:
    """Yield each way to read a text as two codes. A single hyphen separates them, else the case of regions decides."""
    if text.count("-") == 1:
        source, _, target = text.partition("-")
        if is_code(source) and is_code(target):
            yield source, target
        return
    positions = [match.start() for match in re.finditer("[-_]", text)]
    pairs = [(text[:position], text[position + 1:]) for position in positions]
    pairs = [pair for pair in pairs if all(_TAG.fullmatch(code) for code in pair)]
    narrowed = [pair for pair in pairs if all(_NARROWED.fullmatch(code) for code in pair)]
    yield from narrowed if len(narrowed) == 1 else pairs


def spoken(code: str, known: list[str]) -> str | None:
    """Return the known language that a client means by a code, or None.

    The result is the language itself, the language without its region, the only known variant of the language, or the
    language under another code.
    """
    code = plain_code(code)
    if code in known:
        return code
    if base_code(code) in known:
        return base_code(code)
    same = [other for other in known if base_code(other) == code]
    if len(same) == 1:
        return same[0]
    if code in OTHER_CODES and OTHER_CODES[code] in known:
        return OTHER_CODES[code]
    if two_letter_code(code) in known:
        return two_letter_code(code)
    same = [other for other in known if "-" not in code and two_letter_code(other) == two_letter_code(code)]
    return same[0] if len(same) == 1 else None
