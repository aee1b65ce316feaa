"""Logging of decisions by topic, for whoever sets `DLC_LOG`.

Modules log under `dlc.<topic>`, at a level that Python does not show by itself. Warnings are what a
user should know of a model without asking; nothing that is repeated for each kernel is one.
"""

from __future__ import annotations

import functools
import logging

from dlc.core.env import LOG, log_topics

TOPICS = {
    "rewrite": "why rewrite rules refuse",
    "schedule": "why schedule rules refuse, and which kernels stay on the host",
    "tune": "which records are used, and decisions of the graph",
}
"""What can be logged."""


def enable_topics(topics: frozenset[str] | None = None) -> None:
    """Write topics, by default those that `DLC_LOG` names, to standard error; once for each."""
    for topic in log_topics() if topics is None else topics:
        if topic not in TOPICS:
            _warn(topic)
            continue
        logger = logging.getLogger(f"dlc.{topic}")
        if any(isinstance(h, _TopicHandler) for h in logger.handlers):
            continue
        handler = _TopicHandler()
        handler.setFormatter(logging.Formatter(f"{topic}: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


@functools.cache  # once for each topic
def _warn(topic: str) -> None:
    known = ", ".join(TOPICS)
    message = "%s: there is no topic '%s'; the topics are %s"
    logging.getLogger("dlc").warning(message, LOG.name, topic, known)


class _TopicHandler(logging.StreamHandler):  # type: ignore[type-arg]  # of standard error
    """The handler that this module adds."""
