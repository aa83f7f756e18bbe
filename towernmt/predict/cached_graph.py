"""The file of a cached graph of a search, and a session of TensorFlow's C library that runs it."""

from __future__ import annotations

import base64
import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import secrets
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from towernmt.core.errors import DataError, TowerNMTError
from towernmt.core.machine import refuse_forked, refuse_second_process
from towernmt.core.standard_streams import without_noise
from towernmt.core.structured_files import typed_value

_TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32), 3: np.dtype(np.int32), 9: np.dtype(np.int64), 10: np.dtype(np.bool_)}
_NUMBERS = {dtype: number for number, dtype in _TYPES.items()}
_RESOURCE_EXHAUSTED = 8             # TF_RESOURCE_EXHAUSTED of TF_Code
_STRING, _STRING_SIZE = 7, 24       # TF_STRING, and the bytes of a TF_TString
_POINTER, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "TF_NewStatus": (_POINTER, []), "TF_DeleteStatus": (None, [_POINTER]),
    "TF_GetCode": (_INT, [_POINTER]), "TF_Message": (_TEXT, [_POINTER]),
    "TF_NewGraph": (_POINTER, []), "TF_DeleteGraph": (None, [_POINTER]),
    "TF_NewImportGraphDefOptions": (_POINTER, []), "TF_DeleteImportGraphDefOptions": (None, [_POINTER]),
    "TF_GraphImportGraphDef": (None, [_POINTER] * 4), "TF_GraphOperationByName": (_POINTER, [_POINTER, _TEXT]),
    "TF_NewSessionOptions": (_POINTER, []), "TF_DeleteSessionOptions": (None, [_POINTER]),
    "TF_SetConfig": (None, [_POINTER, _TEXT, _SIZE, _POINTER]), "TF_NewSession": (_POINTER, [_POINTER] * 3),
    "TF_CloseSession": (None, [_POINTER] * 2), "TF_DeleteSession": (None, [_POINTER] * 2),
    "TF_SessionRun": (None, [_POINTER, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _INT,
                             _POINTER, _POINTER]),
    "TF_AllocateTensor": (_POINTER, [_INT, _POINTER, _INT, _SIZE]), "TF_DeleteTensor": (None, [_POINTER]),
    "TF_TensorData": (_POINTER, [_POINTER]), "TF_TensorByteSize": (_SIZE, [_POINTER]),
    "TF_TensorType": (_INT, [_POINTER]), "TF_NumDims": (_INT, [_POINTER]),
    "TF_Dim": (ctypes.c_int64, [_POINTER, _INT]), "TF_StringInit": (None, [_POINTER]),
    "TF_StringCopy": (None, [_POINTER, _TEXT, _SIZE]), "TF_StringDealloc": (None, [_POINTER]),
}


class _Buffer(ctypes.Structure):
    _fields_ = [("data", _POINTER), ("length", _SIZE), ("deallocator", _POINTER)]


class _Output(ctypes.Structure):
    _fields_ = [("operation", _POINTER), ("index", _INT)]


class CSessionError(TowerNMTError):
    """TensorFlow's C library is missing, or cannot run a graph."""


def library_files() -> list[Path]:
    """Return TensorFlow's C libraries in loading order; [] if the package has none."""
    spec = importlib.util.find_spec("tensorflow")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    found = [[place / f"libtensorflow_{part}.so.2" for part in ("framework", "cc")] for place in places]
    return next((files for files in found if all(file.is_file() for file in files)), [])


