"""Every error that Statelake raises, under one root; each class is named for what the caller does next.

StatelakeError
├── ConfigurationError        the job, a call or a setting is written wrongly: change it
│   ├── InvalidNameError      a job's, source's or sink's name is not ``[a-z][a-z0-9_]*``, or two names collide
│   ├── MissingPackageError   a package of an extra is not installed: install the extra that the message names
│   ├── InvalidKeyError       a key that cannot be one: null, NaN, a list, a map, too large
│   ├── ValueTypeError        a value does not have the type that was declared for it
│   └── SettingsError         the settings file or a variable is wrong
├── SetupError                something outside of the job is missing: the message says what to do
│   ├── JavaNotFoundError     no Java of version 17 or later
│   ├── JarsError             Delta's jars are not there, not right, or could not be fetched
│   └── SessionError          the Spark session does not fit the engine
├── StateAccessError          a state was used where it cannot be: without a key, under a second type
├── TimerChainError           timers set each other without end: set the next one later than the one that fires
├── StateMigrationError       the stored state does not fit the job: restore the old code or migrate
├── RescaleError              state that cannot be divided: keep the parallelism, or make the state managed
├── SubtaskLostError          a process that ran a subtask died: give it memory, or smaller batches, and run again
├── MemoryLimitError          there was no memory left: take fewer rows at once, more subtasks, or give it more
├── CodeVersionError          a worker does not have the code that this process has: make it importable there
├── SparkLostError            the Java process of Spark died: start this process again, and run
├── UserFunctionError         a user function or an input row failed: job, operator, key, position, cause
├── RetractionError           an update or delete of a row that was never added: read the input from its start
├── DeadLetterLimitError      a micro-batch refused more rows than the job allows: look at them, repair, run again
├── GateError                 rows break a rule that lets nothing bad out: look at them, repair, run again
├── SourceError               the input changed or vanished under us: see ``on_change`` of the source
│   └── BadFileError          a file cannot be read: repair it, remove it, or have it set aside (``on_bad_file``)
├── RootError                 the root is another job's, or of a newer format
│   └── UnsafeStoreError      a store loses commits of two runners: set its log store, or have one writer
├── MissingFilesError         files that a checkpoint needs are gone or differ: restore from a savepoint
│   └── DamagedFileError      a file is not what was written: put it back, or restore what does not need it
├── InternalError             the engine, or what it works with, failed as nobody foresaw: report it with the traceback
├── InvariantError            a commit would have broken what must hold, and was not made: report it with the message
├── PartitionOrderError       a partition was run out of order: run the earlier one first
├── SinkError                 the sink cannot take these rows: repair it, or restore to the parent
│   ├── SinkIdentityError     the sink is not the table that the checkpoint was staged for
│   ├── SinkBehindError       the sink shows less than was published to it: publish that again, or put it back
│   ├── TableChangedError     somebody else changed a published table: rebuild it, or accept what it is
│   └── DamagedOutputError    files that the sink shows are empty or cut: restore to the parent, and run again
├── StorageError              a disk is full, a path is denied, too many files are open: repair it and run again
├── LockTimeoutError          another process holds the table's lock: wait, or stop that process
└── CommitError
    ├── CommitFailedError     nothing was committed: run again
    │   └── StaleParentError  another runner committed first: run again, from its checkpoint
    └── CommitUnknownError    the commit may or may not have happened: look before you run again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CATALOGUE = "docs/reference/errors.md"
"""The page with the causes of each error, what was kept, and the ways out."""


class StatelakeError(Exception):
    """Root of all errors raised by Statelake itself. A note below the message names its entry in the catalogue.

    Example:
        >>> SourceError("the topic is gone").__notes__
        ['SourceError: its causes and ways out are in docs/reference/errors.md#sourceerror']
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        kind = _named_class(self)
        self.add_note(f"{kind}: its causes and ways out are in {CATALOGUE}#{kind.lower()}")


def to_wire(error: BaseException) -> dict[str, Any]:
    """An error as plain data for another process, which makes it an error again with ``from_wire``.

    Attributes that are no plain data stay behind.
    """
    own = isinstance(error, StatelakeError)
    plain = {k: v for k, v in vars(error).items() if isinstance(v, str | int | list | tuple | None)}
    return {
        "class": _named_class(error) if own else type(error).__name__,
        "message": str(error),
        "attributes": plain if own else {},
    }


