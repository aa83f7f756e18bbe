"""Estimate how training scales over a network, and over the GPUs of a machine: the time of the sums of gradients.

    python benchmarks/scaling_on_paper.py

Nothing is executed. In a ring, each of n workers sends its gradients 2 (n - 1) / n times in 2 (n - 1) rounds (Patarasuk
and Yuan 2009). Buckets are sent concurrently, so the latency of a round counts once. The estimate ignores overlap with
the backward pass, which makes it too low, and contention for the links, which makes it too high.

The second table is for the GPUs of one machine, where the speed of a card is assumed as well. In a star, the first card
sends all weights to each other card and receives all gradients from it. In a ring, gradients alone are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

DELAY = 50e-6
"""Latency of one round in seconds: assumed, typical of gRPC in one data centre."""
WORKERS = (2, 4, 8, 16, 32, 64)
LINES = (1, 10, 100)
"""Link speeds, Gbit/s."""


@dataclass(frozen=True)
class Case:
    """A model and the training step of one worker.

    Attributes:
        name: label in the table.
        parameters: number of trainable parameters.
        tokens: target tokens per step and worker.
        rate: target tokens per second of a single worker.
    """

    name: str
    parameters: int
    tokens: int
    rate: float

    @property
    def step(self) -> float:
        """Seconds of a step without all-reduce."""
        return self.tokens / self.rate


CASES = (
    Case("tiny, two cores (3,695 tokens/s, measured)", 7_577_412, 4096, 3695),
    Case("base, two cores (576 tokens/s, measured)", 60_500_000, 4096, 576),
    Case("base, a GPU (40,000 tokens/s, assumed)", 60_500_000, 4096, 40_000),
    Case("base, a GPU (40,000 tokens/s, assumed), 25,000 tokens", 60_500_000, 25_000, 40_000),
)


def reduction(parameters: int, workers: int, gigabits: float, width: int = 4) -> float:
    """Return the seconds of one all-reduce.

    Args:
        parameters: number of values in the gradients, all dense.
        workers: number of workers in the ring.
        gigabits: link speed of each worker in each direction, Gbit/s.
        width: bytes per value on the wire.
    """
    share = 2 * (workers - 1) / workers
    return share * parameters * width * 8 / (gigabits * 1e9) + 2 * (workers - 1) * DELAY


def efficiency(case: Case, workers: int, gigabits: float, width: int = 4) -> float:
    """Return the speed of `workers` workers divided by `workers` times the speed of one, at equal tokens per worker."""
    return case.step / (case.step + reduction(case.parameters, workers, gigabits, width))


CARDS = (2, 4, 8)
LINKS = {"NVLink": 300.0, "PCIe 4": 22.0}
"""Speeds between two cards in each direction, in gigabytes per second."""
GPU_CASES = (
    Case("base (200,000 tokens/s a card, assumed)", 60_671_232, 12_500, 200_000),
    Case("big (70,000 tokens/s a card, assumed)", 209_128_704, 12_500, 70_000),
)


def star(parameters: int, cards: int, gigabytes: float) -> float:
    """Return the seconds in which the first of several cards sends all weights and receives all gradients in float32.

    Args:
        parameters: number of trainable parameters.
        cards: number of cards.
        gigabytes: speed of a link in each direction, gigabytes per second.
    """
    return 8 * (cards - 1) * parameters / (gigabytes * 1e9)


def ring(parameters: int, cards: int, gigabytes: float) -> float:
    """Return the seconds of an all-reduce in float32 between cards, without latency; `star` has the same arguments."""
    return 8 * (cards - 1) / cards * parameters / (gigabytes * 1e9)


def print_cards() -> None:
    """Print the table of the GPUs of a machine: milliseconds between the cards of a step, and efficiency."""
    print(f"| | link | {' | '.join(f'{n}, star | {n}, ring' for n in CARDS)} |")
    print("|---|---|" + "---|" * (2 * len(CARDS)))
    for case in GPU_CASES:
        for link, speed in LINKS.items():
            cells = []
            for cards in CARDS:
                for form in (star, ring):
                    seconds = form(case.parameters, cards, speed)
                    cells.append(f"{1000 * seconds:.1f} ms, {case.step / (case.step + seconds):.2f}")
            print(f"| {case.name} | {link} | {' | '.join(cells)} |")


def main() -> None:
    """Print the tables for the manual."""
    print(f"| | Gbit/s | {' | '.join(map(str, WORKERS))} | {WORKERS[-1]}, bfloat16 |")
    print("|---|---|" + "---|" * (len(WORKERS) + 1))
    for case in CASES:
        for line in LINES:
            cells = [f"{efficiency(case, n, line):.2f}" for n in WORKERS]
            print(f"| {case.name} | {line} | {' | '.join(cells)} | {efficiency(case, WORKERS[-1], line, 2):.2f} |")
    print()
    print_cards()


if __name__ == "__main__":
    main()
