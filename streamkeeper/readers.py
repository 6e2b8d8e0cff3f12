"""Readers for the functions of a pipeline file: of what a flow's Kafka sink wrote, whose repeats are told by
headers, and of values in a schema registry's wire format.

That format is Confluent's: a 0, the id of a schema in four bytes, of Protobuf the path of a message, and the
encoded value.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamkeeper.errors import SourceError
from streamkeeper.web import ask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FLOW, GENERATION, BATCH, ROW = (f"streamkeeper.{name}" for name in ("flow", "generation", "batch", "row"))
"""Headers of each row: the flow's full name, its generation, the batch, and the row's name in that batch. The
last is the hash of its content, and which of equal rows it is.
"""
_ID = "__streamkeeper_id"


def drop_repeats(rows: DataFrame, within: str = "1 day") -> DataFrame:
    """Return the rows of a Kafka source without those that a flow's sink wrote a second time.

    A batch comes twice if the driver that wrote it died before its end was noted. Rows of other producers
    pass. Rows that a recovery reads and writes again have another generation: they pass, too, and its plan
    counts them.

    :param rows: of Spark's Kafka source with the option ``includeHeaders``, as a stream or at rest.
    :param within: of a stream, for how long a row is remembered, such as ``1 hour``: longer than a flow may
        stand still in the middle of a batch. A row that comes so much later than others is dropped.
    :raises ValueError: the rows have no headers.
    """
    if "headers" not in rows.columns:
        raise ValueError(
            f"The rows have the columns {', '.join(rows.columns)}, and no headers. Read them with the option"
            " includeHeaders."
        )
    named = rows.withColumn(_ID, _identity())
    if not rows.isStreaming:
        return named.dropDuplicates([_ID]).drop(_ID)
    return named.withWatermark("timestamp", within).dropDuplicatesWithinWatermark([_ID]).drop(_ID)


def _identity() -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - only a reader needs Spark

    def header_value(name: str) -> Column:
        return F.filter("headers", lambda header: header["key"] == name).getItem(0)["value"].cast("string")

    place = F.concat_ws("/", "topic", F.col("partition").cast("string"), F.col("offset").cast("string"))
    ours = F.concat_ws("/", *(header_value(name) for name in (FLOW, GENERATION, BATCH, ROW)))
    return F.when(header_value(ROW).isNull(), place).otherwise(ours)


FAIL, NULL = "fail", "null"
"""What becomes of a value with an unknown schema id: its batch fails, or it is read as null."""
_ANSWER = 10.0
"""Seconds that a registry may take to answer."""
_LONGEST = 16 * 2**20
"""Bytes that its answer may have."""
_HEADER = 5
"""Bytes before the payload: 0, and the schema's id as four bytes, the greatest first."""


def registry_schemas(address: str, subject: str, headers: Mapping[str, str] | None = None) -> dict[int, str]:
    """Return all schemas of a registry's subject by their ids, the newest last, for
    :func:`from_registry_avro`.

    For a view's function, which a driver calls once when it starts. Versions that were deleted are among
    them, for records with their ids may still be there; the newest is one that was not.

    :param address: of the registry's REST API, as Confluent's clients take it, such as
        ``http://registry:8081``.
    :param headers: of each request, such as ``Authorization``. With headers, no redirect is followed.
    :raises SourceError: the registry does not answer, or does not know the subject: a driver tries again.
    :raises ValueError: a schema refers to others.
    """
    place = f"{address.rstrip('/')}/subjects/{urllib.parse.quote(subject, safe='')}/versions"
    every, present = (_registry_answer(f"{place}{query}", headers) for query in ("?deleted=true", ""))
    schemas: dict[int, str] = {}
    for version in [*(one for one in every if one not in present), *present]:
        schema = _registry_answer(f"{place}/{version}?deleted=true", headers)
        if schema.get("references"):
            raise ValueError(
                f"Version {version} of {subject} refers to other schemas. Give its schema whole, by its id:"
                f" schemas={{{schema['id']}: '…'}}."
            )
        schemas.pop(schema["id"], None)
        schemas[schema["id"]] = schema["schema"]
    return schemas


