"""How much text a request brings, against the limits and the caller's rate."""

from __future__ import annotations

from collections.abc import Sequence

from towernmt.serve.languages import Direction
from towernmt.serve.refusal import Refusal
from towernmt.serve.web.call import Call


def check_texts(call: Call, direction: Direction | None, texts: Sequence[str], most: int | None = None) -> int:
    """Count the characters of a request.

    Args:
        direction: in which they are translated; None: they are not.
        most: characters; by default `max_characters`.
    Returns:
        the number of characters.
    Raises:
        Refusal: there are too many, or the caller has sent too many lately.
    """
    limits = call.service.limits
    most = limits.max_characters if most is None else most
    if len(texts) > limits.max_texts:
        raise Refusal(413, f"The request has {len(texts)} texts: send at most {limits.max_texts} at once.")
    characters = sum(map(len, texts))
    if characters > most:
        raise Refusal(413, f"The request has {characters} characters of text: send at most {most} at once.")
    if direction is not None:
        call.service.rates.take(call.caller, "characters", characters, call.rate_of_characters)
        call.service.count(call.caller, direction, characters)
        call.noted |= {"direction": str(direction), "characters": characters}
    return characters