def from_wire(wire: Mapping[str, Any], *, prefix: str = "") -> StatelakeError:
    """The error that ``to_wire`` described; of a class that is not the engine's, its name begins the message.

    Args:
        prefix: begins the message, but for that of a ``UserFunctionError``, which names its job itself.

    Example:
        >>> from_wire(to_wire(SinkError("it is full")), prefix="job 'a': ")
        SinkError("job 'a': it is full")
        >>> from_wire(to_wire(ZeroDivisionError("division by zero")))
        StatelakeError('ZeroDivisionError: division by zero')
    """
    kind = globals().get(wire["class"])
    if not (isinstance(kind, type) and issubclass(kind, StatelakeError)):
        return StatelakeError(f"{prefix}{wire['class']}: {wire['message']}")
    message = wire["message"] if kind is UserFunctionError else f"{prefix}{wire['message']}"
    error = kind.__new__(kind, message)  # without __init__, which makes the message of other arguments
    error.args = (message,)
    vars(error).update(wire["attributes"])
    return error


def _named_class(error: BaseException) -> str:
    """Name of the nearest class of an error that stands in this module."""
    return next(one.__name__ for one in type(error).__mro__ if one.__module__ == __name__)


class ConfigurationError(StatelakeError, ValueError):
    """The job, or a call on the engine, is written wrongly; nothing was run."""


class InvalidNameError(ConfigurationError):
    """A name does not match ``[a-z][a-z0-9_]*``; of an operator, state or side output: is not text, or too long."""


class MissingPackageError(ConfigurationError, ImportError):
    """A package that an extra brings (``statelake[dagster]``, …) is needed, and not installed."""


class InvalidKeyError(ConfigurationError):
    """A key is null, NaN, out of range, or of a type that cannot be a key."""


class ValueTypeError(ConfigurationError, TypeError):
    """A value does not have the declared type, or does not fit into it."""


class SettingsError(ConfigurationError):
    """The settings file or a variable is wrong; the message names the key and the nearest valid one."""


class SetupError(StatelakeError):
    """Something outside of the job is missing: Java, Delta's jars, a fitting Spark session. Says what to do."""


class JavaNotFoundError(SetupError):
    """No Java of version 17 or later; the message lists every place that was looked at."""


class JarsError(SetupError):
    """Delta's jars are not there, not right, or could not be fetched."""


class SessionError(SetupError):
    """The Spark session does not fit the engine; the message says how to get one that does."""


class StateAccessError(StatelakeError):
    """A state handle was used where it has no meaning."""


class TimerChainError(StatelakeError):
    """Timers of a key set each other without end; nothing of the micro-batch was committed."""


class SubtaskLostError(StatelakeError):
    """A process that ran a subtask died; nothing was committed."""


class MemoryLimitError(StatelakeError):
    """The driver, a subtask or Spark's Java asked for memory and was given none; nothing was committed."""


class CodeVersionError(StatelakeError):
    """Workers have other code than the driver, or none, and it cannot be sent to them; nothing was committed."""


class SparkLostError(StatelakeError):
    """The Java process of Spark died; what was committed is kept."""


class StateMigrationError(StatelakeError):
    """The stored state and the job's declarations do not fit together."""


class RescaleError(StatelakeError):
    """An operator holds state that cannot be spread over another number of subtasks."""


_SET_ASIDE = (
    "Fix the function or the row, or set on_error='dead_letter' on the job to keep such rows aside and go on."
)
_NO_ROW = "Fix the function and run again: this failure is not one of a single row, which could be set aside."


