"""Errors that a user can fix, exceptions that mean an exhausted machine, and the masking of secrets in messages.

The message of an error is one sentence that says what is wrong, where, and how to fix it.

Exceptions about exhausted memory, threads or open files come from many libraries, far below the code that could name
a setting. So commands translate them in one function, `cli.main.run_command`. TensorFlow is not imported: its
exceptions are recognised by the module that defines them.

Errors, logs, `Argv`, statistics and manifests mask secrets by the same rule. Secrets are the user and password before
the host of a URI, and the values of options and query parameters with a name such as password, token or signature.
The mask `***` shows the reader that a value was removed.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable, Sequence

from towernmt.core.gpus import with_gpu_numbers

_REMEDIES = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n)"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Make it readable for this user"),
    errno.ENOMEM: "Free some memory",
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO), "Check the disk"),
}


def remedy(error: OSError, default_advice: str) -> str:
    """Return the sentence of advice for a file that cannot be read.

    Args:
        error: the error of the operating system.
        default_advice: the advice if the file itself is missing or damaged.
    """
    advice = _REMEDIES.get(error.errno or 0)
    return default_advice if advice is None else f"{advice}, and start the same command again."


ALMOST_EQUAL = 0.8
"""Similarity of a word and its probable misspelling."""


def nearest(word: str, names: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the known word that is most similar to `word`, for a message; None if none is similar.

    Args:
        word: the unknown word; its case is ignored.
        names: accepted words.
        similarity: minimum ratio of equal characters, 0 to 1.
    """
    by_lower_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), by_lower_case, 1, similarity)
    return by_lower_case[close[0]] if close else None


_LISTED = 30
"""Maximum number of known names in a message."""


def suggestion(word: str, names: Iterable[str], plural: str = "") -> str:
    """Return a sentence for a message that suggests a known name, with a space before it; "" if none is similar.

    Args:
        word: unknown name.
        names: accepted names.
        plural: kind of the names, such as "options": they are listed if none is similar; "" for no list.
    """
    candidates = list(names)
    close = nearest(word, candidates)
    if close:
        return f" Did you mean '{close}'?"
    if not plural or not candidates:
        return ""
    return f" The {plural} are: {', '.join(candidates[:_LISTED])}{' and more' if len(candidates) > _LISTED else ''}."


class TowerNMTError(Exception):
    """Base of every error whose message is meant for the user.

    Command-line programs print the message alone (no stack) and exit with `exit_status`.
    """

    exit_status = 1


class SettingsError(TowerNMTError):
    """A setting has an unknown name, a wrong type, or a value that cannot work."""


class DataError(TowerNMTError):
    """A corpus, vocabulary or prepared data set is missing, malformed or inconsistent."""


class FeederError(TowerNMTError):
    """A feeder thread failed; the message names its source."""


class CheckpointError(TowerNMTError):
    """A checkpoint is missing, damaged, or does not fit the model."""


class DivergenceError(TowerNMTError):
    """Training produced a value that is not finite; the message names the first such tensor.

    Attributes:
        signal: the number of a signal to stop that came before training ended by this, or None.
    """

    signal: int | None = None


class TowerRuleError(TowerNMTError):
    """A tower function breaks a rule in a way that would spoil the training; see docs/extend/tower-rules.md."""


class DirectoryInUseError(TowerNMTError):
    """Another process writes into this directory; the message says which.

    Attributes:
        holder: the other process and its activity, a clause.
    """

    holder = ""


class UnfinishedError(TowerNMTError):
    """Work ended early for a reason other than its input. Finished work is kept; the same command continues it."""


class WorkerLostError(TowerNMTError):
    """A process of a distributed training ended or does not respond, so the others stop.

    Starting all processes again resumes the training. The exit status EX_TEMPFAIL of sysexits.h says so.
    """

    exit_status = 75


_TEXT_OF_MEMORY = re.compile(r"out of memory|\bOOM\b|bad_alloc|cannot allocate memory|failed to allocate",
                             re.IGNORECASE)
_DETAIL_LENGTH = 160
_FILES = "too many files are open. Raise the limit of open files (ulimit -n), or end other programs."
_EXHAUSTED = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)


def exhausted_resource(error: BaseException, memory_options: Sequence[str] = (),
                       thread_options: Sequence[str] = ()) -> str | None:
    """Return what has run out and how to need less of it, or None if the error has another reason.

    Args:
        error: any exception.
        memory_options: options or settings of the command that take less memory with a smaller value.
        thread_options: options of the command that start fewer threads or processes with a smaller value.
    """
    if _is_of_memory(error):
        advice = f"Make {' or '.join(memory_options)} smaller, or use" if memory_options else "Use"
        return f"out of memory{_detail(error)}. {advice} a machine with more memory."
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _thread_message(thread_options)
    # A write to a pipe that does not block has the number of a fork that failed, and its own text.
    if isinstance(error, OSError) and error.errno in _EXHAUSTED and error.strerror == os.strerror(error.errno):
        prefix = f"{error.filename}: " if error.filename else ""
        return f"{prefix}{_thread_message(thread_options) if error.errno == errno.EAGAIN else _FILES}"
    return None


def _thread_message(options: Sequence[str]) -> str:
    advice = f"Use fewer {' or '.join(options)}, end" if options else "End"
    return (f"no further thread or process can be started. {advice} other programs, or raise the limit of processes "
            "(ulimit -u).")


