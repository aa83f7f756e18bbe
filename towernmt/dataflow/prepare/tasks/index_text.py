"""The first reading of a file, as a task: it checks the text and finds its places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from towernmt.dataflow.prepare.running.task import Task, putting
from towernmt.dataflow.text.chunks import is_compressed
from towernmt.dataflow.text.text_index import TextIndex, index_text, state_of


@dataclass(frozen=True)
class IndexText(Task):
    """Attributes:
        path: of the file.
        unpacked: where its plain content goes, if it is compressed.
    """

    path: str
    unpacked: Path

    @classmethod
    def of(cls, path: str, name: str, work: Path) -> IndexText:
        """The task.

        Args:
            path: of the file.
            name: for its index.
            work: directory of the index.
        """
        return cls(work / f"text-{name}.json", 0, path, work / f"text-{name}.plain")

    @property
    def title(self) -> str:
        return f"reading {self.path}"

    @property
    def done(self) -> bool:
        """Whether the file was read, and has not changed since."""
        if not self.output.exists():
            return False
        found = self.index()
        return (found.summary.path, found.state) == (self.path, state_of(self.path)) and Path(found.file).exists()

    def run(self) -> None:
        if is_compressed(self.path):
            with putting(self.unpacked) as plain:
                index = index_text(self.path, plain, self.unpacked)
        else:
            index = index_text(self.path)
        with putting(self.output) as unfinished:
            unfinished.write_text(index.to_text(), encoding="utf-8")

    def index(self) -> TextIndex:
        """What was found."""
        return TextIndex.parse(self.output.read_text(encoding="utf-8"))
