"""Where the class of a model of one's own is, `my_model.py:MyModel` or `package.module:Class`; and a class's name.

A file is imported under a name of its own, so that it cannot replace another module. It can import the files of its own
folder, as a program can. If the file is in a package, imports begin at the package, so that relative ones work.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError
from towernmt.models.registry.code_files import code_of
from towernmt.models.registry.former_names import understand_former_names

SHAPES = ("my_model.py:MyModel", "my_package.my_model:MyModel")
_LOADED: dict[tuple[Path, str], ModuleType] = {}
"""By file, and by the sum of its content and of what it imports from its own folder."""
_LOCK = threading.RLock()


class Place(NamedTuple):
    """Where a class, or a function that makes a model, is.

    Attributes:
        root: the directory at which imports begin.
        module: the module's name from there, such as `my_model` or `package.module`.
        attribute: what it is called in the module.
    """

    root: Path
    module: str
    attribute: str

    @property
    def name(self) -> str:
        """What it is called wherever it lies: `my_model.py:MyModel` or `package.module:Class`."""
        return f"{self.module}{'' if self.in_package else '.py'}:{self.attribute}"

    @property
    def in_package(self) -> bool:
        """Whether the module is a package's, so that it may have relative imports."""
        return "." in self.module or self.file.name == "__init__.py"

    @property
    def file(self) -> Path:
        """The module's file."""
        path = self.root.joinpath(*self.module.split("."))
        package = path / "__init__.py"
        return package if package.is_file() else path.with_name(f"{path.name}.py")

    @property
    def spelled(self) -> str:
        """A name by which `find_place` finds it from anywhere."""
        return f"{self.file}:{self.attribute}"


def find_place(name: str) -> Place:
    """Where a name points.

    Args:
        name: FILE.py:CLASS, or MODULE:CLASS of a module that can be imported here.
    Raises:
        SettingsError: there is no such file or module.
    """
    where, colon, attribute = name.rpartition(":")
    if not (colon and where and attribute):
        raise SettingsError(f"{name}: name a file or module and what is in it, as {SHAPES[0]}.")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise SettingsError(f"{where}: there is no such file; name the one that holds the model, as {SHAPES[0]}.")
        return place_of_file(Path(where), attribute)
    file = _file_of_module(where)
    if file is None:
        raise SettingsError(f"{where}: there is no such module; name a file, as {SHAPES[0]}, or install the module.")
    return place_of_file(file, attribute)


def place_of_file(file: Path, attribute: str) -> Place:
    """The place of what is in a file; the root of a module in a package is the directory with the package."""
    file = file.resolve()
    parts = [] if file.name == "__init__.py" else [file.stem]
    root = file.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        parts, root = [root.name, *parts], root.parent
    return Place(root, ".".join(parts), attribute)


def load(place: Place) -> Any:
    """What is at a place; its module is imported, once for each content of the file.

    Raises:
        SettingsError: the module cannot be imported, or has no such attribute.
    """
    thing: Any = _module(place)
    for part in place.attribute.split("."):
        if not hasattr(thing, part):
            raise SettingsError(f"{place.file} has no '{place.attribute}'; name the class of the model, or a function "
                                "that makes one.")
        thing = getattr(thing, part)
    return thing


def name_of_class(kind: type) -> str:
    """The name by which a class is found again, or `NAME of MODULE` for one that is not.

    The latter is a class that a function made, one of a notebook, and one of a program that does more than to define
    when it is loaded: to load that again would run it again.
    """
    module = sys.modules.get(kind.__module__)
    file = Path(getattr(module, "__file__", None) or "")
    thing: Any = module
    for part in kind.__qualname__.split("."):
        thing = getattr(thing, part, None)
    if thing is not kind or file.suffix != ".py" or (kind.__module__ == "__main__" and _runs(file)):
        return f"{kind.__qualname__} of {kind.__module__}"
    return place_of_file(file, kind.__qualname__).spelled


def is_findable(name: str) -> bool:
    """Whether `name_of_class` gave the name of a class that can be found again."""
    return ":" in name


def _file_of_module(module: str) -> Path | None:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))         # as `python -m` does; the command `towernmt` is not started so
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _module(place: Place) -> ModuleType:
    file, code = place.file, code_of(place.root, place.module)
    content = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()
    with _LOCK:
        if (file, content) not in _LOADED:
            understand_former_names()
            anew = any(loaded == file for loaded, _ in _LOADED)         # with other content
            with _importing_from(place.root, {name.partition("/")[0].removesuffix(".py") for name in code}, anew):
                try:
                    _LOADED[file, content] = _import(place, content)
                except SettingsError:
                    raise
                except Exception as error:      # whatever the user's file raises
                    raise SettingsError(f"{file} cannot be loaded: {_reason(error, place.root)}.") from error
        return _LOADED[file, content]


def _import(place: Place, content: str) -> ModuleType:
    if place.in_package:
        return importlib.import_module(place.module)
    where = hashlib.sha256(str(place.file).encode()).hexdigest()
    name = f"{place.module}@{where[:4]}{content[:4]}"
    spec = importlib.util.spec_from_file_location(name, place.file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{place.file} is not a Python file; name the one that holds the model, as {SHAPES[0]}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module                      # dataclasses and type hints look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing_from(root: Path, local: set[str], anew: bool) -> Iterator[None]:
    """The modules `local` are imported from `root`, even where others of these names were imported before.

    Those come back afterwards, and `root` stays at the end of the path, for what functions import when they are called.

    Args:
        anew: import those of `root` itself again, too: their files have changed.
    """
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in local}
    others = {name: module for name, module in hidden.items() if not _lies_in(module, root)}
    for name in hidden if anew else others:
        del sys.modules[name]
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True     # no further files in a run's folder
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(root))
        if str(root) not in sys.path:
            sys.path.append(str(root))
        sys.modules.update(others)


def _lies_in(module: Any, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or Path(file).resolve().is_relative_to(root)


def _reason(error: Exception, root: Path) -> str:
    """What went wrong, with the last line of the user's own code that it went through."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno} of {error.filename})"
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if Path(frame.filename).is_relative_to(root) and "site-packages" not in frame.filename]
    where = f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def _runs(file: Path) -> bool:
    """Whether a program does more than to define when it is imported: whether it calls something at its top level."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError):
        return True
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, ast.Call) for statement in statements
               if not isinstance(statement, allowed) and not _is_main_guard(statement) for node in ast.walk(statement))


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
