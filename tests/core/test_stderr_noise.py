"""Standard error without TensorFlow's lines: what passes, and who has the descriptor afterwards."""

import os
import subprocess
import sys
import tempfile

from towernmt.core.standard_streams import without_noise

PROGRAM = """
import os, sys
from towernmt.core.standard_streams import without_noise
with without_noise():
    os.write(2, b"I0000 00:00:1 port.cc:153] noise\\nof a library\\n")
    print("of Python", file=sys.stderr)
os.write(2, b"I0000 00:00:1 after it\\n")
"""


def test_lines_of_tensorflow_are_dropped_while_it_is_active_and_all_others_pass():
    said = subprocess.run([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, text=True, check=True).stderr
    assert sorted(said.splitlines()) == ["I0000 00:00:1 after it", "of Python", "of a library"]


def test_a_descriptor_that_was_led_elsewhere_meanwhile_stays_there():
    mine = os.dup(2)
    try:
        with tempfile.TemporaryFile() as elsewhere:
            with without_noise():
                os.dup2(elsewhere.fileno(), 2)
            os.write(2, b"written elsewhere")
            elsewhere.seek(0)
            assert elsewhere.read() == b"written elsewhere"
    finally:
        os.dup2(mine, 2)
        os.close(mine)