class CSession:
    """A graph with a session.

    As with TensorFlow's sessions, several threads may call `run` concurrently. The memory is released with the last
    reference.

    Args:
        graph: a serialised `GraphDef`.
        config: a serialised `ConfigProto`.

    Raises:
        CSessionError: TensorFlow's library is missing, or cannot read the graph.
        SettingsError: the process was forked from one that has used TensorFlow.
    """

    def __init__(self, graph: bytes, config: bytes) -> None:
        refuse_second_process()
        self._process = os.getpid()
        self._c = _library()
        self._graph = self._c.TF_NewGraph()
        made: list[Any] = []
        weakref.finalize(self, _delete, self._c, self._graph, made)
        self._import(graph)
        options = self._c.TF_NewSessionOptions()
        try:
            with _Status(self._c) as status:
                self._c.TF_SetConfig(options, config, len(config), status)
            with _Status(self._c) as status, without_noise():
                self._session = self._c.TF_NewSession(self._graph, options, status)
        finally:
            self._c.TF_DeleteSessionOptions(options)
        made.append(self._session)

    def run(self, feeds: Mapping[str, np.ndarray | str], fetches: Sequence[str],
            targets: Iterable[str] = ()) -> list[np.ndarray]:
        """Run a part of the graph.

        Args:
            feeds: arrays, or single texts, by the names of tensors.
            fetches: names of tensors.
            targets: names of operations.

        Returns:
            The arrays of `fetches`.

        Raises:
            CSessionError: TensorFlow's message.
            MemoryError: a tensor does not fit into memory.
            SettingsError: the process was forked from the session's.
        """
        if os.getpid() != self._process:
            refuse_forked(self._process)
        given = [self._tensor(value) for value in feeds.values()]
        fetched = (_POINTER * len(fetches))()
        operations = [self._operation(name) for name in targets]
        try:
            with _Status(self._c) as status:
                self._c.TF_SessionRun(
                    self._session, None, self._outputs(feeds), (_POINTER * len(given))(*given), len(given),
                    self._outputs(fetches), fetched, len(fetched), (_POINTER * len(operations))(*operations),
                    len(operations), None, status)
            return [self._array(tensor) for tensor in fetched]
        finally:
            for tensor, value in zip(given, feeds.values(), strict=True):
                if isinstance(value, str):
                    self._c.TF_StringDealloc(self._c.TF_TensorData(tensor))
                self._c.TF_DeleteTensor(tensor)
            for tensor in filter(None, fetched):
                self._c.TF_DeleteTensor(tensor)

    def _import(self, graph: bytes) -> None:
        options = self._c.TF_NewImportGraphDefOptions()
        data = ctypes.create_string_buffer(graph, len(graph))
        buffer = _Buffer(ctypes.cast(data, _POINTER), len(graph), None)
        try:
            with _Status(self._c) as status:
                self._c.TF_GraphImportGraphDef(self._graph, ctypes.byref(buffer), options, status)
        finally:
            self._c.TF_DeleteImportGraphDefOptions(options)

    def _operation(self, name: str) -> Any:
        found = self._c.TF_GraphOperationByName(self._graph, name.encode())
        if not found:
            raise CSessionError(f"The graph has no operation '{name}'.")
        return found

    def _outputs(self, tensors: Iterable[str]) -> Any:
        parts = [name.rpartition(":") for name in tensors]
        return (_Output * len(parts))(*(_Output(self._operation(name), int(index)) for name, _, index in parts))

    def _tensor(self, value: np.ndarray | str) -> Any:
        if isinstance(value, str):
            tensor = self._c.TF_AllocateTensor(_STRING, None, 0, _STRING_SIZE)
            data, text = self._c.TF_TensorData(tensor), os.fsencode(value)
            self._c.TF_StringInit(data)
            self._c.TF_StringCopy(data, text, len(text))
            return tensor
        array = np.ascontiguousarray(value)
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        tensor = self._c.TF_AllocateTensor(_NUMBERS[array.dtype], shape, array.ndim, array.nbytes)
        ctypes.memmove(self._c.TF_TensorData(tensor), array.ctypes.data, array.nbytes)
        return tensor

    def _array(self, tensor: Any) -> np.ndarray:
        shape: tuple[int, ...] = tuple(self._c.TF_Dim(tensor, axis) for axis in range(self._c.TF_NumDims(tensor)))
        array: np.ndarray = np.empty(shape, dtype=_TYPES[self._c.TF_TensorType(tensor)])
        ctypes.memmove(array.ctypes.data, self._c.TF_TensorData(tensor), array.nbytes)
        return array


