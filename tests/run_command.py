"""Commands of towernmt in the process of a test."""

from __future__ import annotations

from typing import Any


def run_command(*arguments: Any) -> int:
    """Run a command of towernmt in a new graph, and return its status."""
    from towernmt.cli.main import main
    from towernmt.core.tf_compat import tf

    with tf.Graph().as_default():
        return main([*map(str, arguments)])
