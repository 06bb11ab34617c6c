"""Made-up sales."""

import random
from collections.abc import Iterator

SHOPS = ["Bergen", "Lyon", "Osaka", "Porto"]


def events(number: int) -> Iterator[dict[str, object]]:
    """The events of one file, the same ones each time: shop and amount in cents."""
    chance = random.Random(number)
    for _ in range(100):
        yield {"shop": chance.choice(SHOPS), "cents": chance.randrange(100, 10_000)}
