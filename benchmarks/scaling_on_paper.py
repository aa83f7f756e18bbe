"""How training scales over a network, on paper: the time of a ring all-reduce beside the step's own.

    python benchmarks/scaling_on_paper.py

Nothing is run. In a ring each of n workers sends 2 (n - 1) / n times its gradients in 2 (n - 1) turns (Patarasuk and
Yuan 2009). Buckets travel side by side, so that the delay of a turn counts once. Nothing is hidden behind the backward
pass, and the whole line is free for each worker: the first makes the figures too low, the second too high.
"""

from __future__ import annotations

from dataclasses import dataclass

DELAY = 50e-6
"""Seconds of one turn, beside its bytes: assumed, as for gRPC within one room."""
WORKERS = (2, 4, 8, 16, 32, 64)
LINES = (1, 10, 100)
"""Gigabits a second."""


@dataclass(frozen=True)
class Case:
    """A model, and the step of one worker that trains it.

    Attributes:
        name: how the table calls it.
        parameters: trained numbers.
        tokens: target tokens of a step in each worker.
        rate: target tokens a second of one worker alone.
    """

    name: str
    parameters: int
    tokens: int
    rate: float

    @property
    def step(self) -> float:
        """Seconds of a step without any reduction."""
        return self.tokens / self.rate


CASES = (
    Case("tiny, two cores (3,695 tokens/s, measured)", 7_577_412, 4096, 3695),
    Case("base, two cores (576 tokens/s, measured)", 60_500_000, 4096, 576),
    Case("base, a GPU (40,000 tokens/s, assumed)", 60_500_000, 4096, 40_000),
    Case("base, a GPU (40,000 tokens/s, assumed), 25,000 tokens", 60_500_000, 25_000, 40_000),
)


def reduction(parameters: int, workers: int, gigabits: float, width: int = 4) -> float:
    """Seconds of one all-reduce.

    Args:
        parameters: numbers in the gradients, all of them dense.
        workers: in the ring.
        gigabits: a second, of each worker's line, in each direction.
        width: bytes of a number on the wire.
    """
    share = 2 * (workers - 1) / workers
    return share * parameters * width * 8 / (gigabits * 1e9) + 2 * (workers - 1) * DELAY


def efficiency(case: Case, workers: int, gigabits: float, width: int = 4) -> float:
    """The speed of `workers` divided by `workers` times the speed of one; each has as many tokens as one alone."""
    return case.step / (case.step + reduction(case.parameters, workers, gigabits, width))


def main() -> None:
    """Print the table of the manual."""
    print(f"| | Gbit/s | {' | '.join(map(str, WORKERS))} | {WORKERS[-1]}, bfloat16 |")
    print("|---|---|" + "---|" * (len(WORKERS) + 1))
    for case in CASES:
        for line in LINES:
            cells = [f"{efficiency(case, n, line):.2f}" for n in WORKERS]
            print(f"| {case.name} | {line} | {' | '.join(cells)} | {efficiency(case, WORKERS[-1], line, 2):.2f} |")


if __name__ == "__main__":
    main()
