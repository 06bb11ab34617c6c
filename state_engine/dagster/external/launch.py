"""``PipesLaunch``: how the micro-batches of a job are launched as a process of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from state_engine.core.argument_checks import checked_class
from state_engine.core.errors import ConfigurationError


@checked_class
@dataclass(frozen=True, kw_only=True)
class PipesLaunch:
    """A process of their own for the micro-batches of a job, which a Pipes client launches; such as ``spark-submit``.

    What it runs calls ``state_engine.pipes.run_for_dagster``, or is ``statelake run <job>``. Command and arguments are
    shown nowhere in Dagster.

    Attributes:
        command: what the client launches; None for clients that take no command.
        client: launches it; a Pipes client, or the name of a resource that is one. By default a
            ``PipesSubprocessClient``: a process on the machine of the run.
        arguments: further ones of the client's ``run``, such as the image of a ``PipesK8sClient``.

    Raises:
        ConfigurationError: there is no command, and the client needs one; or the command is one text.

    Example:
        >>> launch = PipesLaunch(command=["spark-submit", "--master", "yarn", "run_clicks.py"])
        >>> launch.resource_keys
        frozenset()
        >>> sorted(PipesLaunch(command=["run_clicks.py"], client="k8s").resource_keys)
        ['k8s']
    """

    command: Sequence[str] | None = field(default=None, repr=False)
    client: dg.PipesClient | str | None = field(default=None, repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.command, str) or self.command == [] or (self.client is None and not self.command):
            raise ConfigurationError(
                "PipesLaunch needs the command as a list of words, such as command=['spark-submit', 'run_clicks.py']"
            )

    @property
    def resource_keys(self) -> frozenset[str]:
        """Names of the resources that launching needs."""
        return frozenset([self.client]) if isinstance(self.client, str) else frozenset()

    def client_of(self, context: dg.AssetExecutionContext) -> dg.PipesClient:
        """The client.

        Raises:
            ConfigurationError: the resource is not a Pipes client.
        """
        client = self.client or dg.PipesSubprocessClient()
        if isinstance(client, str):
            resource: Any = getattr(context.resources, client)
            if not isinstance(resource, dg.PipesClient):
                raise ConfigurationError(f"PipesLaunch: the resource '{client}' is not a Pipes client")
            client = resource
        return client

    def run_arguments(self) -> dict[str, Any]:
        """Of the client's ``run``, besides context and extras."""
        return {**({"command": list(self.command)} if self.command else {}), **self.arguments}
