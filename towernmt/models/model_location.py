"""Find the class of a custom model (`FILE.py:CLASS` or `package.module:CLASS`), and a run's copy of its code."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from towernmt.core.errors import SettingsError, suggestion
from towernmt.core.files import checked_name, replacing, write_text

_ELSEWHERE = {*sys.stdlib_module_names, "towernmt"}
"""Modules that are never imported from the folder of a custom model."""


def code_of(root: Path, module: str) -> dict[str, bytes]:
    """Return the content of a module's file, and of all files of its folder that it imports, directly or indirectly.

    For a module in a package, these are files of the package. A directory of the package without `__init__.py` gets an
    empty one.

    Args:
        root: the directory from which the module is imported.
        module: name of the module in this directory.

    Returns:
        contents by path relative to `root`, with "/" as separator.

    Raises:
        SettingsError: a file has a syntax error.
    """
    package = module.partition(".")[0] if "." in module or (root / module / "__init__.py").is_file() else ""
    files: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        module_name = waiting.pop()
        top = module_name.partition(".")[0]
        if files and (top in _ELSEWHERE or (package and top != package)):
            continue
        for name, file in _files(root, module_name):
            if name not in files:
                files[name] = file.read_bytes() if file.is_file() else b""
                waiting += _imported(files[name], name)
    return files


def _files(root: Path, module: str) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of a module's file below `root`, and of the `__init__.py` around it."""
    names = module.split(".")
    path = root.joinpath(*names)
    files = [path.with_name(f"{path.name}.py"), path / "__init__.py"]
    file = next((f for f in files if f.is_file()), None)
    if file is None:
        return
    for depth in range(1, len(names)):
        yield "/".join([*names[:depth], "__init__.py"]), root.joinpath(*names[:depth], "__init__.py")
    yield file.relative_to(root).as_posix(), file


