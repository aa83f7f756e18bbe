"""Find addresses in plain text: of the web and of mail, domains, names and paths of files, accounts and topics.

An account is `@user` or `@user@server`, and a topic is `#tag`. An address may have letters of any script. Chinese,
Japanese, Korean and Thai text may follow an address without a space, so letters of these scripts belong to an address
only in a host name or where the address itself marks a name.
"""

from __future__ import annotations

from collections.abc import Iterator

import regex  # type: ignore[import-untyped]

from towernmt.documents.segments import UNSPACED

_UNSPACED = (f"{UNSPACED}\u1100-\u11ff\u3005-\u3007\u3130-\u318f\uac00-\ud7af\uff10-\uff19\uff21-\uff3a\uff41-\uff5a"
             "\uff66-\uff9f")
"""Characters that usually begin a word of the text when they follow an address."""
_LETTER = rf"[^\W{_UNSPACED}]"
_INVISIBLE = "\u00ad\u200b\u2060"
"""Characters at which programs may divide a long address."""
_PLACEHOLDER = r"\{[^{}\s]{0,60}\}"
_SCHEME = (rf"(?:(?:https?|ftps?|sftp|ssh|git|wss?)|(?<!{_LETTER})(?![A-Za-z]{{1,20}}?(?:https?|ftps?)://)"
           r"[A-Za-z][A-Za-z0-9+.-]{1,20})://")
_LABELS = rf"(?:[\w-]{{1,63}}\.)?(?:(?:{_LETTER}|-){{1,63}}\.|[{_UNSPACED}][\w-]{{0,62}}\.){{0,9}}"
_LAST_LABEL = rf"(?:{_PLACEHOLDER}|{_LETTER}(?:{_LETTER}|-){{0,62}}|[{_UNSPACED}]{{1,20}}(?=[/:?#\s]|$))"
_PORT = r"(?::\d{1,5})?"
_HOST = rf"(?:\[[0-9A-Fa-f:.]{{2,45}}\]|{_LABELS}{_LAST_LABEL}){_PORT}"
_USER = rf"(?:(?:{_LETTER}|[.~+:%-]){{1,80}}@)?"
_NAMED = (r"(?:(?<=[=#_])|(?<=/(?:wiki|tags?|hashtag|category|topics?|search)/)"
          rf"|(?=[{_UNSPACED}]+[/_=&#?.-]+[A-Za-z0-9]))")
"""Before letters of a script without spaces that belong to the address, as in `/wiki/日本` and `?q=日本`."""
_TAIL = (rf"(?:[/?#](?:[A-Za-z0-9\-._~:/?#\[\]@!$&()*+,;=%{_INVISIBLE}]|{_LETTER}|'(?=\w+[_/%+-])|{_PLACEHOLDER}"
         rf"|(?<=[/=#_.&-]){_NAMED}[{_UNSPACED}]+)*)?")
_DOMAINS = "com|org|net|edu|gov|int|mil|info|biz|io|dev|app|de|ch|eu|uk|fr|nl|pl|cz|jp|cn|ru|br|ca|au|se|dk|fi"
_EXTENSIONS = ("7z|apk|avi|bat|bmp|cfg|conf|cpp|css|csv|dll|docx?|epub|exe|gif|gz|html?|ini|iso|java|jpe?g|js|json|log|"
               "md|mkv|mp3|mp4|od[pst]|pdf|png|pptx?|py|rar|rtf|sql|srt|svg|tar|toml|tsv|txt|wav|webp|xlsx?|xml|ya?ml|zip|"
               "TXT|PDF|CSV|XML|JSON|ZIP|JPG|PNG")
_NAME = rf"(?:{_LETTER}|-){{1,63}}"
_FILE = r"[A-Za-z0-9_.+~-]"
_PATH = r"[A-Za-z0-9_.-]{1,80}"
_ACCOUNT = (rf"@{_LETTER}(?:(?:{_LETTER}|[.-]){{0,80}}{_LETTER})?"
            rf"(?:@(?:{_NAME}\.){{1,8}}{_NAME}|/{_LETTER}(?:{_LETTER}|[.-]){{0,80}})?"
            rf"|@[{_UNSPACED}]{{2,20}}(?=[\s:\uff1a,\uff0c]|$)")
