"""Who may change the directory of a ``FileSink``: one runner at a time, on disks and where nobody can lock.

On a local disk its owner holds the lock of the directory, which the system takes from a process that dies. HDFS and
Azure have no such lock, but they rename a directory in one step, and refuse a rename from or to a directory that is not
there. So all that publishing keeps out of sight lies in a directory of the owner's:

    _owner.json               names the first owner's directory; created unless it is there
    _owner-<first>-<token>    of the one who owns the sink

Who wants to own the sink renames that directory to a name of its own, and looks at what is published only then. Every
step of a publish or a move is a rename from the owner's directory, or to it, or a deletion in it; nothing is created in
it, because creating a file makes the directories above it. So a runner that paused, and lost the sink meanwhile,
changes nothing any more, however late it wakes up: its next step is refused, because the directory that it goes through
has another name. Then it takes the sink over again and looks again, a few times. Decision 0004.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from state_engine.core.errors import ConfigurationError, LockTimeoutError, SinkError
from state_engine.storage.stores.files import Location, join, open_location
from state_engine.storage.stores.locks import table_lock

KEPT_ASIDE = ("_moving-", "_moved-", "_published", "_joining-", "_withdrawn-")
"""How names begin of what publishing keeps out of sight; see ``file_moves``."""
WRITING = "_writing-"
"""Of what was written or made to be renamed into the owner's directory."""
_MARKER, _OWNER = "_owner.json", "_owner-"
_ATTEMPTS, _PAUSE_S = 8, 0.05

WriteNew = Callable[[str, str], bool]
"""Writes a small file unless there is one, and says whether it did; see ``DeltaKernel.write_new``."""

T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """What lies in the directory of a sink.

    Attributes:
        owner: name of the owner's directory in it; empty on a local disk, and where nobody has owned the sink yet.
        aside: the path, below ``at``, of what publishing keeps out of sight, by name; in versions before there was an
            owner's directory it was in the sink's, and on local disks it is there today.
    """

    at: Location
    owner: str
    names: tuple[str, ...]
    aside: dict[str, str]

    @staticmethod
    def of(at: Location, owner: str = "") -> Look:
        names = [n for n in at.names(missing_ok=True) if n != _MARKER and not n.startswith(_OWNER)]
        owned = at.inside(owner).names() if owner else []
        aside = {name: name for name in names} | {name: f"{owner}/{name}" for name in owned}
        return Look(at, owner, tuple(names), aside)

    def path(self, name: str) -> str:
        """Where something of this name is kept out of sight."""
        return f"{self.owner}/{name}" if self.owner else name

    @property
    def token(self) -> str:
        """In names that no other owner uses; empty where a lock keeps the others away."""
        return f"{self.owner.rsplit('-', 1)[-1]}-" if self.owner else ""


def looking(at: Location, act: Callable[[Look], T]) -> T:
    """What a function makes of a look at a sink that its owner may change meanwhile."""
    for _ in range(_ATTEMPTS):
        owner = _owner_now(at)
        with suppress(FileNotFoundError):  # something was renamed or replaced since its name was read
            result = act(Look.of(at, owner))
            if _owner_now(at) == owner:
                return result
    raise _contended(at.path)


def as_owner(uri: str, act: Callable[[Look], T], write_new: WriteNew | None) -> T:
    """Do something as the owner of a sink; what another one had begun is in the look.

    Args:
        act: is done again, from the beginning, where another runner took the sink over meanwhile.
        write_new: creates the first owner; not needed on a local disk.
    """
    at = open_location(uri)
    if at.local:
        with table_lock(uri):
            return act(Look.of(at))
    for attempt in range(_ATTEMPTS):
        owner = _take_over(uri, at, write_new)
        try:
            result = act(_adopted(at, owner))
        except Exception:
            if _is_there(at, owner):
                raise
        else:
            if _is_there(at, owner):  # nobody else has changed what the function saw
                return result
        time.sleep(random.uniform(0, _PAUSE_S * 2**attempt))
    raise _contended(uri)


def _take_over(uri: str, at: Location, write_new: WriteNew | None) -> str:
    """Make the owner's directory this one's; its name."""
    first = _first_owner(at) or _make_first(uri, at, write_new)
    mine = f"{_OWNER}{first}-{uuid4().hex}"
    for _ in range(_ATTEMPTS):
        current = _owned_by(at, first)
        try:
            _rename(at, current, mine)
            return mine
        except OSError:
            if _is_there(at, mine):  # the answer was lost
                return mine
            if _is_there(at, current):
                raise
    raise _contended(uri)


def _rename(at: Location, source: str, target: str) -> None:
    try:
        at.inside(source).move(join(at.path, target))
    except NotImplementedError as error:
        raise ConfigurationError(
            f"FileSink needs an atomic rename, which {at.path} does not have (an account without a hierarchical "
            f"namespace?): use a DeltaSink there. The storage says: {error}"
        ) from error


def _adopted(at: Location, owner: str) -> Look:
    """A look at a sink; its owner brings what earlier versions kept beside, and removes what others wrote aside."""
    for name in at.names():
        if name.startswith(KEPT_ASIDE):
            at.inside(name).move(join(at.path, owner, name))
        elif name.startswith(WRITING):
            trash = at.inside(owner, name)
            at.inside(name).move(trash.path)
            trash.delete() if trash.is_file() else trash.delete_directory()
    return Look.of(at, owner)


def _make_first(uri: str, at: Location, write_new: WriteNew | None) -> str:
    """The first owner of a sink; one is made, unless somebody else is faster."""
    if write_new is None:
        raise ValueError("the first owner of a sink cannot be created without put-if-absent")
    first = uuid4().hex
    made = at.inside(f"{_OWNER}{first}-0")
    made.make_directory()  # before anybody can know of it, so nobody makes it again
    if write_new(join(uri, _MARKER), json.dumps({"first": first})):
        return first
    with suppress(OSError):
        made.delete_directory()
    return _first_owner(at) or _make_first(uri, at, write_new)


def _first_owner(at: Location) -> str:
    """What the names of all owners' directories begin with; empty where the sink has had none."""
    if not at.inside(_MARKER).is_file():
        return ""
    first: str = at.inside(_MARKER).read_json(first=str)["first"]
    return first


def _owner_now(at: Location) -> str:
    """Name of the owner's directory; empty on a local disk, and where there has been none."""
    first = "" if at.local else _first_owner(at)
    return _owned_by(at, first) if first else ""


def _owned_by(at: Location, first: str) -> str:
    for _ in range(_ATTEMPTS):  # one that is renamed while names are listed may be missing among them
        owners = [name for name in at.names() if name.startswith(f"{_OWNER}{first}-")]
        if owners:
            return owners[0]
    raise SinkError(
        f"{at.path}/{_OWNER}{first}-… is gone, and with it the notes about this sink. Put it back; or, if the "
        "whole directory was emptied, empty it of hidden files, too"
    )


def _is_there(at: Location, owner: str) -> bool:
    return at.inside(owner).is_directory()


def _contended(place: str) -> LockTimeoutError:
    return LockTimeoutError(
        f"{place}: other runners took this sink over, {_ATTEMPTS} times. Nothing is lost: they publish "
        "your commits, or your next run does"
    )
