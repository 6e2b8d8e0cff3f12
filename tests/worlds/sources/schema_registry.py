"""Values in a schema registry's wire format, and a stand-in for its REST API.

The answers are those of Apicurio Registry 2.6.13 for Confluent's API, ``/apis/ccompat/v7``, as it gave them.
``STREAMKEEPER_TEST_REGISTRY`` may name the address of a real registry instead.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from streamkeeper.jars.folder import FOLDER, ensure
from streamkeeper.settings import PROJECT
from tests.worlds.clusters.pages import Page, Pages

AVRO = FOLDER.with_name("jars-avro")
AVRO_LOCK = PROJECT / "tools" / "avro.lock"
REAL = "STREAMKEEPER_TEST_REGISTRY"


def avro_jars() -> list[str]:
    """Return the jars of Spark's Avro, fetched once."""
    ensure(AVRO, AVRO_LOCK)
    return sorted(str(jar) for jar in AVRO.glob("*.jar"))


def framed(number: int, payload: bytes, path: bytes = b"") -> bytes:
    """Return a value in the wire format, as serialisers write it."""
    return b"\0" + number.to_bytes(4, "big") + path + payload


def avro(spark: SparkSession, schema: str, **fields: Any) -> bytes:
    """Encode a record as Avro's own library does."""
    java = spark.sparkContext._jvm
    assert java is not None
    kept = java.org.apache.avro.Schema.Parser().parse(schema)
    record = java.org.apache.avro.generic.GenericRecordBuilder(kept)
    for name, value in fields.items():
        record.set(name, value)
    out = java.java.io.ByteArrayOutputStream()
    encoder = java.org.apache.avro.io.EncoderFactory.get().binaryEncoder(out, None)
    java.org.apache.avro.generic.GenericDatumWriter(kept).write(record.build(), encoder)
    encoder.flush()
    return bytes(out.toByteArray())


def register(address: str, subject: str, schema: str) -> int:
    """Register the next version of a subject; return its schema's id."""
    found: int = _sent(f"{address}/subjects/{subject}/versions", "POST", {"schema": schema})["id"]
    return found


def delete(address: str, subject: str, version: int) -> None:
    """Delete a version, softly: its schema is still told by its id."""
    _sent(f"{address}/subjects/{subject}/versions/{version}", "DELETE")


def _sent(address: str, method: str, content: dict[str, str] | None = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(address, data, kind, method=method)) as answer:
        return json.load(answer)


@contextmanager
def schema_registry() -> Iterator[str]:
    """Run the stand-in; give its address, or that of the real one."""
    if REAL in os.environ:
        yield os.environ[REAL]
        return
    pages = Pages(type("Bound", (_Registry,), {"subjects": {}}))
    try:
        yield f"http://{pages.place}"
    finally:
        pages.close()


class _Registry(Page):
    """``subjects`` has the versions of each subject: id, schema, and whether it was deleted."""

    subjects: dict[str, list[dict[str, Any]]]

    def do_POST(self) -> None:
        subject = self._subject()[0]
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
        number = 1 + sum(map(len, self.subjects.values()))
        versions = self.subjects.setdefault(subject, [])
        versions.append({"id": number, "schema": schema, "deleted": False})
        self._answer({"id": number})

    def do_DELETE(self) -> None:
        subject, version = self._subject()
        self.subjects[subject][int(version) - 1]["deleted"] = True
        self._answer(int(version))

    def do_GET(self) -> None:
        subject, version = self._subject()
        if subject not in self.subjects:
            said = f"No artifact with ID '{subject}' in group 'null' was found."
            self._answer({"error_code": 40401, "message": said}, 404)
            return
        every = self.path.endswith("?deleted=true")
        there = {
            number: one
            for number, one in enumerate(self.subjects[subject], start=1)
            if every or not one["deleted"]
        }
        if not version:
            self._answer(list(there))
            return
        one = there[int(version)]
        told = {"id": one["id"], "subject": subject, "version": int(version), "schema": one["schema"]}
        self._answer({**told, "references": []})

    def _subject(self) -> tuple[str, str]:
        found = re.match(r"/subjects/([^/?]+)/versions(?:/(\d+))?", self.path)
        assert found is not None, self.path
        return found[1], found[2] or ""

    def _answer(self, value: Any, status: int = 200) -> None:
        self.say(status, json.dumps(value).encode())
