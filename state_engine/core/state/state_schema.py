"""``StateSchema``: how a checkpoint records one state that a function declared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StateSchema:
    """Declaration of one state as of a checkpoint.

    Attributes:
        ttl: its time to live as JSON, see ``StateTtlConfig.to_json``; empty where nothing expires.
        stored_as: the name that its rows and its column have, where that is another one: a name that is no identifier
            gets one, a renamed state keeps what it was stored as, and a state that comes back gets a new one. None for
            ``name``; see ``column_name``.
    """

    name: str
    kind: str
    type: str
    ttl: str = ""
    stored_as: str | None = None

    @property
    def column_name(self) -> str:
        """Name of the state in its rows; its column is ``v_<column_name>``."""
        return self.stored_as or self.name
