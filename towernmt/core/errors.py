"""Errors that a user can mend: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations


class TowerNMTError(Exception):
    """Base of every error whose message is meant for the user.

    Command-line programs print the message alone (no stack) and exit with status 1.
    """


class SettingsError(TowerNMTError):
    """A setting has an unknown name, a wrong type, or a value that cannot work."""


class DataError(TowerNMTError):
    """A corpus, vocabulary or prepared data set is missing, malformed or inconsistent."""


class FeederError(TowerNMTError):
    """A feeder thread could not go on; the message names its source."""


class CheckpointError(TowerNMTError):
    """A checkpoint is missing, damaged, or does not fit the model."""


class DivergenceError(TowerNMTError):
    """Training produced a value that is not finite; the message names the first such tensor."""


class TowerRuleError(TowerNMTError):
    """A tower function breaks a rule in a way that would spoil the training; see docs/extend/tower-rules.md."""


class DirectoryInUseError(TowerNMTError):
    """Another process writes into this directory; the message says which."""
