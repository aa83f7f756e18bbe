"""A model that says of a few target tokens only how likely they are next, so that fewer products are computed."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from towernmt.core.tensors import Tensor
from towernmt.core.tf_compat import tf
from towernmt.models.layers.projections import Projection

if TYPE_CHECKING:
    from towernmt.models.interface import DecoderState, NMTModel


def limited_to(model: NMTModel, tokens: Tensor) -> NMTModel:
    """A copy of a model whose `decode_step` gives the logits of some tokens only, float32 `[rows, n]`.

    Its `output_projection` has their rows alone. They are gathered when that is asked for first, which must be outside
    of a loop. From a `decode_step` that does not ask for it, the columns are taken of what it gives.

    Args:
        tokens: int32 `[n]`.
    """
    limited = copy.copy(model)
    few: list[Projection] = []
    asked: list[bool] = []

    def output_projection() -> Projection:
        asked.append(True)
        if not few:
            whole = model.output_projection()
            few.append(Projection(*(tf.gather(tf.convert_to_tensor(weight), tokens) for weight in whole)))
        return few[0]

    decode_step = limited.decode_step

    def limited_step(token: Tensor, state: DecoderState, **options: bool) -> tuple[Any, ...]:
        asked.clear()
        logits, *rest = decode_step(token, state, **options)
        return logits if asked else tf.gather(logits, tokens, axis=1), *rest

    limited.__dict__.update(output_projection=output_projection, decode_step=limited_step)
    return limited