class _Status:
    """A `TF_Status`, whose error becomes an exception at the end of the block."""

    def __init__(self, library: Any) -> None:
        self._c = library

    def __enter__(self) -> Any:
        self._status = self._c.TF_NewStatus()
        return self._status

    def __exit__(self, *_: object) -> None:
        code, message = self._c.TF_GetCode(self._status), self._c.TF_Message(self._status)
        self._c.TF_DeleteStatus(self._status)
        if code == _RESOURCE_EXHAUSTED:
            raise MemoryError(message.decode(errors="replace"))
        if code:
            raise CSessionError(message.decode(errors="replace"))


class _Library:
    """The functions of TensorFlow's C libraries."""

    def __init__(self, files: Iterable[Path]) -> None:
        opened = [ctypes.CDLL(str(file)) for file in files]
        for name, (result, arguments) in _FUNCTIONS.items():
            function = next((getattr(library, name) for library in opened if hasattr(library, name)), None)
            if function is None:
                raise CSessionError(f"TensorFlow's C library has no {name}.")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


_loading = threading.Lock()


def _library() -> Any:
    with _loading:
        return _loaded()


@functools.cache
def _loaded() -> _Library:
    files = library_files()
    if not files:
        raise CSessionError("The package tensorflow has no C library here.")
    try:
        with without_noise():
            return _Library(files)
    except OSError as error:
        raise CSessionError(f"{files[-1]}: {error}") from error


def _delete(library: Any, graph: Any, session: list[Any]) -> None:
    status = library.TF_NewStatus()
    for handle in session:
        library.TF_CloseSession(handle, status)
        library.TF_DeleteSession(handle, status)
    library.TF_DeleteGraph(graph)
    library.TF_DeleteStatus(status)


KEPT_GRAPHS = 8
"""Maximum number of cached graphs in a directory; the oldest ones are deleted."""


@dataclass(frozen=True)
class GraphNames:
    """Names in a cached graph.

    Attributes:
        inputs: tensors by the inputs' names.
        dtypes: names of NumPy dtypes by the inputs' names.
        outputs: tensors by the outputs' names.
        prefix: the tensor that takes the checkpoint's prefix.
        restore: the operation that reads the checkpoint.
    """

    inputs: dict[str, str]
    dtypes: dict[str, str]
    outputs: dict[str, str]
    prefix: str
    restore: str


@dataclass(frozen=True)
class KeptGraph:
    """A graph with the names and the configuration to run it.

    Attributes:
        names: names of tensors and operations.
        config: a serialised `ConfigProto`.
        graph: a serialised `GraphDef`, without the weights.
    """

    names: GraphNames
    config: bytes
    graph: bytes


def graph_file(directory: Path, key: str) -> Path:
    """Return the path of the cached graph for a key."""
    return directory / f"search-{key}.graph"


def read_graph(file: Path) -> KeptGraph:
    """Read a cached graph.

    Raises:
        OSError: the file is missing or cannot be read.
        DataError: the file is damaged.
    """
    head, _, content = file.read_bytes().partition(b"\n")
    try:
        header = json.loads(head)
        digest = header.pop("sha256")
        if _digest(header, content) != digest:
            raise ValueError("its checksum does not match")
        config = base64.b64decode(header.pop("config"))
        return KeptGraph(typed_value(header, GraphNames), config, content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file}: the cached graph is damaged ({error}).") from error


def write_graph(file: Path, kept: KeptGraph) -> None:
    """Write a cached graph atomically, also with concurrent writers, and delete the oldest ones.

    Raises:
        OSError: the file cannot be written.
    """
    head = {"config": base64.b64encode(kept.config).decode(), **asdict(kept.names)}
    head["sha256"] = _digest(head, kept.graph)
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_name(f"{file.name}.{secrets.token_hex(8)}.tmp")
    try:
        unfinished.write_bytes(json.dumps(head).encode() + b"\n" + kept.graph)
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
    for old in sorted(file.parent.glob("search-*"), key=_age)[KEPT_GRAPHS:]:
        with suppress(OSError):     # deleted by another process, or not permitted
            old.unlink()


def _digest(head: dict[str, Any], graph: bytes) -> str:
    return hashlib.sha256(json.dumps(head).encode() + b"\n" + graph).hexdigest()


def _age(file: Path) -> float:
    try:
        return -os.stat(file).st_mtime
    except OSError:     # deleted by another process
        return 0.0
