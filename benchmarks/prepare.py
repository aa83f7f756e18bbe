"""Lines a second, processor seconds and memory of `towernmt prepare`, pass by pass, and whether the bytes are the same.

    python benchmarks/prepare.py --source train.de --target train.en --lines 1000000 --workers 1 2 --ray 2 --kill

The text is repeated until there are so many lines: after its first round, each line is two sentences of it, one of them
drawn at random, and a fifth of the lines have a number of their own. Each way prepares it anew, with vocabularies of
its own or those of --vocab. The processor seconds are those of all processes of the command; the memory is the sum of
their proportional set sizes (Linux). With --kill, each way with several processes is repeated, and one of them killed
while it encodes. Further options are those of `towernmt prepare`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from towernmt.dataflow.prepared.exchange import STAGE

_PASS = re.compile(r"(?P<label>[a-z ]+): (?P<lines>[\d,]+)(?: of (?P<total>[\d,]+))? lines, (?P<seconds>[\d.]+) s, ")
_TICKS = os.sysconf("SC_CLK_TCK")


def write_text(source: Path, target: Path, lines: int, directory: Path) -> list[str]:
    """The two files with so many lines of real text; they stay for further trials."""
    outputs = [directory / f"{lines}.{path.suffix.lstrip('.')}" for path in (source, target)]
    if all(path.exists() for path in outputs):
        return list(map(str, outputs))
    draw, texts = random.Random(7), [path.read_text(encoding="utf-8").splitlines() for path in (source, target)]
    with open(outputs[0], "w", encoding="utf-8") as first, open(outputs[1], "w", encoding="utf-8") as second:
        for line in range(lines):
            pair = [text[line % len(text)] for text in texts]
            if line >= len(texts[0]):
                other = draw.randrange(len(texts[0]))
                number = f" {draw.randrange(10**6)}" if draw.random() < 0.2 else ""
                pair = [f"{one} {text[other]}{number}" for one, text in zip(pair, texts, strict=True)]
            first.write(pair[0] + "\n")
            second.write(pair[1] + "\n")
    return list(map(str, outputs))


def family(process: int) -> Iterator[int]:
    """A process and those that it, or one of these, has started."""
    yield process
    with suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield from family(int(child))


@dataclass
class Watch:
    """Processor seconds and memory of a command, while it runs.

    Attributes:
        peak: bytes, the most at a time.
        largest: bytes, the most of one process.
        seconds: process to its processor seconds.
        killed: whether a worker was killed.
    """

    process: int
    peak: int = 0
    largest: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    killed: bool = False

    def look(self) -> None:
        """Take the figures of this moment."""
        sizes = []
        for one in family(self.process):
            with suppress(OSError, IndexError):
                times = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13]
                self.seconds[one] = sum(map(int, times)) / _TICKS
                memory = Path(f"/proc/{one}/smaps_rollup").read_text()
                sizes.append(1024 * int(memory.partition("\nPss:")[2].split()[0]))
        self.peak, self.largest = max(self.peak, sum(sizes)), max(self.largest, *sizes, 0)

    def go_on(self, ended: threading.Event, first: Path | None) -> None:
        """Look twice a second until it has ended; kill a worker when the file `first` is there."""
        while not ended.wait(0.5):
            self.look()
            if first is not None and not self.killed and first.exists():
                self.killed = kill_a_worker(self.process)

    @property
    def cpu(self) -> float:
        """Processor seconds so far."""
        return sum(self.seconds.values())


def kill_a_worker(process: int) -> bool:
    """Kill one worker of the command; whether there was one."""
    for one in list(family(process))[1:]:
        with suppress(OSError):
            name = Path(f"/proc/{one}/cmdline").read_bytes()
            if name.startswith(b"ray::_do_on_node") or b"towernmt" in name:
                os.kill(one, signal.SIGKILL)
                return True
    return False


def trial(title: str, arguments: list[str], output: Path, kill: bool) -> None:
    """Prepare once; print a line for each pass, and one for all."""
    shutil.rmtree(output, ignore_errors=True)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "towernmt.cli.main", "prepare", "--output", str(output), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    watch, ended, before, label = Watch(process.pid), threading.Event(), 0.0, ""
    first = output / STAGE / "work" / "part-00000.dealt" if kill else None
    watcher = threading.Thread(target=watch.go_on, args=(ended, first))
    watcher.start()
    for line in process.stderr or ():
        found = _PASS.match(line)
        if found is None:
            if "is done again" in line or "Error" in line or line.startswith("towernmt"):
                print(f"    {line.strip()}")
            continue
        if found["total"] in (None, found["lines"]) and found["label"] != label:
            label = found["label"]
            watch.look()
            print(f"    {found['label']:26} {found['seconds']:>7} s  {watch.cpu - before:7.1f} s of processors")
            before = watch.cpu
    ended.set()
    watcher.join()
    if process.wait() != 0:
        raise SystemExit(f"{title}: status {process.returncode}")
    contents = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()))
    print(f"{title}: {time.perf_counter() - begin:.1f} s, {watch.cpu:.1f} s of processors, {watch.peak / 1e6:,.0f} MB "
          f"(largest {watch.largest / 1e6:,.0f} MB){', a worker killed' if watch.killed else ''}, sha256 "
          f"{contents.hexdigest()[:16]}", flush=True)


def main() -> None:
    """Run the trials that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ray", type=int, nargs="*", default=[], help="numbers of tasks at a time on Ray")
    parser.add_argument("--vocab", type=Path, help="directory of prepared data whose vocabularies are taken")
    parser.add_argument("--kill", action="store_true", help="repeat each way with several workers, and kill one")
    parser.add_argument("--directory", type=Path, default=Path("prepare-benchmark"))
    options, further = parser.parse_known_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    source, target = write_text(options.source, options.target, options.lines, options.directory)
    base = ["--source", source, "--target", target, *further]
    ways = [*((f"{n} processes", ["--workers", str(n)], n) for n in options.workers),
            *((f"Ray, {n} at a time", ["--ray", "local", "--workers", str(n)], n) for n in options.ray)]
    for title, arguments, several in ways:
        for kill in (False, True) if options.kill and several > 1 else (False,):
            vocabularies = [] if options.vocab is None else [
                one for side in ("source", "target")
                for one in (f"--{side}-vocab", str(next((options.vocab / "vocabulary").glob(f"{side}.*"))))]
            trial(title, [*base, *arguments, *vocabularies], options.directory / "out", kill)


if __name__ == "__main__":
    main()