_TOPIC = (rf"[#\uff03](?:(?=[\p{{L}}\p{{N}}_]){_LETTER}(?:{_LETTER}|[\u200c\u200d])*|[{_UNSPACED}][\w\u200c\u200d]*)"
          r"(?:[#\uff03](?!\w))?")
_WINDOWS = rf"(?:{_LETTER}|[.$+~-]){{1,80}}"
_WITH_SPACES = rf"{_WINDOWS}(?:(?: {_WINDOWS}){{1,4}}(?=\\))?"
"""A name of a Windows path. Spaces belong to it if a backslash follows."""
_NOT_IN_PATH = rf"(?<!{_LETTER}|[.~/:<-])"
_ADDRESS = regex.compile("|".join((
    rf"{_SCHEME}(?:{_USER}{_HOST})?{_TAIL}",
    rf"(?<!{_LETTER}|[.-])www\.{_HOST}{_TAIL}",
    rf"(?:mailto:)?(?<!{_LETTER}|[.+-])(?:{_LETTER}|[.+-]){{1,64}}@(?:{_NAME}\.){{1,8}}{_LETTER}{{2,63}}"
    rf"(?::{_FILE}{{1,80}}(?:/{_FILE}{{1,80}}){{1,20}})?",
    rf"(?<!{_LETTER}|[.@/-])(?:[A-Za-z0-9-]{{1,63}}\.){{1,8}}"                              # x.de/ab, example.com
    rf"(?:[a-z]{{2,24}}{_PORT}(?=/[\w%~?#-])|(?:{_DOMAINS})(?![\w-]){_PORT}){_TAIL}",
    rf"{_NOT_IN_PATH}(?:~|\.{{1,2}})?(?:/{_FILE}{{1,80}}){{2,40}}/?",                       # /usr/bin
    rf"{_NOT_IN_PATH}(?:~|\.{{1,2}})(?:/{_FILE}{{1,80}}){{1,40}}/?",                        # ~/bin
    rf"{_NOT_IN_PATH}{_PATH}(?:/{_PATH}){{1,40}}(?<=[A-Za-z0-9_]\.[a-z][a-z0-9]{{0,4}})(?![\w/-])",    # src/main.c
    rf"(?<!{_LETTER}|[.@/:#&=\\-])(?:{_LETTER}|-){{1,80}}(?:\.(?:{_LETTER}|-){{1,40}}){{0,3}}"            # notes.txt
    rf"\.(?:{_EXTENSIONS})(?![\w/@-]|\.\w)",
    rf"(?<!{_LETTER})(?:[A-Za-z]:\\|\\\\){_WITH_SPACES}(?:\\{_WITH_SPACES}){{0,40}}\\?",
    rf"(?<!{_LETTER}|[&/@#.])(?:{_ACCOUNT}|{_TOPIC})(?: ?(?:{_ACCOUNT}|{_TOPIC}))*")))
_SIGN_OF_ADDRESS = regex.compile(r"[@#\uff03/\\]|[\w-]\.[\w-]")
_CONTINUES = regex.compile(r"[/?#&=%]|[.:@_~+-][a-z0-9]")
_SENTENCE_SIGNS = f".,;:!?'*_{_INVISIBLE}"
_BRACKETS = {")": "(", "]": "["}


def addresses_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each address, account and topic."""
    if not _SIGN_OF_ADDRESS.search(text):
        return
    for match in _ADDRESS.finditer(text):
        address = _without_sentence_signs(match[0])
        if address.strip("/"):
            yield match.start(), match.start() + len(address)


def continues(address: str, after: str) -> bool:
    """Return whether an address continues after the end of an element that begins with the address."""
    return not _is_complete(address) or _CONTINUES.match(after) is not None


def _is_complete(address: str) -> bool:
    span = next(addresses_in(address), None)
    if span != (0, len(address.rstrip("/"))) and span != (0, len(address)):
        return False
    scheme, separator, rest = address.partition("://")
    return not separator or "." in rest.rstrip(".") or "/" in rest


def _without_sentence_signs(address: str) -> str:
    """Return an address without the signs and brackets of the sentence around it."""
    open_count = dict.fromkeys(_BRACKETS.values(), 0)
    end = len(address)
    for index, character in enumerate(address):
        if character in open_count:
            open_count[character] += 1
        elif character in _BRACKETS:
            open_count[_BRACKETS[character]] -= 1
            if open_count[_BRACKETS[character]] < 0:
                end = index
                break
    return address[:end].rstrip(_SENTENCE_SIGNS)
