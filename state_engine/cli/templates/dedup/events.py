"""Made-up orders, some delivered again: an hour in each file, the first three of the hours before now."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta


def events(number: int) -> Iterator[dict[str, object]]:
    """The events of one file: id, time and amount in cents."""
    chance = random.Random(number)
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=number - 4)
    first = 80 * number
    for place in range(100):
        # one in five was sent before
        again = place >= 80
        id_ = chance.randrange(max(0, first - 40), first + 80) if again else first + place
        at = start + timedelta(seconds=30 * place)
        yield {"id": f"order-{id_}", "at": at.isoformat(), "cents": 100 + id_}
