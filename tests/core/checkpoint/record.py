"""Records the checkpoints of small real queries as fixtures for the fast tests: ``python
tests/core/checkpoint/record.py [NAME …]``.

The machine's paths become ``/data``, and the
.crc twins of what that changes are made anew. Needs the jars folder (STREAMKEEPER_JARS, or .cache/jars);
``kafka`` starts a broker of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
RECORDED = Path(__file__).resolve().parent / "recorded"
sys.path.insert(0, str(PROJECT))


from pyspark.sql import SparkSession  # noqa: E402

from streamkeeper.checkpoint.crc_files import checksum, twin_of  # noqa: E402
from tests.worlds import checkpoint_samples as samples  # noqa: E402
from tools.kafka_broker import KafkaBroker  # noqa: E402


def session(warehouse: str) -> SparkSession:
    """Start Spark with Delta and Kafka on its class path."""
    jars = Path(os.environ.get("STREAMKEEPER_JARS", PROJECT / ".cache" / "jars"))
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": warehouse,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    return SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()


def keep(checkpoint: Path, root: Path, target: Path) -> None:
    """Copy a checkpoint, without the path of the folder that it was made in."""
    shutil.rmtree(target, ignore_errors=True)
    for file in sorted(item for item in checkpoint.rglob("*") if item.is_file()):
        name = file.relative_to(checkpoint)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name)
    for file in [item for item in target.rglob("*") if item.is_file()]:
        content = file.read_bytes()
        scrubbed = content.replace(str(root).encode(), b"/data")
        if scrubbed != content:
            file.write_bytes(scrubbed)
            Path(twin_of(str(file))).write_bytes(checksum(scrubbed))


def kafka(spark: SparkSession, folder: Path) -> Path:
    """Run the Kafka sample against a broker that lives as long."""
    with KafkaBroker(folder / "broker") as broker:
        return samples.kafka(spark, folder, broker.bootstrap_servers)


def main() -> None:
    """Run the samples named on the command line, or all."""
    every = {**samples.SAMPLES, "kafka": kafka}
    names = sys.argv[1:] or list(every)
    if unknown := set(names) - every.keys():
        sys.exit(f"There is no sample {', '.join(sorted(unknown))}. Allowed are {', '.join(every)}.")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        spark = session(str(root / "warehouse"))
        for name in names:
            (root / name).mkdir()
            keep(every[name](spark, root / name), root, RECORDED / name)
            print(f"recorded {name}", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
