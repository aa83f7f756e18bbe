"""What is secret in a URI, and how it is shown instead: one rule for errors, logs, `Argv`, statistics and manifests.

Secret are the user and password before the host, and the values of options and query parameters whose names say so
(password, token, signature, ...). `***` stands in their place, so that it can be seen that something was there.
"""

from __future__ import annotations

import re

HIDDEN = "***"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*(?:://|%3A%2F%2F)"
_EACH_URI = re.compile(rf"(?i)({_SCHEME})")
_PORT = re.compile(r"[^:@]*(:[0-9]{1,5})?")     # a host, with or without a port
_SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|signature|credential|api[_-]?key|access[_-]?key|"
                          r"\A(expires|sig|auth|authorization|x-(amz|goog|ms|oss|cos)-.*)\Z")
_PARAMETER = r"([?&;]|%3F|%26)([\w.~-]+)(=|%3D)"


def mask_uri(uri: str) -> str:
    """A URI, or one argument of a command line that holds one, without its secrets.

    A password with characters that ought to have been written with percent signs (spaces, `/`, `?`, `@`) is taken for
    as long as it may be: rather too much is hidden than too little.

    Args:
        uri: well formed or not; a path, or any other text, stays as it is.
    """
    return _masked(uri, r"(?s:(?!&[\w.~-]+=).)*")


def mask_text(text: str) -> str:
    """Running text, of a message for instance, with the secrets of each URI in it hidden (see `mask_uri`).

    The value of an option ends here where a space or a quotation mark is.
    """
    return _masked(text, r"[^&\s'\"`,)]*")


def is_secret_name(name: str) -> bool:
    """Whether the name of an option or of a query parameter says that its value is a secret."""
    return _SECRET_NAME.search(name) is not None


def _masked(text: str, value: str) -> str:
    before, *parts = _EACH_URI.split(text)
    shown = [before]
    for scheme, rest in zip(parts[::2], parts[1::2], strict=True):
        shown += [scheme, _without_values(_without_user(rest), value)]
    return "".join(shown)


def _without_user(rest: str) -> str:
    """The part of a URI after `scheme://`, with user and password hidden."""
    if rest.startswith(("USER@", "USER:PASSWORD@")):
        return rest     # words of a message on how to write a URI
    query = re.search(r"(?i)(\?|%3F)(?=[\w.~-]+(=|%3D))", rest)
    end = query.start() if query else len(rest)
    place = re.sub("(?i)%40", "@", re.sub("(?i)%3A", ":", re.sub("(?i)%2F", "/", rest[:end])))
    authority = re.split(r"[/#\s]", place, maxsplit=1)[0]
    if "@" not in authority and _PORT.fullmatch(authority):
        return rest     # a host: an @ after it belongs to a path or an option
    if "@" not in place:
        end = len(rest)     # what looks like options may be part of a password
    last = max(rest.rfind("@", 0, end), rest.rfind("%40", 0, end))
    return HIDDEN + rest[last:] if last >= 0 else rest


def _without_values(rest: str, value: str) -> str:
    def hide(found: re.Match[str]) -> str:
        return found[0] if not is_secret_name(found[2]) else f"{found[1]}{found[2]}{found[3]}{HIDDEN}"

    return re.sub(f"(?i){_PARAMETER}{value}", hide, rest)