def _imported(content: bytes, name: str) -> list[str]:
    """Return the modules that a file may import; `from a import b` may import `a` and `a.b`."""
    try:
        tree = ast.parse(content)
    except SyntaxError as error:
        raise SettingsError(f"{name}: {error.msg} (line {error.lineno}): fix the file.") from error
    package = name.split("/")[:-1]
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package[:len(package) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            modules += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [module for module in modules if module]


SHAPES = ("my_model.py:MyModel", "my_package.my_model:MyModel")


class LocatedKind(NamedTuple):
    """The kind of an attribute that a user names, for error messages.

    Attributes:
        noun: what is named, such as "class" or "function".
        example: a name of this kind.
        option: the option that has the name, or "" if several options have such a name.
    """

    noun: str
    example: str
    option: str = ""


MODEL_CLASS = LocatedKind("class", SHAPES[0])
_LOADED: dict[tuple[Path, str], ModuleType] = {}
"""Modules by file, and by the checksum of the file and of its imports from the same folder."""
_LOCK = threading.RLock()


class ModelLocation(NamedTuple):
    """Location of a model class, or of a function that creates a model.

    Attributes:
        root: directory from which the module is imported.
        module: name of the module, such as `my_model` or `package.module`.
        attribute: name of the class or function in the module.
    """

    root: Path
    module: str
    attribute: str

    @property
    def name(self) -> str:
        """Name without the directory: `my_model.py:MyModel` or `package.module:Class`."""
        return f"{self.module}{'' if self.in_package else '.py'}:{self.attribute}"

    @property
    def in_package(self) -> bool:
        """Whether the module belongs to a package, so that it may have relative imports."""
        return "." in self.module or self.file.name == "__init__.py"

    @property
    def file(self) -> Path:
        """Path of the module's file."""
        path = self.root.joinpath(*self.module.split("."))
        package = path / "__init__.py"
        return package if package.is_file() else path.with_name(f"{path.name}.py")

    @property
    def spelled(self) -> str:
        """Name with the path of the file, for `find_location` in any working directory."""
        return f"{self.file}:{self.attribute}"


def find_location(name: str, kind: LocatedKind = MODEL_CLASS) -> ModelLocation:
    """Return the location of a model by name, or of a function for another purpose.

    Args:
        name: FILE.py:CLASS, or MODULE:CLASS of an importable module.
        kind: the kind of the attribute, for error messages.

    Raises:
        SettingsError: the file or module does not exist.
    """
    origin, colon, attribute = name.rpartition(":")
    example = f"such as {kind.option}{' ' if kind.option else ''}{kind.example}"
    if not (colon and origin and attribute):
        label = f"{kind.option} {name}".strip()
        raise SettingsError(f"{label}: name a file or module and its {kind.noun}, {example}.")
    beginning = f"{kind.option} {name}: " if kind.option else ""
    if origin.endswith(".py"):
        if not Path(origin).is_file():
            raise SettingsError(f"{beginning}the file {origin} does not exist: name a Python file and its {kind.noun}, "
                                f"{example}.")
        if "." in Path(origin).stem:
            raise SettingsError(f"{beginning}{origin} cannot be imported, because the name of a Python module has no "
                                f"dots: rename the file, for example to {Path(origin).stem.replace('.', '_')}.py.")
        return location_of_file(Path(origin), attribute)
    file = _file_of_module(origin)
    if file is None:
        raise SettingsError(f"{beginning}the module {origin} does not exist: name a file, {example}, or install the "
                            "module.")
    return location_of_file(file, attribute)


def location_of_file(file: Path, attribute: str) -> ModelLocation:
    """Return the location of an attribute of a file; the root of a package's module is the directory of the package."""
    file = file.resolve()
    names = [] if file.name == "__init__.py" else [file.stem]
    root = file.parent
    while (root / "__init__.py").is_file() and root != root.parent:
        names, root = [root.name, *names], root.parent
    return ModelLocation(root, ".".join(names), attribute)


def load_attribute(location: ModelLocation) -> Any:
    """Import the module of a location, once per content of the file, and return the class or function.

    Raises:
        SettingsError: the module cannot be imported, or has no such attribute.
    """
    module = _module(location)
    value: Any = module
    for name in location.attribute.split("."):
        if not hasattr(value, name):
            names = [defined for defined, content in vars(module).items()
                     if getattr(content, "__module__", "") == module.__name__]
            raise SettingsError(f"{location.file} has no '{location.attribute}': name a class or function of this "
                                f"file.{suggestion(name, names, 'classes and functions of this file')}")
        value = getattr(value, name)
    return value


def name_of_class(kind: type) -> str:
    """Return the name with which `find_location` finds a class, or `NAME of MODULE` if it cannot be found.

    A class cannot be found if a function or a notebook created it, if importing its file would run a program, or if the
    name of the file has further dots.
    """
    module = sys.modules.get(kind.__module__)
    file = Path(getattr(module, "__file__", None) or "")
    value: Any = module
    for name in kind.__qualname__.split("."):
        value = getattr(value, name, None)
    if value is not kind or file.suffix != ".py" or "." in file.stem or (kind.__module__ == "__main__" and _runs(file)):
        return f"{kind.__qualname__} of {kind.__module__}"
    return location_of_file(file, kind.__qualname__).spelled


def is_findable(name: str) -> bool:
    """Return whether a result of `name_of_class` names a class that can be found."""
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


def _module(location: ModelLocation) -> ModuleType:
    file, code = location.file, code_of(location.root, location.module)
    content = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()
    with _LOCK:
        if (file, content) not in _LOADED:
            anew = any(loaded == file for loaded, _ in _LOADED)         # with other content
            with _importing_from(location.root, {name.partition("/")[0].removesuffix(".py") for name in code}, anew):
                try:
                    _LOADED[file, content] = _import(location, content)
                except SettingsError:
                    raise
                except Exception as error:      # whatever the user's file raises
                    fix = " Install that module, or correct the import." if isinstance(
                        error, ModuleNotFoundError) else ""
                    raise SettingsError(f"{file} cannot be loaded: {_reason(error, location.root)}.{fix}") from error
        return _LOADED[file, content]


def _import(location: ModelLocation, content: str) -> ModuleType:
    if location.in_package:
        return importlib.import_module(location.module)
    path_digest = hashlib.sha256(str(location.file).encode()).hexdigest()
    name = f"{location.module}@{path_digest[:4]}{content[:4]}"
    spec = importlib.util.spec_from_file_location(name, location.file)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{location.file} is not a Python file; name the one that holds the model, as {SHAPES[0]}.")
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
    """Import modules from a directory, even if other modules with these names were imported before.

    The other modules are restored afterwards. `root` stays at the end of the path, for imports inside functions.

    Args:
        root: the directory.
        local: names of the modules.
        anew: import modules of `root` again that are already imported, because their files have changed.
    """
    hidden_modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in local}
    foreign_modules = {name: module for name, module in hidden_modules.items() if not _lies_in(module, root)}
    for name in hidden_modules if anew else foreign_modules:
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
        sys.modules.update(foreign_modules)


