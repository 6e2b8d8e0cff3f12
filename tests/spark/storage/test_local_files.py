"""Hadoop's local file system on a local master: what it does without a process for each file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from streamkeeper.declare.driver import LOCAL_FILES


@pytest.fixture
def java(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm


def children(java: Any) -> int:
    """Return the page faults of the JVM's children that have ended: each that ends adds some."""
    pid = java.java.lang.ProcessHandle.current().pid()
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[8])


def test_a_tables_commit_starts_no_process(java: Any, spark: SparkSession, tmp_path: Path) -> None:
    """Of several commits one at least: an idle process of Python may end meanwhile."""
    started = []
    for _ in range(3):
        before = children(java)
        spark.range(9).write.format("delta").mode("append").save(str(tmp_path))
        started.append(children(java) - before)
    assert min(started) == 0, started


def test_files_links_and_permissions_are_as_by_hadoops_own(
    java: Any, spark: SparkSession, tmp_path: Path
) -> None:
    hadoop, conf = java.org.apache.hadoop.fs, spark._jsparkSession.sessionState().newHadoopConf()
    files = hadoop.FileSystem.get(java.java.net.URI("file:///"), conf)
    assert files.getClass().getName() == LOCAL_FILES
    inside = hadoop.FileContext.getFileContext(java.java.net.URI("file:///"), conf).getDefaultFileSystem()
    assert inside.getClass().getName() == f"{LOCAL_FILES}$InContext"

    file, link = tmp_path / "a file", tmp_path / "link"
    files.create(hadoop.Path(str(file))).close()
    link.symlink_to(file)
    for mode in (0o640, 0o1750):
        files.setPermission(hadoop.Path(str(file)), hadoop.permission.FsPermission(oct(mode)[2:]))
        assert file.stat().st_mode & 0o7777 == mode
    own = hadoop.LocalFileSystem()
    own.initialize(java.java.net.URI("file:///"), conf)
    for path in (file, link):
        for text in (str(path), f"file:{path}"):
            told = own.getFileLinkStatus(hadoop.Path(text)).toString()
            assert files.getFileLinkStatus(hadoop.Path(text)).toString() == told
        assert inside.getFileLinkStatus(hadoop.Path(f"file:{path}")).isFile()
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        inside.getFileLinkStatus(hadoop.Path(f"file:{tmp_path}/none"))
