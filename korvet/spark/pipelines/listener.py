"""What Spark says of a pipeline's queries while they run."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from korvet.spark.pipelines.status import PipelineReporter


class ProgressListener(StreamingQueryListener):
    """Reports the end of each batch, and that a query has found nothing to read."""

    def __init__(self, reporter: PipelineReporter, failed_attempts: Counter[str]) -> None:
        """Forget the `failed_attempts` of a query that has ended a batch."""
        self._reporter = reporter
        self._failed_attempts = failed_attempts
        self._names: dict[str, str] = {}
        """Of the queries by their ids: an event of an idle one has no name."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Note the name of a query."""
        self._names[str(event.id)] = event.name

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Report a batch, or that the query runs and found nothing yet."""
        progress = event.progress
        self._failed_attempts.pop(progress.name, None)
        self._reporter.progress(progress.name, json.loads(progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Report that there was nothing to read."""
        if (name := self._names.get(str(event.id))) is not None:
            self._reporter.idle(name, event.timestamp)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Do nothing: who runs the query sees its end."""
