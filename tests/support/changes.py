"""Random histories of a table as a stream of changes, and what a job should make of them, as a plain loop."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from state_engine import KeyedProcessFunction, Row, RowKind, ValueStateDescriptor

ACCOUNT = "id bigint, owner string, amount bigint"
TOTAL = "owner string, total bigint"
_GIVEN = (RowKind.INSERT, RowKind.UPDATE_AFTER)

Change = tuple[RowKind, tuple[Any, ...]]


def history(seed: int, length: int) -> list[Change]:
    """Changes of accounts: some inserted, some updated (their owner, too), some deleted; an update is two rows."""
    random, accounts, changes = Random(seed), dict[int, tuple[Any, ...]](), list[Change]()
    while len(changes) < length:
        known = sorted(accounts)
        action = random.choice(["insert", "update", "update", "delete"])
        if action == "insert" or not known:
            row = (len(changes), random.choice("abc"), random.randrange(-5, 10))
            changes.append((RowKind.INSERT, row))
            accounts[row[0]] = row
            continue
        old = accounts.pop(random.choice(known))
        if action == "delete":
            changes.append((RowKind.DELETE, old))
            continue
        owner = random.choice("abc") if random.random() < 0.3 else old[1]
        new = (old[0], owner, random.randrange(-5, 10))
        changes += [(RowKind.UPDATE_BEFORE, old), (RowKind.UPDATE_AFTER, new)]
        accounts[new[0]] = new
    return changes


def as_rows(changes: Iterable[Change], *names: str) -> list[Row]:
    """Changes as Rows of their kind."""
    return [Row.of_kind(kind, **dict(zip(names, values, strict=True))) for kind, values in changes]


def kinds_and_values(elements: Iterable[Any]) -> list[Change]:
    """What a sink, a harness or ``collect`` gave: Rows of their kind, or pairs of a kind and an element."""
    return [
        (one.get_row_kind(), tuple(one)) if isinstance(one, Row) else (one[0], one[1]) for one in elements
    ]


class Totals(KeyedProcessFunction):
    """The sum of the amounts of an owner, as a stream of changes; an owner without accounts has none."""

    accepts_changes = True
    emits_changes = True

    def open(self, runtime_context: Any) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", "total bigint, accounts bigint"))

    def process_element(self, account: Any, ctx: KeyedProcessFunction.Context) -> Any:
        sign = 1 if ctx.row_kind() in _GIVEN else -1
        total, accounts = before = self._sum.value() or (0, 0)
        after = (total + sign * account.amount, accounts + sign)
        owner = ctx.get_current_key()
        yield from _changed(owner, before, after)
        self._sum.update(after if after[1] else None)


def _changed(owner: str, before: tuple[int, int], after: tuple[int, int]) -> Iterable[Row]:
    if not before[1]:
        yield Row.of_kind(RowKind.INSERT, owner=owner, total=after[0])
    elif not after[1]:
        yield Row.of_kind(RowKind.DELETE, owner=owner, total=before[0])
    else:
        yield Row.of_kind(RowKind.UPDATE_BEFORE, owner=owner, total=before[0])
        yield Row.of_kind(RowKind.UPDATE_AFTER, owner=owner, total=after[0])


def totals_of(changes: Iterable[Change]) -> list[Change]:
    """What ``Totals`` puts out, by a plain loop."""
    sums, made = dict[str, tuple[int, int]](), list[Change]()
    for kind, (_, owner, amount) in changes:
        sign = 1 if kind in _GIVEN else -1
        before = sums.get(owner, (0, 0))
        sums[owner] = after = (before[0] + sign * amount, before[1] + sign)
        made += kinds_and_values(_changed(owner, before, after))
        if not after[1]:
            del sums[owner]
    return made


def applied(changes: Iterable[Change]) -> list[tuple[Any, ...]]:
    """The table that changes lead to; each removal must find its row."""
    table: list[tuple[Any, ...]] = []
    for kind, values in changes:
        if kind in _GIVEN:
            table.append(values)
        else:
            table.remove(values)
    return sorted(table)
