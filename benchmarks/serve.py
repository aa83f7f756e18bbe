"""Load a translation server with concurrent clients, each of which sends one sentence at a time.

    towernmt serve --model de-en=runs/de-en --port 5000 &
    python benchmarks/serve.py --pid $! --text test.de --clients 200 --seconds 120

Prints the engine with its precision, the numbers of answered, refused and lost requests, percentiles of the response
time, and the server's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

PERCENTILES = (50, 95, 99, 100)


@dataclass
class Answers:
    """Measurements of all clients.

    Attributes:
        statuses: number of responses by HTTP status; 0 counts lost requests.
        seconds: response times of successful requests.
        sentences: number of translated sentences.
        memory: (seconds since the start, MiB) of the server.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    sentences: int = 0
    memory: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """The work of the clients.

    Attributes:
        host, port: address of the server.
        lines: sentences to translate, taken in order.
        head: head of a request without Content-Length.
        languages: source and target language.
        per_request: sentences per request.
        until: end of the measurement on the monotonic clock.
    """

    host: str
    port: int
    lines: list[str]
    head: str
    languages: tuple[str, str]
    per_request: int
    until: float


async def client(load: Load, numbers: count[int], answers: Answers) -> None:
    """Send requests one after the other on a persistent connection until the time is over."""
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    while time.monotonic() < load.until:
        texts = [load.lines[next(numbers) % len(load.lines)] for _ in range(load.per_request)]
        body = json.dumps({"q": texts, "source": load.languages[0], "target": load.languages[1]}).encode()
        begun = time.monotonic()
        try:
            if streams is None:
                streams = await asyncio.open_connection(load.host, load.port)
            streams[1].write(f"{load.head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status, content, closed = await answer(streams[0])
        except (OSError, asyncio.IncompleteReadError, ValueError):
            answers.statuses[0] += 1
            streams = None
            await asyncio.sleep(0.1)
            continue
        answers.statuses[status] += 1
        if status == 200:
            answers.seconds.append(time.monotonic() - begun)
            answers.sentences += len(json.loads(content)["translatedText"])
        else:
            await asyncio.sleep(1.0)    # as Retry-After says
        if closed:
            streams[1].close()
            streams = None
    if streams is not None:
        streams[1].close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """Read a response and return its status, its body, and whether the server closes the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), body, headers.get("connection") == "close"


async def watch_memory(pid: int, until: float, answers: Answers) -> None:
    """Record the resident memory of a process every two seconds (Linux)."""
    begun = time.monotonic()
    while time.monotonic() < until:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        kibibytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        answers.memory.append((time.monotonic() - begun, kibibytes / 1024))
        await asyncio.sleep(2.0)


async def run(args: argparse.Namespace) -> Answers:
    """Run all clients and return their measurements."""
    url = urlsplit(args.url)
    key = f"Authorization: Bearer {args.key}\r\n" if args.key else ""
    head = f"POST /translate HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n{key}"
    lines = [line for line in Path(args.text).read_text(encoding="utf-8").splitlines() if line.strip()]
    load = Load(url.hostname or "", url.port or 80, lines, head, (args.source, args.target), args.sentences,
                time.monotonic() + args.seconds)
    answers, numbers = Answers(), count()
    watch = [watch_memory(args.pid, load.until, answers)] if args.pid else []
    await asyncio.gather(*(client(load, numbers, answers) for _ in range(args.clients)), *watch)
    return answers


def engine_of(url: str, languages: tuple[str, str]) -> str:
    """Return the name of the engine that answers requests now, with its version and precision."""
    with urlopen(f"{url}/api/v1/models") as response:
        models = json.load(response)["models"]
    engine: str = next(model["engine"] for model in models if (model["source"], model["target"]) == languages)
    return engine


def report(answers: Answers, seconds: float, engines: list[str]) -> str:
    """Return the results as rows of a Markdown table; `engines` are those at the start and at the end."""
    ordered = sorted(answers.seconds) or [float("nan")]
    refused = sum(number for status, number in answers.statuses.items() if status in (429, 503))
    failed = sum(number for status, number in answers.statuses.items() if status not in (0, 200, 429, 503))
    rows = [("engine", ", then ".join(dict.fromkeys(engines))),
            ("sentences/s", f"{answers.sentences / seconds:.1f}"), ("answered", str(answers.statuses[200])),
            ("refused", str(refused)), ("failed", str(failed)), ("lost", str(answers.statuses[0]))]
    rows += [(f"p{share}" if share < 100 else "slowest",
              f"{ordered[min(len(ordered) * share // 100, len(ordered) - 1)]:.2f} s") for share in PERCENTILES]
    if answers.memory:
        indices = sorted({0, len(answers.memory) // 4, len(answers.memory) // 2, 3 * len(answers.memory) // 4,
                          len(answers.memory) - 1})
        rows.append(("MiB", ", ".join(f"{answers.memory[index][1]:.0f} at {answers.memory[index][0]:.0f} s"
                                      for index in indices)))
    return "\n".join(f"| {name} | {value} |" for name, value in rows)


def main() -> None:
    """Load a server and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:5000", help="URL of the server (default: %(default)s)")
    parser.add_argument("--text", required=True, help="file with one sentence per line")
    parser.add_argument("--source", default="de", help="language of the text (default: %(default)s)")
    parser.add_argument("--target", default="en", help="language of the translations (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=200, help="number of concurrent clients (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=120.0, help="duration (default: %(default)s)")
    parser.add_argument("--sentences", type=int, default=1, help="sentences per request (default: %(default)s)")
    parser.add_argument("--pid", type=int, help="process id of the server, to record its memory")
    parser.add_argument("--key", help="API key")
    args = parser.parse_args()
    languages = (args.source, args.target)
    engines = [engine_of(args.url, languages)]
    begun = time.monotonic()
    answers = asyncio.run(run(args))
    seconds = time.monotonic() - begun
    print(report(answers, seconds, [*engines, engine_of(args.url, languages)]))


if __name__ == "__main__":
    main()
