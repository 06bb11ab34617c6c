"""The server of the tests keeps to the condition of a put-if-absent, which moto alone does not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from tests.support.moto import conditions_in_turn

CLIENTS = 4


def test_requests_with_a_condition_are_answered_one_after_another() -> None:
    together, inside, most = Barrier(CLIENTS), list[int](), list[int]()

    def answered(environ: dict[str, Any], _: Any) -> Iterable[bytes]:
        inside.append(environ["client"])
        most.append(len(inside))
        time.sleep(0.02)
        inside.remove(environ["client"])
        yield b"done"

    application = conditions_in_turn(answered)

    def ask(client: int) -> list[bytes]:
        together.wait()
        return list(application({"HTTP_IF_NONE_MATCH": "*", "client": client}, None))

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(ask, range(CLIENTS))) == [[b"done"]] * CLIENTS
    assert most == [1] * CLIENTS
