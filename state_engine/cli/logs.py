"""Where the engine's log goes when a command runs: to standard error, as lines for people or as JSON for machines.

The engine itself only writes to Python's loggers below ``state_engine``, with the facts (job, checkpoint, …) as fields
beside the text; whoever runs it elsewhere sets these up as is usual there.
"""

from __future__ import annotations

import logging

from rich.console import Console
from rich.logging import RichHandler

from state_engine.machine.settings import LoggingSettings

LOGGER = "state_engine"


def set_up_logs(settings: LoggingSettings) -> None:
    """Show the engine's log from a level on; called again, it replaces what it set up before."""
    handler: logging.Handler
    if settings.format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(_json_lines())
    else:
        handler = RichHandler(console=Console(stderr=True), show_path=False)
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(settings.level.upper())


def _json_lines() -> logging.Formatter:
    import structlog  # here: it takes a tenth of a second

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ],
    )
