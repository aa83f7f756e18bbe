"""The rules of tower functions, checked in scratch graphs and in a trainer's own graph."""

from __future__ import annotations

from towernmt.core.startup import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "tower_check": ["TowerWatch", "check_tower", "check_tower_function", "rules_for"],
    "tower_rules": ["Breach", "DECODER_RULES", "RULES"],
})
