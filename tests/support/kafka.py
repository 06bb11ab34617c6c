"""A Kafka broker for tests: one process on this machine that is broker and controller, and can be killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

import pyspark
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from state_engine.machine.jars import JarSet, jars_of
from state_engine.machine.java import find_java_home
from tests.support.ports import free_port
from tests.support.waiting import until

BROKER_VERSION = "4.1.0"
_PINS = Path(__file__).with_name("kafka_jars.txt")
BROKER_JARS = JarSet(
    name="the jars of Kafka's broker for tests",
    directory=f"kafka-broker-{BROKER_VERSION}",
    pinned=dict(line.split() for line in _PINS.read_text().splitlines() if not line.startswith("#")),
    # Spark has the rest.
    excludes=(
        "com.fasterxml.jackson.core:*",
        "com.fasterxml.jackson.dataformat:jackson-dataformat-yaml",
        "com.github.luben*:*",
        "com.google.code.findbugs:*",
        "com.google.errorprone*:*",
        "commons-beanutils*:*",
        "commons-collections*:*",
        "commons-logging*:*",
        "org.apache.logging*:*",
        "org.checkerframework*:*",
        "org.lz4:*",
        "org.scala-lang*:*",
        "org.slf4j:*",
        "org.xerial*:*",
        "org.yaml*:*",
    ),
    setup="make test-kafka",
)
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_BROKER = "broker"
"""The user that the broker is to itself."""
_CLUSTER = "c3RhdGVsYWtlLXRlc3RzLQ"  # 16 bytes as base64, as Kafka writes the id of a cluster
_JAVA = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.max.timeout.ms": "900000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


@dataclass(frozen=True)
class Security:
    """Clients reach a broker by TLS, with a user's password (SASL/PLAIN) at one port, with a certificate at another.

    Attributes:
        authority: file with the certificate that clients and broker trust.
        own: file with key and certificate of the broker.
        client: file with key and certificate of a client; beside it is a key store with ``password``, ``.p12``.
        users: passwords by name.
        port: for clients with a certificate.
        password: of the client's key store.
    """

    authority: Path
    own: Path
    client: Path
    users: Mapping[str, str]
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: uuid4().hex)

    @staticmethod
    def made(directory: Path, **users: str) -> Security:
        """With a new authority, and certificates for this machine."""
        authority, own, client = (directory / f"{name}.pem" for name in ("authority", "broker", "client"))
        certificate, key = _certificate("an authority of the tests")
        authority.write_bytes(certificate.public_bytes(Encoding.PEM))
        for file in (own, client):
            issued, private = _certificate(file.stem, issuer=certificate, issuer_key=key)
            private_bytes = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            file.write_bytes(private_bytes + issued.public_bytes(Encoding.PEM))
        made = Security(authority, own, client, {_BROKER: uuid4().hex} | users)
        encrypted = BestAvailableEncryption(made.password.encode())
        store = pkcs12.serialize_key_and_certificates(b"client", private, issued, None, encrypted)
        client.with_suffix(".p12").write_bytes(store)
        return made

    @property
    def servers(self) -> str:
        """As clients with a certificate name the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """What is no secret, of clients with a password."""
        return {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **self._trusting}

    def certified(self, kind: str = "PEM") -> dict[str, str]:
        """What is no secret, of clients with a certificate in a key store of a kind, ``PEM`` or ``PKCS12``."""
        file = self.client if kind == "PEM" else self.client.with_suffix(".p12")
        own = {"ssl.keystore.type": kind, "ssl.keystore.location": str(file)}
        return {"security.protocol": "SSL", **self._trusting, **own}

    @property
    def _trusting(self) -> dict[str, str]:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}

    def login(self, user: str) -> str:
        """The secret property ``sasl.jaas.config`` of a client."""
        return f'{_PLAIN} required username="{user}" password="{self.users[user]}";'

    def settings(self) -> dict[str, str]:
        """Of the broker, which is a client of itself."""
        known = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
        return {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
            "listener.name.ssl.ssl.client.auth": "required",
            "inter.broker.listener.name": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{self.login(_BROKER)[:-1]} {known};",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.own),
            **self._trusting,
        }


def _certificate(
    name: str, *, issuer: x509.Certificate | None = None, issuer_key: ec.EllipticCurvePrivateKey | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate for a day, and its key: of an authority, or by one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(here, critical=False)
        .sign(issuer_key or key, hashes.SHA256())
    )
    return made, key


@dataclass
class Broker:
    """A broker on this machine only."""

    directory: Path
    security: Security | None = None
    port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    starts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """As clients name it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, with the data that is there, and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        settings = self.directory / "server.properties"
        if not settings.exists():
            settings.write_text("".join(f"{name}={value}\n" for name, value in self._settings().items()))
            format_ = self._command("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(settings))
            made = subprocess.run(format_, cwd=self.directory, capture_output=True, text=True, check=False)
            assert made.returncode == 0, made.stdout + made.stderr
        with (self.directory / "log").open("ab") as log:
            command = self._command("kafka.Kafka", str(settings))
            self.process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.starts += 1
        until(self._answers, "Kafka's broker", within_s=120)

    def stop(self) -> None:
        """Stop in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it, and start it again with what it has on the disk."""
        self.kill()
        self.start()

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=60)
            self.process = None

    def _answers(self) -> bool:
        """Whether it listens for clients, which it does when it has all that it had before."""
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "log").read_text()[-3000:]
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _settings(self) -> dict[str, str]:
        protocol, secured = (
            ("PLAINTEXT", {}) if self.security is None else ("SASL_SSL", self.security.settings())
        )
        clients = f"{protocol}://{self.servers}"
        if self.security is not None:
            clients += f",SSL://{self.security.servers}"
        controllers = f"CONTROLLER://127.0.0.1:{self.controller_port}"
        return (
            _SETTINGS
            | secured
            | {
                "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
                "listeners": f"{clients},{controllers}",
                "advertised.listeners": clients,
                "log.dirs": str(self.directory / "data"),
            }
        )

    def _command(self, main: str, *arguments: str) -> list[str]:
        java = find_java_home(environ=os.environ)
        spark = Path(pyspark.__file__).parent / "jars" / "*"
        classpath = os.pathsep.join([*map(str, jars_of(BROKER_JARS, java=java)), str(spark)])
        return [str(java.path / "bin" / "java"), *_JAVA, "-cp", classpath, main, *arguments]


@contextmanager
def kafka_broker(directory: Path, security: Security | None = None) -> Iterator[Broker]:
    """A running broker."""
    broker = Broker(directory, security)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()
