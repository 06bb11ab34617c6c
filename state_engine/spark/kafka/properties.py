"""Properties of Kafka's clients: a name that is nearly one of them, or a value that none takes, is refused when given.

Kafka passes over names that it does not know, and plug-ins have names of their own. So only names that look like a slip
are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError

_NUMBERS = """
auto.commit.interval.ms batch.size buffer.memory connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes heartbeat.interval.ms linger.ms max.block.ms
max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records max.request.size
metadata.max.age.ms metadata.max.idle.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms send.buffer.bytes session.timeout.ms
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
"""
_CHOICES = {
    "security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "compression.type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
}
_TEXTS = """
allow.auto.create.topics check.crcs client.id client.rack partitioner.class sasl.client.callback.handler.class
sasl.jaas.config sasl.kerberos.service.name sasl.login.callback.handler.class sasl.login.class sasl.mechanism
sasl.oauthbearer.token.endpoint.url security.providers ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location
ssl.truststore.password ssl.truststore.type
"""
_WHOLE_NUMBERS = frozenset(_NUMBERS.split())
_KNOWN = frozenset([*_WHOLE_NUMBERS, *_CHOICES, *_TEXTS.split()])
_ALIKE = 0.88
"""From this likeness on a name that is not known is a slip."""


def check_properties(given: Mapping[str, Any], *, of: str) -> None:
    """Refuse a slip in a name, and a value that Kafka's clients do not take.

    Args:
        of: class that is given them, for the message.

    Raises:
        ConfigurationError: names the property.
    """
    for name, value in given.items():
        check_name(name, of=of)
        if name in _CHOICES:
            check_choice(value, _CHOICES[name], what=f"{of}: the option {name!r}")
        if name in _WHOLE_NUMBERS and not _is_whole(value):
            raise ConfigurationError(f"{of}: the option {name!r} must be a whole number, not {value!r}")


def check_name(name: str, *, of: str) -> None:
    """Refuse a slip in a name of a property; raises ConfigurationError."""
    close = [] if name in _KNOWN else get_close_matches(name, _KNOWN, 1, _ALIKE)
    if close:
        raise ConfigurationError(f"{of}: Kafka has no property {name!r}; did you mean {close[0]!r}?")


def _is_whole(value: Any) -> bool:
    try:
        return str(int(str(value))) == str(value)
    except ValueError:
        return False
