"""The rules of tower functions, checked: in scratch graphs (`check_tower`), and in a trainer's own (`TowerWatch`)."""

from __future__ import annotations

from towernmt.core.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, {
    "breach": ["DECODER_RULES", "RULES", "Breach"],
    "check": ["check_tower", "check_tower_function", "rules_for"],
    "watch": ["TowerWatch"],
})
