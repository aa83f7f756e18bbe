"""What decoding makes of a weight before its loop, rather than at every step: a cast, a transposition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from towernmt.core.graph_state import graph_state
from towernmt.core.tensors import Tensor, Variable
from towernmt.core.tf_compat import tf1


@contextmanager
def made_once() -> Iterator[None]:
    """Steps of decoding that are built inside share what `once` makes of the weights."""
    state = graph_state()
    before, state.made_once = state.made_once, {}
    try:
        yield
    finally:
        state.made_once = before


def once(what: str, make: Callable[..., Tensor], *weights: Variable | Tensor) -> Tensor:
    """`make(*weights)`: in `made_once` outside of all loops, and one for all that ask for the same.

    Of what is made within a loop it is made there.

    Args:
        what: a name for what is made.
    """
    made, graph = graph_state().made_once, _outermost_graph()
    if made is None or any(weight.graph is not graph for weight in weights):
        return make(*weights)
    key = (what, *(weight.name for weight in weights))
    if key not in made:
        with graph.as_default():
            made[key] = make(*weights)
    return made[key]


def is_made_once() -> bool:
    """Whether what is built is in `made_once`."""
    return graph_state().made_once is not None


def _outermost_graph() -> Tensor:
    graph = tf1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph
