"""``KafkaCluster``: which brokers, and how clients reach them; what a checkpoint may record of it.

Passwords and keys are in environment variables, whose names are recorded. A property that would hold one is refused: it
would end up in code, logs and checkpoints.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from state_engine.core.choices import check_mapping
from state_engine.core.errors import ConfigurationError, SetupError
from state_engine.spark.kafka.properties import check_name, check_properties

Format = Literal["json", "avro", "raw"]
"""What values of records are, to sources and sinks."""
_SERVER = re.compile(r"[^\s,:/@]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_SECRET = re.compile(r"password|jaas|secret|keystore\.key|credential", re.IGNORECASE)
_JAAS = "sasl.jaas.config"
_LOGIN = re.compile(
    r"""\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)  # the login module
    (?:\s+[\w.$-]+\s*=\s*(?:"(?:\\.|[^"\\])*"|[^\s;"=]+))*     # its options
    \s*;\s*""",
    re.VERBOSE | re.IGNORECASE,
)
"""Kafka's messages about other values of ``sasl.jaas.config`` quote parts of them."""
_BY_PASSWORD = re.compile(r"\s*(?:[\w$]+\.)*(?:Plain|Scram)LoginModule\s")
"""Login modules whose client waits in vain for what its login leaves out."""
_LOGIN_OPTION = re.compile(r"""([\w.$-]+)\s*=\s*("(?:\\.|[^"\\])*"|[^\s;"=]+)""")
_OURS = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "group.id",
        "group.instance.id",
        "interceptor.classes",
        "isolation.level",
        "key.deserializer",
        "key.serializer",
        "transaction.timeout.ms",
        "transactional.id",
        "value.deserializer",
        "value.serializer",
    }
)
"""Properties that exactly once rests on."""
_PATIENCE = {"default.api.timeout.ms": "60000", "request.timeout.ms": "30000"}


@dataclass(frozen=True)
class KafkaCluster:
    """The brokers of a cluster.

    Attributes:
        options: properties of Kafka's clients, such as ``security.protocol``.
        options_env: properties whose values are secret: the environment variable that holds each.
    """

    servers: str
    options: Mapping[str, str] = field(default_factory=dict)
    options_env: Mapping[str, str] = field(default_factory=dict)
    of: str = "KafkaSource"

    def __post_init__(self) -> None:
        servers = self.servers.split(",") if isinstance(self.servers, str) else []
        if not servers or not all(_SERVER.fullmatch(one.strip()) for one in servers):
            raise ConfigurationError(
                f"{self.of}: servers must be host:port, several with commas between them, not {self.servers!r}"
            )
        object.__setattr__(self, "servers", ",".join(one.strip() for one in servers))
        check_mapping(self.options, what=self.of)
        check_mapping(self.options_env, what=self.of)
        for name in self.options:
            if _SECRET.search(name):
                raise ConfigurationError(
                    f"{self.of}: the option {name} holds a secret: leave it out, and name the environment variable "
                    f"that holds it: options_env={{{name!r}: 'MY_VARIABLE'}}"
                )
        check_properties(self.options, of=self.of)
        for name in self.options_env:
            check_name(name, of=self.of)
        if ours := sorted(_OURS & {*self.options, *self.options_env}):
            raise ConfigurationError(f"{self.of}: the options {ours} are set by Statelake: leave them out")

    def properties(self) -> dict[str, str]:
        secrets = {}
        for name, variable in self.options_env.items():
            # a secret must not pass through jobs and checkpoints, so the one place that uses it asks for it
            value = os.environ.get(variable)
            if value is None:
                raise SetupError(
                    f"{self.of}: the environment variable {variable}, which holds {name}, is not set. Set it and run "
                    "again; nothing is lost"
                )
            if name == _JAAS and (problem := _login_problem(value)):
                raise SetupError(
                    f"{self.of}: the environment variable {variable} must hold {name} as a whole{problem}, such as "
                    'org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="…";'
                )
            secrets[name] = value
        given = {name: str(value) for name, value in self.options.items()}
        return {**_PATIENCE, **given, **secrets, "bootstrap.servers": self.servers}

    def to_json(self) -> dict[str, Any]:
        return {
            "servers": self.servers,
            "options": dict(self.options),
            "options_env": dict(self.options_env),
            "of": self.of,
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> KafkaCluster:
        """What ``to_json`` made.

        Example:
            >>> KafkaCluster.from_json(KafkaCluster("broker:9092").to_json()).servers
            'broker:9092'
        """
        return KafkaCluster(**stored)


def _login_problem(value: str) -> str:
    """What keeps a text from being a login, for a message that shows nothing of it; empty where it is one."""
    if not _LOGIN.fullmatch(value):
        return " and as Kafka writes it"
    if not _BY_PASSWORD.match(value):
        return ""
    given = {name for name, content in _LOGIN_OPTION.findall(value) if content != '""'}
    missing = [name for name in ("username", "password") if name not in given]
    return f", with a {' and a '.join(missing)}" if missing else ""