class UserFunctionError(StatelakeError):
    """A user function raised, or an input row was refused; the batch was not committed.

    Attributes:
        job, operator: names.
        key: the current key as text, or None outside of keyed streams.
        position: where the element came from (source, file, row), as text.
        cause: class and message of what was raised.
        traceback_text: the traceback inside the subtask, as text.

    Args:
        can_be_set_aside: whether there is a row that ``on_error='dead_letter'``, which is not set, would keep aside.
    """

    def __init__(
        self,
        *,
        job: str,
        operator: str,
        cause: str,
        key: str | None = None,
        position: str | None = None,
        traceback_text: str = "",
        can_be_set_aside: bool = True,
    ) -> None:
        self.job, self.operator, self.key = job, operator, key
        self.position, self.cause, self.traceback_text = position, cause, traceback_text
        where = f"job '{job}', operator '{operator}'"
        if key is not None:
            where += f", key {key}"
        if position is not None:
            where += f", at {position}"
        super().__init__(
            f"{where}: {cause}. Nothing of this micro-batch was committed. "
            + (_SET_ASIDE if can_be_set_aside else _NO_ROW)
            + (f"\n{traceback_text}" if traceback_text else "")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """As a process pool needs it, which would otherwise call the class with the message alone and break."""
        return Exception.__new__, (type(self), *self.args), self.__dict__


class RetractionError(StatelakeError):
    """An update or a delete takes back what was never added; the state stays as it was.

    Raised inside of a function: a run reports it as the cause of a ``UserFunctionError``, or sets the row aside.
    """


class DeadLetterLimitError(StatelakeError):
    """A micro-batch refused more rows than ``max_dead_letters`` allows; it was not committed."""


class GateError(StatelakeError):
    """Rows, or a micro-batch as a whole, break a rule that they must meet; no reader sees them.

    Attributes:
        rule: its name.
        staged: files with the outputs of a micro-batch that a gate stopped, until a vacuum deletes them.
        branch: where a micro-batch that a gate holds is committed; no reader sees it there.
    """

    def __init__(self, message: str, *, rule: str = "", staged: Sequence[str] = (), branch: str = "") -> None:
        super().__init__(message)
        self.rule, self.staged, self.branch = rule, list(staged), branch


class SourceError(StatelakeError):
    """The input of a source changed, vanished or cannot be read as declared."""


class BadFileError(SourceError):
    """A file of a source cannot be read.

    Attributes:
        uri: of the file.
        letter: what its dead letter says, where that is not the message.
    """

    def __init__(self, message: str, uri: str = "", *, letter: str = "") -> None:
        super().__init__(message)
        self.uri, self.letter = uri, letter or message


class RootError(StatelakeError):
    """The state root cannot be used by this job or this version."""


class UnsafeStoreError(RootError):
    """A root, sink or savepoint is on a store that loses concurrent commits, or whose guarantees are unknown."""


class MissingFilesError(StatelakeError):
    """Files that a checkpoint lists are missing, or differ from what it recorded."""


class DamagedFileError(MissingFilesError):
    """A file, or a row of ``checkpoints``, is not what was written: its checksum differs, or it cannot be parsed."""


class PartitionOrderError(StatelakeError):
    """A time partition was asked for out of order."""


class SinkError(StatelakeError):
    """A sink cannot take the rows that a checkpoint holds for it."""


class DamagedOutputError(SinkError):
    """Files that a sink shows are not what was published.

    Attributes:
        checkpoint_id: that published them.
    """

    def __init__(self, message: str, *, checkpoint_id: int = 0) -> None:
        super().__init__(message)
        self.checkpoint_id = checkpoint_id


class SinkIdentityError(SinkError):
    """A sink is not the table or directory that the checkpoint's rows were staged for."""


class SinkBehindError(SinkError):
    """A sink does not show outputs that were published to it: it was put back from a backup, or emptied."""


class TableChangedError(SinkError):
    """Somebody else changed rows of a table that a state is published to; nothing was written to it."""


class StorageError(StatelakeError, OSError):
    """The operating system or a store refused to read or write a path; nothing that was committed is lost.

    Attributes:
        path: that was touched; empty where it is in the message only.
        placed: whether the message names the job and what was kept.
    """

    def __init__(self, message: str, *, path: str = "", placed: bool = False) -> None:
        super().__init__(message)
        self.path, self.placed = path, placed

    def placed_in(self, job: str, kept: str) -> StorageError:
        """The same error with the job and what was kept."""
        if self.placed:
            return self
        text = str(self).removeprefix(f"job '{job}': ").rstrip(".")
        return StorageError(f"job '{job}': {text}. {kept}", path=self.path, placed=True)


class LockTimeoutError(StatelakeError):
    """The lock of a table was not free in time; or others took over a directory of files, where nobody can lock."""


class InternalError(StatelakeError):
    """An exception that the engine did not foresee, its cause; what was committed is kept."""


class InvariantError(StatelakeError):
    """A commit would have broken what must hold, and was not made.

    Attributes:
        broken: names of the invariants.
    """

    def __init__(self, message: str, broken: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.broken = tuple(broken)


class CommitError(StatelakeError):
    """A commit did not certainly succeed."""


class CommitFailedError(CommitError):
    """The commit certainly did not happen; running again is safe."""


class StaleParentError(CommitFailedError):
    """Another runner committed this checkpoint id first; nothing of this attempt is visible."""


class CommitUnknownError(CommitError):
    """It is not known whether the commit happened; look at the log before running again."""