def _lies_in(module: Any, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or Path(file).resolve().is_relative_to(root)


def _reason(error: Exception, root: Path) -> str:
    """Return the message of an exception with the last line of user code in its traceback."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno} of {error.filename})"
    user_frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                   if Path(frame.filename).is_relative_to(root) and "site-packages" not in frame.filename]
    line_text = f" (line {user_frames[-1].lineno} of {user_frames[-1].filename})" if user_frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{line_text}"


def _runs(file: Path) -> bool:
    """Return whether importing a file runs a program: whether it calls something at its top level."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError):
        return True
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, ast.Call) for statement in statements
               if not isinstance(statement, allowed) and not _is_main_guard(statement) for node in ast.walk(statement))


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def copy_code(location: ModelLocation, directory: Path) -> None:
    """Write the files of a model to a directory, replacing earlier ones."""
    code = code_of(location.root, location.module)
    old_sums = _read_sums(directory)
    if old_sums == _sums(code) and not _damaged(directory, old_sums):
        return
    for name in old_sums.keys() - code.keys():
        (directory / name).unlink(missing_ok=True)
    for name, content in code.items():
        with replacing(directory / name) as file:
            file.write(content)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(_sums(code).items())]
    write_text(directory / SUMS, "".join(lines))


def location_of_copy(directory: Path, name: str) -> ModelLocation | None:
    """Return the location of a model (by `ModelLocation.name`) in a run's copy, or None without a copy.

    A module of an installed package is used from the installation if its files are the same.

    Raises:
        SettingsError: a file of the copy is missing, or does not match its checksum.
    """
    origin, _, attribute = name.rpartition(":")
    path = origin if origin.endswith(".py") else origin.replace(".", "/") + ".py"
    checked_name(path, f"{directory.parent / 'settings.yaml'}: architecture")
    file = directory / path
    if not file.is_file():
        file = file.with_suffix("") / "__init__.py"
    if not file.is_file():
        return None
    sums = _read_sums(directory)
    damaged = _damaged(directory, sums)
    if damaged:
        raise SettingsError(f"{directory / damaged[0]} is not the file that the run was made with (its SHA-256 is not "
                            f"the one in {directory / SUMS}): restore the file, or, if you changed it on purpose, "
                            "write the new sums with sha256sum.")
    if not origin.endswith(".py"):
        try:
            installed = find_location(name)
            if _sums(code_of(installed.root, installed.module)) == sums:
                return installed
        except SettingsError:
            pass        # not installed here, so the copy is used
    return location_of_file(file, attribute)


def changed_files(location: ModelLocation, directory: Path) -> list[str]:
    """Return the names of files that differ between a model and its copy, or that only one of them has."""
    new_sums, old_sums = _sums(code_of(location.root, location.module)), _read_sums(directory)
    return sorted(name for name in new_sums.keys() | old_sums.keys() if new_sums.get(name) != old_sums.get(name))


def _sums(code: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in code.items()}


def _read_sums(directory: Path) -> dict[str, str]:
    """Return the digests of a copy's files by name; {} without a copy."""
    file = directory / SUMS
    if not file.is_file():
        return {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    matches = [_LINE.fullmatch(line) for line in lines if line]
    if None in matches:
        raise SettingsError(f"{file}: its lines are not a SHA-256 and a name each: write it again with sha256sum.")
    return {checked_name(match[2], str(file)): match[1] for match in matches if match}


def _damaged(directory: Path, sums: dict[str, str]) -> list[str]:
    return [name for name, digest in sums.items() if not (directory / name).is_file()
            or hashlib.sha256((directory / name).read_bytes()).hexdigest() != digest]
