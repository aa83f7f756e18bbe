"""Make CUDA libraries small enough to carry to a machine without a network: keep the code of one kind of GPU.

    python benchmarks/slim_cuda.py --keep 90 --output parts libtensorflow_cc.so.2 libcublas.so.12 ...
    python benchmarks/slim_cuda.py --list libtensorflow_cc.so.2

A CUDA library contains machine code (and PTX) for several GPU architectures. This script copies the library, fills the
code of all architectures except one with zeros, strips the symbols, and compresses all copies into one archive of parts
of --part-mib MiB. Unpack it with `cat parts/part-* | tar --extract --xz`. The copies work on GPUs of that architecture
only. `--stub libcufft.so.11` adds an empty library of that name, for a library that is loaded but not called.
"""

from __future__ import annotations

import argparse
import io
import mmap
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

SECTION = b".nv_fatbin"
MAGIC = 0xBA55ED50
"""First word of each group of codes in the section."""
PTX, MACHINE_CODE = 1, 2
GROUP, CODE = struct.Struct("<IHHQ"), struct.Struct("<HHIQ")
"""Magic, version, header size and length of a group; kind, version, header size and length of a code."""
ARCHITECTURE_AT = 28
"""Offset of the architecture in the header of a code, such as 90."""
XZ = ["xz", "--threads=0", "--block-size=64MiB", "--x86", "--lzma2=preset=6,dict=64MiB"]
"""Compression of machine code into blocks."""


class Bytes(Protocol):
    """Changeable contents of a file."""

    def __getitem__(self, range_of_bytes: slice) -> bytes: ...

    def __setitem__(self, range_of_bytes: slice, value: bytes) -> None: ...


class Code(NamedTuple):
    """The code of a group of kernels for one architecture.

    Attributes:
        kind: `PTX` or `MACHINE_CODE`.
        architecture: compute capability times ten.
        begin: offset of the code in the file.
        size: bytes of the code.
    """

    kind: int
    architecture: int
    begin: int
    size: int

    @property
    def name(self) -> str:
        """Name as NVIDIA's tools print it."""
        return f"{'ptx' if self.kind == PTX else 'elf'} sm_{self.architecture}"


