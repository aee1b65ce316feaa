"""Logging of decisions by topic, for whoever sets `DLC_LOG`.

Modules log under `dlc.<topic>`, at a level that Python does not show by itself: `rewrite` holds the
refusals of rewrite rules, `schedule` those of schedule rules. Warnings are what a user should know
of a model without asking; nothing that is repeated for each kernel is one.
"""

from __future__ import annotations

import logging

from dlc.core.env import log_topics


def enable_topics() -> None:
    """Write the topics that `DLC_LOG` names to the standard error stream; once for each."""
    for topic in log_topics():
        logger = logging.getLogger(f"dlc.{topic}")
        if any(isinstance(h, _TopicHandler) for h in logger.handlers):
            continue
        handler = _TopicHandler()
        handler.setFormatter(logging.Formatter(f"{topic}: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


class _TopicHandler(logging.StreamHandler):  # type: ignore[type-arg]  # of standard error
    """The handler that this module adds."""
