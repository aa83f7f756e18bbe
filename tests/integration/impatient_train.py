"""`towernmt` with another limit on the seconds for which a worker may not answer: `impatient_train.py train ...`."""

from __future__ import annotations

import sys

from towernmt.cli.main import main
from towernmt.cluster import worker_watch

ANSWER_TIMEOUT = 6.0
"""Half of the real limit. TensorFlow's threads answer even on a busy machine."""

if __name__ == "__main__":
    worker_watch.ANSWER_TIMEOUT = ANSWER_TIMEOUT
    sys.exit(main(sys.argv[1:]))
