"""What a table that sinks append to and one that shows a state have in common: opened, looked at, and written to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from state_engine.core.errors import CommitFailedError, CommitUnknownError, SinkError, SinkIdentityError
from state_engine.databases.connection import connected, one_line
from state_engine.databases.ledger import Ledger
from state_engine.databases.target import SqlTarget


@dataclass(frozen=True)
class DatabaseTable:
    """One table.

    Attributes:
        who: the sink or published table, for messages.
        app: application that writes to it.
        open_connection: to its database; None where each call opens one.
        ways_out: what to do where the database refuses rows, after "let the table take them and run again, or".
    """

    target: SqlTarget
    who: str
    app: str = ""
    open_connection: sa.Connection | None = None
    ways_out: ClassVar[str]

    @contextmanager
    def connected(self) -> Iterator[Self]:
        """The table, over a connection to its database; raises as ``connected`` does."""
        with connected(self.target, self.who) as connection:
            yield replace(self, open_connection=connection)

    @property
    def connection(self) -> sa.Connection:
        assert self.open_connection is not None
        return self.open_connection

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.connection, self.target.schema, self.target.table, self.app)

    @contextmanager
    def writing(self, checkpoint_id: int, is_done: Callable[[Self], bool]) -> Iterator[None]:
        """A transaction that writes a checkpoint's rows, committed in the end.

        Args:
            is_done: whether the ledger holds what was committed; asked over another connection, where the answer to
                the commit is lost.

        Raises:
            CommitFailedError: something was in the way: nothing was written.
            CommitUnknownError: the connection broke while committing, and the ledger cannot be read.
        """
        try:
            yield
        except DBAPIError as error:
            raise self.refused(checkpoint_id, error) from error
        try:
            self.connection.commit()
        except DBAPIError as error:
            if not self._look_again(checkpoint_id, is_done, error):
                raise self.refused(checkpoint_id, error) from error

    def _look_again(self, checkpoint_id: int, is_done: Callable[[Self], bool], error: DBAPIError) -> bool:
        try:
            with self.connected() as again:
                return is_done(again)
        except SinkIdentityError:
            raise
        except SinkError as unseen:
            raise CommitUnknownError(
                f"{self.who}: {self.target.shown}: the commit of checkpoint {checkpoint_id} broke off "
                f"({one_line(error)}), and the ledger cannot be read. Run again: it is looked up first"
            ) from unseen

    def refused(self, checkpoint_id: int, error: DBAPIError, why: str = "") -> SinkError | CommitFailedError:
        """The error for rows that were not written: something was in the way, or they do not fit.

        Args:
            why: more than the database says; empty for that.
        """
        if isinstance(error, OperationalError | InterfaceError):
            return CommitFailedError(
                f"{self.who}: checkpoint {checkpoint_id} was not written to {self.target.shown} "
                f"({one_line(error)}); run again"
            )
        return SinkError(
            f"{self.who}: {self.target.shown} does not take the rows of checkpoint {checkpoint_id}: "
            f"{why or one_line(error)}. Nothing was published and nothing is lost: let the table take them and run "
            f"again, or {self.ways_out}"
        )

    def is_there(self) -> bool:
        return sa.inspect(self.connection).has_table(self.target.table, self.target.schema)

    def has_rows(self) -> bool:
        table = sa.table(self.target.table, schema=self.target.schema)
        query = sa.select(sa.literal(1)).select_from(table).limit(1)
        return self.connection.execute(query).first() is not None

    @property
    def dialect(self) -> str:
        return self.connection.dialect.name
