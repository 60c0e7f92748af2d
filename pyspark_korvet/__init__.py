"""The format `korvet` for Spark, which imports every package whose name begins with `pyspark_`, for its DefaultSource.

Sessions of any kind find the format so: classic ones, Spark Connect and Spark Declarative Pipelines. The import is
cheap, and needs nothing of korvet[lake]: an error here would be one of all sources in Python.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from korvet.extras import lake_command


class DefaultSource(DataSource):
    """Topics, as `korvet.spark.source.KorvetDataSource`."""

    def __new__(cls, options: dict[str, str]) -> DataSource:  # type: ignore[misc]  # Spark asks for no instance of it
        """Return the data source of korvet.spark; raises ImportError without what korvet[lake] brings."""
        try:
            from korvet.spark.source import KorvetDataSource  # noqa: PLC0415 - see above
        except ModuleNotFoundError as error:
            raise ImportError(f"{error.name} is not installed: run `{lake_command()}`") from error
        return KorvetDataSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "korvet"
