"""`format("penstock")`: what Spark asks of a Python data source, and nothing else.

Planning happens on the driver, reading and writing on tasks; neither loads the server, and reading
does not load what writing needs: Spark starts processes for every query. There is no
filter pushdown: Spark would keep the pushed filter when a DataFrame is used again with another one,
and count wrongly. Columns are pruned by the schema that the reader is given.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.model.clock import SystemClock
from penstock.model.errors import InvalidSetting
from penstock.pipeline.connecting import intake_of, origin_of
from penstock.pipeline.settling import settle
from penstock.pipeline.source.options import (
    BATCH,
    STREAM,
    SinkOptions,
    SourceOptions,
    check_known,
    sink_options,
    source_options,
)
from penstock.pipeline.source.origin import Origin, Wanted
from penstock.pipeline.source.plan import batch_ranges
from penstock.pipeline.source.stream import Piece, StreamReader, pieces_of, read_piece

FORMAT: Final = "penstock"
SCHEMA: Final = StructType(
    [
        StructField("topic", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("offset", LongType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("name", StringType(), False),
        StructField("headers", MapType(StringType(), StringType()), False),
        StructField("payload", BinaryType(), False),
        StructField("publisher", StringType(), False),
    ]
)
_PAIRS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", StringType())])
)
# Columns that only a schema that names them brings.
EXTRA: Final = StructType(
    [
        StructField("qos", IntegerType(), False),
        StructField("retain", BooleanType(), False),
        StructField("expires_at", TimestampType()),
        StructField("kind", StringType(), False),  # of its value: bytes, text or json
        StructField("header_pairs", _PAIRS, False),
    ]
)
_KAFKA_COLUMNS: Final = {"key": "name", "value": "payload"}  # what people may be used to


class PenstockSource(DataSource):
    """Topics of a broker as a table."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)  # Spark's own kind of dictionary does not outlive a pickle
        check_known(self.options)
        settle()

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options, BATCH, SystemClock().now_us())
        wanted = wanted_of(options, schema)
        settle()
        return BatchReader(origin_of(options.connection), options, wanted)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.pipeline.sink.sink import BatchWriter

        options = self._sink_options(schema, overwrite)
        return BatchWriter(intake_of(options), options.topic, options.key, options.number)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from penstock.pipeline.sink.sink import StreamWriter

        options = self._sink_options(schema, overwrite)
        if options.key is not None:
            raise InvalidSetting(
                "option 'idempotencyKey' cannot be used with a stream: a stream writes exactly "
                "once anyway"
            )
        return StreamWriter(intake_of(options, is_stream=True), options.topic)

    def _sink_options(self, schema: StructType, overwrite: bool) -> SinkOptions:
        from penstock.pipeline.sink.sink import check_columns

        options = sink_options(self.options)
        if overwrite:
            raise InvalidSetting(
                "a topic only grows: use mode('append'), or output mode 'append' or 'update'"
            )
        check_columns(schema, options.topic)
        return options

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = source_options(self.options, STREAM, SystemClock().now_us())
        return StreamReader(origin_of(options.connection), options, wanted_of(options, schema))


class BatchReader(DataSourceReader):
    """One batch query: planned when it is first used, and the same from then on."""

    def __init__(self, origin: Origin, options: SourceOptions, wanted: Wanted) -> None:
        self._origin = origin
        self._options = options
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        ranges = batch_ranges(self._origin, self._options)
        # Spark makes a partition without a value of an empty list.
        return pieces_of(self._origin, ranges, self._options) or [Piece(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_piece(self._origin, partition, self._wanted)


def wanted_of(options: SourceOptions, schema: StructType) -> Wanted:
    """The columns of a schema that a user may have given, and which records."""
    from pyspark.sql.pandas.types import to_arrow_schema

    check_schema(schema)
    columns = to_arrow_schema(schema, timezone="UTC")
    return Wanted(columns, options.names, options.where, options.fails_on_loss)


def check_schema(schema: StructType) -> None:
    """A given schema selects columns; InvalidSetting names an unknown column."""
    known = {field.name: field.dataType for field in [*SCHEMA, *EXTRA]}
    for field in schema:
        if field.name not in known:
            near = [_KAFKA_COLUMNS[field.name]] if field.name in _KAFKA_COLUMNS else []
            near += difflib.get_close_matches(field.name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"columns are {', '.join(known)}"
            raise InvalidSetting(f"column {field.name!r} is unknown: {hint}")
        if field.dataType != known[field.name]:
            raise InvalidSetting(
                f"column {field.name!r} is {known[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading"
            )