def _is_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if isinstance(error, ImportError):      # of a library that is too large for the address space
        return "failed to map segment" in str(error)
    tensorflow = sys.modules.get("tensorflow.python.framework.errors_impl")
    if tensorflow is not None and isinstance(error, tensorflow.ResourceExhaustedError):
        return True
    is_of_library = tensorflow is not None and isinstance(error, tensorflow.OpError) or type(error) is RuntimeError
    return is_of_library and _TEXT_OF_MEMORY.search(str(error)) is not None


def _detail(error: BaseException) -> str:
    """Return the line of a long message that names what did not fit, after a colon; "" if no line does."""
    lines = [line.strip().rstrip(".") for line in str(getattr(error, "message", error)).splitlines() if line.strip()]
    if not lines:
        return ""
    line = next((line for line in lines if _TEXT_OF_MEMORY.search(line)), lines[0])
    return f" ({with_gpu_numbers(line[:_DETAIL_LENGTH])})"


_BLAS_FAILS = re.compile(
    r"No blas( support)? (for|in) stream|failed to create cublas (handle|instance)|Failed to initialize BLAS support|"
    r"Failed to getBlas support|Unable to get Blas support|CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)", re.IGNORECASE)
_CODE_FAILS = re.compile(
    r"CUDA_ERROR_(INVALID_PTX|NO_BINARY_FOR_GPU|UNSUPPORTED_PTX_VERSION)|no kernel image is available|"
    r"Failed to load in-memory CUBIN|Failed to load PTX text", re.IGNORECASE)
_CUDA_FAILS = re.compile(r"CUDA error|CUDA runtime|CUDA_ERROR_|cuda\w+\(\) failed", re.IGNORECASE)


def gpu_failure(error: BaseException) -> str | None:
    """Return what fails on a GPU and how to fix it, or None if the error has another reason.

    Args:
        error: any exception.
    """
    tensorflow = sys.modules.get("tensorflow.python.framework.errors_impl")
    if tensorflow is None or not isinstance(error, tensorflow.OpError):
        return None
    if _BLAS_FAILS.search(str(error)):
        return ("cuBLAS cannot start on the GPU, mostly because other programs use its memory: end them (`nvidia-smi` "
                "lists them), or choose another GPU with --gpu.")
    if _CODE_FAILS.search(str(error)):
        return ("this TensorFlow has no code that runs on the GPU with this driver: install the newest driver or a "
                "newer TensorFlow, or use the CPU. `towernmt devices` shows the versions.")
    if _CUDA_FAILS.search(str(error)):
        line = str(getattr(error, "message", error)).strip().splitlines()[0][:_DETAIL_LENGTH].rstrip(".")
        return (f"CUDA fails on the GPU ({with_gpu_numbers(line)}). Check that `nvidia-smi` shows no error, or use the "
                "CPU: CUDA_VISIBLE_DEVICES=-1.")
    return None


HIDDEN = "***"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*(?:://|%3A%2F%2F)"
_EACH_URI = re.compile(rf"(?i)({_SCHEME})")
_PORT = re.compile(r"[^:@]*(:[0-9]{1,5})?")     # a host, with or without a port
_SECRET_NAME = re.compile(r"(?i)pass|pwd|secret|token|signature|credential|api[_-]?key|access[_-]?key|"
                          r"\A(expires|sig|auth|authorization|x-(amz|goog|ms|oss|cos)-.*)\Z")
_PARAMETER = r"([?&;]|%3F|%26)([\w.~-]+)(=|%3D)"


def mask_uri(uri: str) -> str:
    """Return a URI, or a command-line argument that contains one, with its secrets masked.

    If a password contains characters that should be percent-encoded (spaces, `/`, `?`, `@`), its end is ambiguous, and
    the longest possible password is masked.

    Args:
        uri: URI, well formed or not; a path or other text is returned unchanged.
    """
    return _masked(uri, r"(?s:(?!&[\w.~-]+=).)*")


def mask_text(text: str) -> str:
    """Return text, such as a message, with the secrets of each URI in it masked (see `mask_uri`).

    The value of an option ends at a space or a quotation mark.
    """
    return _masked(text, r"[^&\s'\"`,)]*")


def is_secret_name(name: str) -> bool:
    """Return whether the name of an option or query parameter indicates a secret value."""
    return _SECRET_NAME.search(name) is not None


def _masked(text: str, value: str) -> str:
    text_before, *addresses = _EACH_URI.split(text)
    masked = [text_before]
    for scheme, address in zip(addresses[::2], addresses[1::2], strict=True):
        masked += [scheme, _without_values(_without_user(address), value)]
    return "".join(masked)


def _without_user(address: str) -> str:
    """Return the part of a URI after `scheme://` with user and password masked."""
    if address.startswith(("USER@", "USER:PASSWORD@")):
        return address     # words of a message on how to write a URI
    query = re.search(r"(?i)(\?|%3F)(?=[\w.~-]+(=|%3D))", address)
    end = query.start() if query else len(address)
    decoded = re.sub("(?i)%40", "@", re.sub("(?i)%3A", ":", re.sub("(?i)%2F", "/", address[:end])))
    authority = re.split(r"[/#\s]", decoded, maxsplit=1)[0]
    if "@" not in authority and _PORT.fullmatch(authority):
        return address     # a host: an @ after it belongs to a path or an option
    if "@" not in decoded:
        end = len(address)     # what looks like options may be part of a password
    last = max(address.rfind("@", 0, end), address.rfind("%40", 0, end))
    return HIDDEN + address[last:] if last >= 0 else address


def _without_values(address: str, value: str) -> str:
    def hide(match: re.Match[str]) -> str:
        return match[0] if not is_secret_name(match[2]) else f"{match[1]}{match[2]}{match[3]}{HIDDEN}"

    return re.sub(f"(?i){_PARAMETER}{value}", hide, address)
