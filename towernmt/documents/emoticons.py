"""Find emoticons in text: `:-)`, `<3`, `^^`, `(^_^)`, `:smile:`.

Most of them consist of signs that also have other uses, as in `(see below:)` and `http://`. So only emoticons with a
nose follow a letter directly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import regex  # type: ignore[import-untyped]

_MOUTH_AND_EYES = (r"(?:[>}]?[:;=]['’]?[-o^]?(?:\)+|\(+|D+|[PpO3|/\\](?![\w/\\])|\*(?!\*)|\](?!\()|\[)|[xX]D+"
                   r"|</?3+(?![\d.,]\d))(?!\w)")
_EYES = r"(?:\^[_.-]*\^|-_+-|[0OToU;>~@]_+[0OToU;<~@]|[oO]\.[oO])'?"
_SIGN_OF_FACE = r"[\^°´`≧≦▽◕‿ಠ╥﹏＾⊙∀ಥ͜]|(?<!\p{Greek})ω(?!\p{Greek})|(?<![\u3040-\u30ff])ツ(?![\u3040-\u30ff])"
_OTHER_SCRIPTS = r"[^()\p{Latin}\p{Nd}\n]"
_FACE_IN_BRACKETS = (r"[ヽ╯ノづ\\/┻━┳o~]{0,4}\("
                     rf"(?={_OTHER_SCRIPTS}{{0,12}}(?:{_SIGN_OF_FACE}))(?:{_OTHER_SCRIPTS}|ʖ){{2,14}}\)"
                     r"[ヽ╯ノづ\\/︵┻━┳シ彡b~]{0,6}(?: ?[︵┻━┳]{2,4})?|ʕ[^ʔ\s]{1,8}ʔ")
_EMOTICON = regex.compile("|".join((
    r"¯\\{0,3}_\(ツ\)_/¯", r"(?<![\w:]):[a-z][a-z0-9_+-]{1,30}:(?![\w:])",
    rf"(?<![\w:;=/\\<>]){_MOUTH_AND_EYES}", r"(?<=[\w])[:;]-(?:\)+|\(+|D)(?!\w)",
    rf"(?<![\w@#]){_EYES}(?![\w])", rf"\({_EYES}\)", r"(?<![\w\\/])\\[oO]/(?!\w)", _FACE_IN_BRACKETS)))
_SIGN = re.compile(r":[a-z][\w+-]+:|[:;=]['’]?[-o^]?[()\[\]DPpO3|/\\*]|[xX]D|</?3|\^[_.-]*\^|[-0OToU;>~@]_"
                   r"|[oO][./][oO/]|[oO]/|\([^()A-Za-z0-9]{1,16}\)|ʕ")
"""Each emoticon matches this expression, which is fast."""


def emoticons_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each emoticon."""
    return (match.span() for match in _EMOTICON.finditer(text)) if _SIGN.search(text) else iter(())