def from_registry_avro(column: str, schemas: Mapping[int, str], on_unknown: str = FAIL) -> Column:
    """Return the records of a column with Avro in a schema registry's wire format, read into the newest
    schema.

    Each value is decoded with the schema that it was written with, so one batch may hold several. A null
    stays null. Needs Spark's ``spark-avro``.

    :param column: the name of a binary column, such as ``value``.
    :param schemas: Avro schemas in JSON by their ids, the newest last (:func:`registry_schemas`).
    :param on_unknown: ``fail``: a value with another id, or in no wire format, fails its batch, and the error
        names the id. ``null``: it becomes null, for an expectation with a quarantine.
    :raises ValueError: there is no schema, or ``on_unknown`` is another.
    """
    from pyspark.sql import functions as F  # noqa: N812 - only a reader needs Spark
    from pyspark.sql.avro.functions import from_avro

    payload = F.substr(F.col(column), F.lit(_HEADER + 1))
    newest = {"avroSchema": [*schemas.values()][-1]} if schemas else {}
    read = {number: from_avro(payload, schema, newest) for number, schema in schemas.items()}
    return _by_id(column, read, on_unknown)


def registry_payload(
    column: str, ids: Iterable[int], message: Sequence[int] | None = None, on_unknown: str = FAIL
) -> Column:
    """Return the bytes of a column's values behind a schema registry's header, for a decoder such as
    ``from_protobuf``.

    :param ids: of the schemas that the decoder reads: of Protobuf all versions of a message, for its newest
        reads each.
    :param message: of Protobuf which message of the schema each value must be: ``(0,)`` is the first, ``(1,
        0)`` the first inside the second. None for formats without it, such as JSON.
    :param on_unknown: as for :func:`from_registry_avro`; a value of another message counts as unknown.
    :raises ValueError: there is no id, or ``on_unknown`` is another.
    """
    from pyspark.sql import functions as F  # noqa: N812 - only a reader needs Spark

    path = b"" if message is None else _message_path(message)
    payload = F.substr(F.col(column), F.lit(_HEADER + 1 + len(path)))
    return _by_id(column, dict.fromkeys(ids, payload), on_unknown, path)


def registry_id(column: str) -> Column:
    """Return the schema id of each value of a column; null where it is in no registry's wire format."""
    from pyspark.sql import functions as F  # noqa: N812 - only a reader needs Spark

    value = F.col(column)
    framed = (F.length(value) >= _HEADER) & (F.substring(value, 1, 1) == F.lit(b"\0"))
    return F.when(framed, F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint"))


def _by_id(column: str, read: Mapping[int, Column], on_unknown: str, path: bytes = b"") -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - only a reader needs Spark

    if not read or on_unknown not in (FAIL, NULL):
        raise ValueError(
            f"Known ids are {', '.join(map(str, read)) or 'none'}, and on_unknown is {on_unknown!r}. Give one"
            f" id or more, and {FAIL!r} or {NULL!r}."
        )
    number, value = registry_id(column), F.col(column)
    chosen = F.when(value.isNull(), F.lit(None))
    for schema_id, one in read.items():
        fits = number == schema_id
        if path:
            fits &= F.substring(value, _HEADER + 1, len(path)) == F.lit(path)
        chosen = chosen.when(fits, one)
    if on_unknown == NULL:
        return chosen
    message = F.concat(
        F.lit(f"{column} has the schema id "),
        F.coalesce(number.cast("string"), F.lit("of none, for it does not begin as a registry's values do")),
        F.lit(
            f"{f' or another message than {path.hex()}' if path else ''}. Known are"
            f" {', '.join(map(str, read))}. Schemas of a registry are read anew by the next driver; ids that"
            " the pipeline file names must be added there. on_unknown='null' lets an expectation drop it."
        ),
    )
    return chosen.otherwise(F.raise_error(message))


def _message_path(message: Sequence[int]) -> bytes:
    """Return the message indexes of Protobuf as the wire format has them: their number and each of them as
    varints in zigzag, or one 0 for the first message.
    """
    if list(message) == [0]:
        return b"\0"
    path = bytearray()
    for number in (len(message), *message):
        remainder = 2 * number
        while remainder > 0x7F:
            path.append(remainder & 0x7F | 0x80)
            remainder >>= 7
        path.append(remainder)
    return bytes(path)


def _registry_answer(address: str, headers: Mapping[str, str] | None) -> Any:
    try:
        return json.loads(ask(address, headers=headers, seconds=_ANSWER, most=_LONGEST))
    except (OSError, ValueError) as error:
        body = error.read().decode(errors="replace") if isinstance(error, urllib.error.HTTPError) else ""
        raise SourceError(
            f"The schema registry does not answer {address} as it should: {error}. {body[:500]}"
        ) from error