def section(content: Bytes, name: bytes = SECTION) -> tuple[int, int]:
    """Return begin and end of a section of a 64-bit ELF file; (0, 0) if it has no such section."""
    if content[0:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    table, = struct.unpack("<Q", content[0x28:0x30])
    width, count, names = struct.unpack("<HHH", content[0x3A:0x40])
    headers = [struct.unpack("<IIQQQQ", content[table + i * width:table + i * width + 40]) for i in range(count)]
    for name_at, _, _, _, begin, size in headers:
        offset = headers[names][4] + name_at
        if content[offset:offset + len(name) + 1] == name + b"\0":
            return begin, begin + size
    return 0, 0


def codes(content: Bytes) -> Iterator[Code]:
    """Yield the codes of a library."""
    offset, end = section(content)
    while offset + GROUP.size <= end:
        magic, _, header, length = GROUP.unpack(content[offset:offset + GROUP.size])
        if magic != MAGIC:      # padding between groups
            offset += 8
            continue
        code_at, group_end = offset + header, offset + header + length
        while code_at + CODE.size <= group_end:
            kind, _, code_header, size = CODE.unpack(content[code_at:code_at + CODE.size])
            architecture_offset = code_at + ARCHITECTURE_AT
            architecture, = struct.unpack("<I", content[architecture_offset:architecture_offset + 4])
            yield Code(kind, architecture, code_at + code_header, size)
            code_at += code_header + size
        offset = group_end


def blank(content: Bytes, keep: int) -> Counter[str]:
    """Fill every code with zeros, except the machine code of one architecture, and return the bytes by `Code.name`.

    Raises:
        ValueError: the library has GPU code, but none of the architecture.
    """
    gpu_codes = list(codes(content))
    if gpu_codes and not any(code.kind == MACHINE_CODE and code.architecture == keep for code in gpu_codes):
        raise ValueError(f"the library has no machine code for sm_{keep}, only "
                         f"{', '.join(sorted({code.name for code in gpu_codes}))}")
    sizes: Counter[str] = Counter()
    for code in gpu_codes:
        sizes[code.name] += code.size
        if code.kind != MACHINE_CODE or code.architecture != keep:
            content[code.begin:code.begin + code.size] = bytes(code.size)
    return sizes


def slim(library: Path, keep: int, copy: Path, strip: bool = True) -> Counter[str]:
    """Write a copy of a library with the code of one architecture; return its sizes as `blank`.

    Args:
        library: path of the library.
        keep: the architecture.
        copy: path of the copy.
        strip: whether the copy loses its symbols.
    """
    shutil.copyfile(library, copy)
    with copy.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        sizes = blank(content, keep)
    if strip and shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", str(copy)], check=True)
    return sizes


def make_stub(name: str, folder: Path) -> Path:
    """Build an empty library with the compiler `cc`, and return its path."""
    path = folder / name
    subprocess.run(["cc", "-shared", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", str(path)], input=b"", check=True)
    return path


class Parts(io.RawIOBase):
    """A writable file that is divided into parts `part-000`, `part-001`, ... of a folder.

    Args:
        folder: the folder.
        size: bytes of a part.
    """

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size, self._written = folder, size, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Append bytes to the last part, and begin further parts as needed."""
        remaining = memoryview(data)
        while remaining:
            space = self._size - self._written % self._size
            with (self._folder / f"part-{self._written // self._size:03}").open("ab") as part:
                part.write(remaining[:space])
            self._written += min(space, len(remaining))
            remaining = remaining[space:]
        return len(data)


def pack(files: Sequence[Path], folder: Path, part_bytes: int) -> list[Path]:
    """Compress files and folders into an archive of parts, and return the parts.

    The program `xz` divides the archive into blocks, which `xz --decompress --threads=0` decompresses in parallel.
    Python's own compression is used if the program is not installed. Its archive is one block.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part-*"):
        old.unlink()
    with Parts(folder, part_bytes) as parts:
        if shutil.which("xz"):
            names = [word for file in files for word in ("--directory", str(file.absolute().parent), file.name)]
            with (subprocess.Popen(["tar", "--create", "--file=-", *names], stdout=subprocess.PIPE) as archive,
                  subprocess.Popen(XZ, stdin=archive.stdout, stdout=subprocess.PIPE) as compressed):
                shutil.copyfileobj(cast(IO[bytes], compressed.stdout), parts, 1 << 20)
            if archive.returncode or compressed.returncode:
                raise OSError("tar or xz failed: see its message above")
        else:
            with tarfile.open(fileobj=parts, mode="w|xz") as stream:
                for file in files:
                    stream.add(file, file.name)
    return sorted(folder.glob("part-*"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the code of libraries, or pack slim copies of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", type=Path)
    parser.add_argument("--keep", type=int, default=90, metavar="N", help="architecture: compute capability times ten")
    parser.add_argument("--list", action="store_true", help="print the code of the libraries only")
    parser.add_argument("--stub", nargs="+", default=[], metavar="NAME", help="names of empty libraries to add")
    parser.add_argument("--output", type=Path, default=Path("parts"), help="folder of the archive's parts")
    parser.add_argument("--part-mib", type=int, default=50)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        copies = [make_stub(name, Path(scratch)) for name in options.stub]
        for library in options.libraries:
            if options.list:
                with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    sizes: Counter[str] = Counter()
                    for code in codes(content):
                        sizes[code.name] += code.size
            else:
                copies.append(Path(scratch) / library.name)
                sizes = slim(library, options.keep, copies[-1])
            listed = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sorted(sizes.items()))
            print(f"{library.name}: {listed or 'no GPU code'}")
        if not options.list:
            parts = pack(copies, options.output, options.part_mib << 20)
            total = sum(part.stat().st_size for part in parts)
            print(f"{len(parts)} part(s), {total / 1e6:.1f} MB, in {options.output}")


if __name__ == "__main__":
    main()
