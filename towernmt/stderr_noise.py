"""The lines that TensorFlow's C++ writes to standard error at each start, whatever the log level."""

from __future__ import annotations

import re

NOISE = re.compile(rb"^(I\d{4} |To enable the following instructions|WARNING: All log messages before"
                   rb"|[WE]\d{4} .*(cuInit|cuda|gpu|TensorRT|cost_estimator|local_rendezvous|cpu_allocator)"
                   rb"|\t ?\[\[\{\{node )", re.IGNORECASE)
