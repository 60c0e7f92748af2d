"""What Spark says of a pipeline's queries while they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from korvet.spark.pipelines.status import PipelineReporter


class ProgressListener(StreamingQueryListener):
    """Reports the end of each batch, and that a query has found nothing to read."""

    def __init__(self, report: Callable[[str, Mapping[str, Any]], None], reporter: PipelineReporter) -> None:
        self._report = report
        self._reporter = reporter
        self._names: dict[str, str] = {}
        """Of the queries by their ids: an event of an idle one has no name."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Note the name of a query."""
        self._names[str(event.id)] = event.name

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Report a batch, or that the query runs and found nothing yet."""
        progress = event.progress
        self._report(progress.name, json.loads(progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Report that there was nothing to read."""
        if (name := self._names.get(str(event.id))) is not None:
            self._reporter.idle(name, event.timestamp)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401, N802 - Spark's name
        """Do nothing: who runs the query sees its end."""
