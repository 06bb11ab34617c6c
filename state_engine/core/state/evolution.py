"""Evolution: which changes of a state's declared type are supported, and how what is stored is read after one.

Supported are: a field is added to a record (what was written before has the default of the record's class, else null),
dropped, or renamed by an alias, a number is widened (whole numbers up to 64 bits, float to double, decimals of the same
scale), and any of these inside of records, lists and the values of maps. Keys of maps may only be widened. Time to live
is no part of the type: it may be switched on and off. Anything else is refused. Which class a record has, and the order
of its fields, may change freely: fields are known by name.

Nothing stored is written again. A renamed field stays in the column of its old name, and a field that comes back after
it was dropped gets a column of its own, so that its old values do not come back with it: the recorded type says where
(``type_text``). Which state is meant, where states are renamed, :mod:`.stored_states` decides. Mirrors Flink's
``TypeSerializerSchemaCompatibility`` and the evolution of its POJO serializer.
Decision 0015.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from state_engine.core.errors import StatelakeError, StateMigrationError
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.column_names import unused
from state_engine.core.types.every_type import DictType, ListType, StructType
from state_engine.core.types.json_values import to_json
from state_engine.core.types.scalar_types import DecimalType, FloatType, IntegerType, TimestampType
from state_engine.core.types.stored_form import conform
from state_engine.core.types.type_information import TypeInformation
from state_engine.core.types.type_text import type_from_text, type_to_text

_WAY_OUT = (
    "A field may be added, dropped or renamed by an alias, and a number widened; for any other change restore the old "
    "declaration, or give the new state another name (drop_states(...) gives the old one up), or restore a checkpoint "
    "from before"
)


@dataclass(frozen=True)
class Evolution:
    """A supported change, or none.

    Attributes:
        recorded, declared: the types before and after, as text.
        type: the declared type, with the names that its fields have in storage.
        changes: what changed, as texts; empty where nothing did.
    """

    recorded: str
    declared: str
    type: TypeInformation
    changes: tuple[str, ...] = ()

    @property
    def storage(self) -> pa.DataType:
        """The stored form of the declared type: what it reads and the function's state writes."""
        return self.type.storage

    def read(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """A stored column of the recorded type, or of one before it, as the declared type's ``from_arrow`` takes it."""
        return conform(column, self.storage)


class MapEntryType(StructType):
    """One entry of a map state: its key, by which it is found, and its value."""

    def __init__(self, key: TypeInformation, value: TypeInformation) -> None:
        super().__init__(("key", "value"), (key, value))


def column_type_of(descriptor: StateDescriptor) -> TypeInformation:
    """The declared type of a state's whole column; its storage is the descriptor's ``column_type``."""
    if isinstance(descriptor, MapStateDescriptor):
        return MapEntryType(descriptor.key_type, descriptor.value_type)
    if descriptor.shape == "list":
        stamped = StructType(("value", "updated_at"), (descriptor.value_type, TimestampType("UTC")))
        return ListType(stamped)
    return descriptor.value_type


def value_type_of(column: TypeInformation, shape: str) -> TypeInformation:
    """The type of a value, list element or map value, from that of the state's whole column."""
    if shape == "value":
        return column
    entry = column.element if isinstance(column, ListType) else column
    assert isinstance(entry, StructType)
    return entry.types[0 if shape == "list" else 1]


def recorded_schema(descriptor: StateDescriptor) -> StateSchema:
    """How a state is recorded in checkpoints: its primitive, its declared type, its time to live."""
    ttl, name, stored_as = (
        descriptor.ttl.to_json() if descriptor.ttl else "",
        descriptor.name,
        descriptor.stored_as,
    )
    text = type_to_text(column_type_of(descriptor))
    return StateSchema(name, descriptor.kind, text, ttl, None if stored_as == name else stored_as)


def evolve_state(
    recorded: StateSchema, descriptor: StateDescriptor, *, operator: str, earlier: Iterable[StateSchema] = ()
) -> Evolution:
    """How a state that a checkpoint recorded is read by what a function declares now."""
    what = f"operator '{operator}': state '{descriptor.name}'"
    if recorded.kind != descriptor.kind:
        raise StateMigrationError(
            f"{what} is stored as {recorded.kind} of {recorded.type}, the function declares {descriptor.kind} of "
            f"{type_to_text(column_type_of(descriptor))}. {_WAY_OUT}"
        )
    return evolve(
        recorded.type, column_type_of(descriptor), what=what, earlier=[schema.type for schema in earlier]
    )


def evolve(
    recorded: str, declared: TypeInformation, *, what: str = "the state", earlier: Iterable[str] = ()
) -> Evolution:
    """How values of a recorded type are read as values of a declared one.

    Args:
        recorded: what ``type_to_text`` said of the type before.
        earlier: older recorded texts: names of their fields are not used for other fields.
    """
    text = type_to_text(declared)
    if recorded == text:
        return Evolution(recorded, text, declared)
    changes: list[str] = []
    try:
        bound = _bound(
            type_from_text(recorded),
            declared,
            "",
            changes,
            [type_from_text(t) for t in dict.fromkeys(earlier)],
        )
    except StateMigrationError as error:
        raise StateMigrationError(
            f"{what} is stored as {recorded}, the function declares {text}: {error}. {_WAY_OUT}"
        ) from None
    return Evolution(recorded, type_to_text(bound), bound, tuple(changes))


_Types = list[TypeInformation]
_MISSING = type(dataclasses.MISSING)
"""Classes that travel by value have a copy of it."""


def _bound(
    old: TypeInformation, new: TypeInformation, at: str, changes: list[str], earlier: _Types
) -> TypeInformation:
    """The new type with the names that its fields have in storage; notes what changed below ``at``.

    Args:
        earlier: what was stored in the same place before; types of another kind are none of its.
    """
    if isinstance(new, MapEntryType) and isinstance(old, StructType):
        _compare_key(old.types[0], new.types[0], _inside(at, "key"), changes)
        values = [t.types[1] for t in earlier if isinstance(t, StructType)]
        value = _bound(old.types[1], new.types[1], _inside(at, "value"), changes, values)
        return MapEntryType(new.types[0], value)
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _bound_fields(old, new, at, changes, [t for t in earlier if isinstance(t, StructType)])
    if isinstance(old, ListType) and isinstance(new, ListType):
        elements = [t.element for t in earlier if isinstance(t, ListType)]
        return ListType(_bound(old.element, new.element, _inside(at, "element"), changes, elements))
    if isinstance(old, DictType) and isinstance(new, DictType):
        _compare_key(old.key, new.key, _inside(at, "key"), changes)
        values = [t.value for t in earlier if isinstance(t, DictType)]
        return DictType(new.key, _bound(old.value, new.value, _inside(at, "value"), changes, values))
    _compare_scalar(old, new, at, changes)
    return new


def _bound_fields(
    old: StructType, new: StructType, at: str, changes: list[str], earlier: list[StructType]
) -> StructType:
    column_of = dict(zip(old.names, old.stored, strict=True))
    type_of = dict(zip(old.names, old.types, strict=True))
    was = {name: former for name in new.names if (former := _former(name, old, new, at)) is not None}
    if not was:
        raise StateMigrationError(
            f"{_named(at)}no field is left of {sorted(old.names)}; a renamed field needs an alias"
        )
    # tables do not distinguish upper and lower case
    taken = {column.lower() for record in (old, *earlier) for column in record.stored}
    types: dict[str, TypeInformation] = {}
    columns: dict[str, str] = {}
    fills: dict[str, str] = {}
    for name in old.names:  # in the order that they had, for the message
        for kept in (n for n in new.names if was.get(n) == name):
            column = columns[kept] = column_of[name]
            inner = [t.types[t.stored.index(column)] for t in earlier if column in t.stored]
            if kept != name:
                changes.append(f"'{_inside(at, name)}' is renamed to '{kept}'")
            declared = new.types[new.names.index(kept)]
            types[kept] = _bound(type_of[name], declared, _inside(at, kept), changes, inner)
            if name in old.fills:
                fills[kept] = old.fills[name]
    changes += [f"'{_inside(at, name)}' is dropped" for name in old.names if name not in was.values()]
    for name, kind in zip(new.names, new.types, strict=True):
        if name not in was:
            fill = _default_of(name, kind, new, at)
            if fill is not None:
                fills[name] = fill
            changes.append(
                f"'{_inside(at, name)}' is added" + (f", as {fill} in what is stored" if fill else "")
            )
            column = new.stored[new.names.index(name)]
            types[name], columns[name] = kind, unused(column, taken, lambda name, n: f"{name}__{n}")
            taken.add(columns[name].lower())
    stored = [columns[name] for name in new.names]
    kinds = [types[name] for name in new.names]
    return StructType(new.names, kinds, new.made_by, stored=stored, aliases=new.aliases, fills=fills)


def _default_of(name: str, kind: TypeInformation, record: StructType, at: str) -> str | None:
    """The default that the class of a record gives an added field, as it is recorded; None where it gives none."""
    default = getattr(record.made_by, "_field_defaults", {}).get(name)
    if dataclasses.is_dataclass(record.made_by):
        field = next(one for one in dataclasses.fields(record.made_by) if one.name == name)
        if callable(field.default_factory):
            default = field.default_factory()
        elif not isinstance(field.default, _MISSING):
            default = field.default
    if default is None:
        return None
    try:
        return to_json(kind, [kind.normalise(default)])[0]
    except StatelakeError as error:
        raise StateMigrationError(
            f"{_named(at)}the default {default!r} of the added field '{name}' cannot be recorded, so that nobody knows "
            f"what it is in what is stored ({error}): give it another default, or None"
        ) from None


def _former(name: str, old: StructType, new: StructType, at: str) -> str | None:
    """What a field was called before: its name, or its alias; None where it was not there."""
    alias = new.aliases.get(name)
    if name not in old.names:
        return alias if alias in old.names else None
    if alias in old.names and alias not in new.names:
        raise StateMigrationError(
            f"{_named(at)}both '{name}' and its alias '{alias}' are stored, and two fields cannot become one: leave "
            f"the alias out to drop '{alias}'"
        )
    return name


def _compare_key(old: TypeInformation, new: TypeInformation, at: str, changes: list[str]) -> None:
    """Keys must stay as different, and in the same order, as they are: only numbers in them may be widened."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        if old.names != new.names:
            raise StateMigrationError(f"{_named(at)}the fields of a key cannot change")
        for name, was, now in zip(old.names, old.types, new.types, strict=True):
            _compare_key(was, now, _inside(at, name), changes)
    else:
        _compare_scalar(old, new, at, changes)


def _compare_scalar(old: TypeInformation, new: TypeInformation, at: str, changes: list[str]) -> None:
    """Types without parts must be the same, or a number widened; notes which. Raises StateMigrationError."""
    was, now = type_to_text(old), type_to_text(new)
    if was == now:
        return
    if not _widened(old, new):
        raise StateMigrationError(f"{_named(at)}{was} cannot become {now}")
    changes.append(f"'{at or 'value'}' is widened from {was} to {now}")


def _widened(old: TypeInformation, new: TypeInformation) -> bool:
    """Whether every value of the old type is one of the new type, in the same stored form."""
    if type(old) is not type(new):
        return False
    if type(old) in (IntegerType, FloatType):
        return bool(old.arrow.bit_width < new.arrow.bit_width)
    if type(old) is DecimalType:
        return bool(old.arrow.scale == new.arrow.scale and old.arrow.precision < new.arrow.precision)
    return False


def _inside(at: str, name: str) -> str:
    """A place inside of another one, as messages call it."""
    return f"{at}.{name}" if at else name


def _named(at: str) -> str:
    """The beginning of a message about a place."""
    return f"in '{at}': " if at else ""
