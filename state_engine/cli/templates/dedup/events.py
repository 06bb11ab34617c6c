"""Made-up orders from a sender that delivers some of them again."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

START = datetime(2026, 1, 5, 8)


def events(number: int) -> Iterator[dict[str, object]]:
    """The events of one file, the same ones each time: id, time and amount in cents."""
    chance = random.Random(number)
    first = 80 * number
    for place in range(100):
        # one in five was sent before
        again = place >= 80
        id_ = chance.randrange(max(0, first - 40), first + 80) if again else first + place
        at = START + timedelta(hours=number, seconds=30 * place)
        yield {"id": f"order-{id_}", "at": f"{at.isoformat()}Z", "cents": 100 + id_}
