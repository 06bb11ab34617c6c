"""A ``SparkApplication`` for the Kubernetes operator of Spark, which runs a job's main program with its own executors.

The text is made here, and applied by nobody: it is tested as text, not on a Kubernetes. The guide ``clusters.md`` says
what the image has to have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyspark

from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_name
from state_engine.spark.session import needed_options

_TEXT = """\
apiVersion: sparkoperator.k8s.io/v1beta2
kind: SparkApplication
metadata:
  name: {name}
  namespace: {namespace}
spec:
  type: Python
  pythonVersion: "3"
  mode: cluster
  image: {image}
  mainApplicationFile: {main}
  sparkVersion: "{version}"
  # One run of a job is one application: a schedule, or Dagster, starts the next.
  restartPolicy:
    type: Never
  sparkConf:
{options}
  driver:
    cores: {cores}
    memory: {memory}
    serviceAccount: {service_account}
{environment}
  executor:
    instances: {executors}
    cores: {cores}
    memory: {memory}
{environment}
"""


def spark_application(
    job: str,
    *,
    image: str,
    main: str,
    executors: int = 2,
    cores: int = 1,
    memory: str = "2g",
    namespace: str = "default",
    service_account: str = "spark",
    python: str = "/usr/bin/python3",
    secret: str | None = None,
    options: Mapping[str, str] | None = None,
) -> str:
    """The YAML text of an application that runs a job once.

    Args:
        job: name; that of the application is made of it.
        image: with Spark, statelake and what else the job imports, see the guide.
        main: URI of the program, such as ``local:///opt/jobs/main.py``; it makes its session by
            ``SparkSession.builder.getOrCreate()`` and hands it to ``StateEngine``.
        executors, cores, memory: how many executors; cores and memory of each, and of the driver.
        namespace, service_account: of Kubernetes.
        python: of the image, for driver and executors.
        secret: a secret of Kubernetes with the keys of a store, named as the variables that Amazon's tools read.
        options: further options of Spark; they win.

    Raises:
        InvalidNameError: the job's name is none.
        ConfigurationError: there would be no executor.

    Example:
        >>> text = spark_application("sums", image="registry/jobs:1", main="local:///opt/jobs/sums.py")
        >>> text.splitlines()[1]
        'kind: SparkApplication'
    """
    check_name(job, what="job")
    if executors < 1 or cores < 1:
        raise ConfigurationError(f"executors and cores must be at least 1, not {executors} and {cores}")
    texts = {**needed_options(), "spark.pyspark.python": python, "spark.pyspark.driver.python": python}
    texts |= options or {}
    return _TEXT.format(
        name=_quoted(job.replace("_", "-")),
        namespace=_quoted(namespace),
        image=_quoted(image),
        main=_quoted(main),
        version=pyspark.__version__,
        options="\n".join(f"    {_quoted(key)}: {_quoted(value)}" for key, value in texts.items()),
        cores=cores,
        memory=_quoted(memory),
        service_account=_quoted(service_account),
        environment=_environment(python, secret),
        executors=executors,
    )


def _environment(python: str, secret: str | None) -> str:
    lines = ["    env:", "      - name: PYSPARK_PYTHON", f"        value: {_quoted(python)}"]
    if secret is not None:
        lines += ["    envFrom:", "      - secretRef:", f"          name: {_quoted(secret)}"]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Text as YAML takes it, whatever is in it: JSON's texts are YAML's."""
    return json.dumps(text)
