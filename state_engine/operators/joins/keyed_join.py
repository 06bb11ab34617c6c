"""``KeyedJoin``: what the joins of two keyed streams have in common, and how joins are spelled."""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeVar

from state_engine.core.choices import check_choice
from state_engine.core.functions.co_functions import KeyedCoProcessFunction
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.types.type_information import TypeInformation
from state_engine.operators.joins.joined_rows import JoinResults
from state_engine.operators.key_values import has_null_part

How = Literal["inner", "left", "right", "full", "semi", "anti"]
"""Which rows come out beside pairs, or in their place."""
ONLY_LEFT: tuple[How, ...] = ("semi", "anti")
"""Joins whose results are left rows."""
_SPELLINGS: dict[str, How] = {
    "inner": "inner",
    **dict.fromkeys(("left", "leftouter", "left_outer"), "left"),
    **dict.fromkeys(("right", "rightouter", "right_outer"), "right"),
    **dict.fromkeys(("full", "outer", "fullouter", "full_outer"), "full"),
    **dict.fromkeys(("semi", "leftsemi", "left_semi"), "semi"),
    **dict.fromkeys(("anti", "leftanti", "left_anti"), "anti"),
}


def how_of(given: str) -> How:
    """How to join, in our spelling or in one of Spark's. Raises ConfigurationError."""
    check_choice(given, tuple(_SPELLINGS), what="how of a join")
    return _SPELLINGS[given]


class Settings(Protocol):
    """What a join does."""

    @property
    def shape(self) -> str:
        """What the state means, as text."""

    @property
    def holds_back_ms(self) -> int | None:
        """By how much outputs may be behind the watermark; None where none ever is."""


S = TypeVar("S", bound=Settings)


class KeyedJoin(KeyedCoProcessFunction, Generic[S]):
    """Base of the joins: rows of one key meet, unless a part of the key is null.

    Args:
        record_key: whether keys are records, or of several columns: then their parts may be null.
    """

    def __init__(
        self,
        left_type: TypeInformation,
        right_type: TypeInformation,
        results: JoinResults,
        settings: S,
        *,
        record_key: bool = False,
    ) -> None:
        self._settings, self._results, self._record_key = settings, results, record_key
        self.shape, self.holds_back_ms = settings.shape, settings.holds_back_ms
        self._keep(left_type, right_type)

    def _keep(self, left_type: TypeInformation, right_type: TypeInformation) -> None:
        raise NotImplementedError

    def open(self, runtime_context: RuntimeContext) -> None:
        self._results.open(runtime_context)

    def close(self) -> None:
        self._results.close()

    def _may_match(self, ctx: KeyedContext) -> bool:
        """Whether the key of the element equals that of other rows."""
        return not has_null_part(ctx.get_current_key(), record=self._record_key)
