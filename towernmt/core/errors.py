"""Errors that a user can mend: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


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
    """A feeder thread could not go on; the message names its source."""


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
    """Another process writes into this directory; the message says which."""


class UnfinishedError(TowerNMTError):
    """Work ended early, through no fault of what it read; what is done is kept, and the same command goes on."""


class WorkerLostError(TowerNMTError):
    """A process of several that train together is gone or does not answer; the others cannot go on without it.

    Nothing is to be mended: when all are started again, they go on. Hence a status of its own, sysexits' EX_TEMPFAIL.
    """

    exit_status = 75
