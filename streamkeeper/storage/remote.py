"""Storage under a URL, through fsspec."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import shutil
import uuid
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from streamkeeper.errors import StorageError
from streamkeeper.storage.base import OURS, PIECE, Storage, check_create, to_json
from streamkeeper.storage.errors import check_size, or_storage_error
from streamkeeper.support.times import now


class RemoteStorage:
    """Prefix on an object store, through fsspec."""

    def __init__(self, root: str) -> None:
        try:
            fsspec = importlib.import_module("fsspec")  # an optional dependency, without types

            self._fs, self._base = fsspec.core.url_to_fs(
                root.replace("s3a://", "s3://", 1).rstrip("/"), use_listings_cache=False
            )
        except ImportError as error:
            raise StorageError(
                f"{root} needs a package that is not installed: {error}. Install streamkeeper-airflow[s3]."
            ) from error
        except ValueError as error:
            raise StorageError(
                f"{root} cannot be opened: {error}. Give a path, or the URL of a store, such as"
                " s3://bucket/folder."
            ) from error
        self.root = root.rstrip("/")
        self._is_s3 = "s3" in (
            self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        )
        # Left to itself, s3fs asks for the size first, to read a large file in parts. State files are small.
        self._in_one_request = {"max_concurrency": 1} if self._is_s3 else {}

    def path(self, name: str = "") -> str:
        return f"{self.root}/{name}" if name else self.root

    def create(self, name: str, content: bytes) -> bool:
        self._prove()
        return self._create(name, content)

    def _create(self, name: str, content: bytes) -> bool:
        key, mark = self._key(name), uuid.uuid4().hex
        marked = {"Metadata": {_MARK: mark}} if self._is_s3 else {}
        with or_storage_error(self.path(name), "written", _CHECK_STORE):
            try:
                self._fs.pipe_file(key, content, mode="create", **marked)
            except FileExistsError:
                # The client repeats a request whose answer was lost, and the store refuses the second.
                return self._mark_of(key) == mark
            except Exception:
                with contextlib.suppress(Exception):
                    # Without an answer, or in a race with another call, the store may hold a file by now.
                    stored_mark = self._mark_of(key)
                    if stored_mark is not None:
                        return stored_mark == mark
                raise
        return True

    def _mark_of(self, key: str) -> str | None:
        """Return the mark of the call that wrote a file; None if it has none, or there is no file."""
        if not self._is_s3:
            return None
        try:
            metadata = self._fs.metadata(key)
        except FileNotFoundError:
            return None
        return next((str(value) for name, value in metadata.items() if name.lower() == _MARK), None)

    def _prove(self) -> None:
        """Try create-if-absent once for each URL; that it held is kept in the storage.

        :raises StorageError: the store takes a second create of one file.
        """
        place = (self.root, self._endpoint())
        if place in _PROVEN:
            return
        proof = f"{OURS}proven-{hashlib.sha256(place[1].encode()).hexdigest()[:12]}.json"
        if self.size(proof) is None:
            check_create(self, self._create)
            self.overwrite(proof, to_json({"store": place[1], "root": self.root, "at": now()}))
        _PROVEN.add(place)

    def _endpoint(self) -> str:
        """Return the address of the store, as far as its file system tells it."""
        client = getattr(self._fs, "s3", None)
        return f"{self._fs.protocol} {getattr(getattr(client, 'meta', None), 'endpoint_url', '')}"

    def overwrite(self, name: str, content: bytes) -> None:
        with or_storage_error(self.path(name), "written", _CHECK_STORE):
            self._fs.pipe_file(self._key(name), content)

    def read(self, name: str, most: int | None = None) -> bytes | None:
        with or_storage_error(self.path(name), "read", _CHECK_STORE, may_lack=True):
            content = bytes(self._fs.cat_file(self._key(name), **self._in_one_request))
            check_size(self.path(name), len(content), most)
            return content
        return None

    def names(self, folder: str = "") -> list[str]:
        base, keys = self._key(folder).rstrip("/"), list[str]()
        with or_storage_error(self.path(folder), "listed", _CHECK_STORE, may_lack=True):
            listed = self._listed(base) if self._is_s3 else self._fs.ls(base, detail=False)
            keys = [str(key).rstrip("/") for key in listed]
        names = {key.removeprefix(f"{base}/") for key in keys if key.startswith(f"{base}/")}
        return sorted(name for name in names if not name.startswith(OURS))

    def _listed(self, base: str) -> Iterator[str]:
        """Yield the keys of objects and folders right below a key of S3, by one request a page: of a folder
        without any, such as that of the holds of a flow that runs, s3fs lists the parent, too.
        """
        bucket, _, prefix = base.partition("/")
        below = {"Bucket": bucket, "Prefix": f"{prefix}/" if prefix else "", "Delimiter": "/"}
        page = self._fs.call_s3("list_objects_v2", **below)
        while True:
            yield from (f"{bucket}/{item['Key']}" for item in page.get("Contents", ()))
            yield from (f"{bucket}/{item['Prefix']}" for item in page.get("CommonPrefixes", ()))
            if not page.get("IsTruncated"):
                return
            token = page["NextContinuationToken"]
            page = self._fs.call_s3("list_objects_v2", **below, ContinuationToken=token)

    def modified(self, name: str) -> float | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_STORE, may_lack=True):
            return float(self._fs.modified(self._key(name)).timestamp())
        return None

    def size(self, name: str) -> int | None:
        with or_storage_error(self.path(name), "looked at", _CHECK_STORE, may_lack=True):
            return int(self._fs.size(self._key(name)))
        return None

    def sizes(self, folder: str = "") -> dict[str, int]:
        base, objects = self._key(folder).rstrip("/"), dict[str, Any]()
        with or_storage_error(self.path(folder), "listed", _CHECK_STORE, may_lack=True):
            objects = self._fs.find(base, detail=True)
        return {
            name: int(about["size"])
            for key, about in objects.items()
            if (name := key.removeprefix(f"{base}/")) != key
            and about["type"] == "file"
            and not name.endswith("/")
            and not name.rpartition("/")[2].startswith(OURS)
        }

    def open(self, name: str) -> BinaryIO:
        with or_storage_error(self.path(name), "read", _CHECK_STORE):
            return cast(BinaryIO, self._fs.open(self._key(name), "rb"))

    def bring(self, source: Storage, name: str, target: str) -> None:
        with or_storage_error(source.path(name), f"copied to {self.path(target)}", _CHECK_STORE):
            if isinstance(source, RemoteStorage) and type(source._fs) is type(self._fs):
                self._copy(source._key(name), self._key(target))
                return
            with source.open(name) as reader:
                file = self._fs.open(self._key(target), "wb")
                try:
                    shutil.copyfileobj(reader, file, PIECE)
                except BaseException:
                    # Closing it would make half a file visible.
                    file.discard()
                    file.closed = True
                    raise
                file.close()

    def _copy(self, key: str, target: str) -> None:
        """Let the store copy."""
        if self._is_s3:
            bucket, _, name = target.partition("/")
            origin, _, old = key.partition("/")
            try:
                self._fs.call_s3(
                    "copy_object", Bucket=bucket, Key=name, CopySource={"Bucket": origin, "Key": old}
                )
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # Above 5 GB a copy takes several requests, and the size is asked for first.
        self._fs.cp_file(key, target)

    def share(self, source: Storage, name: str, target: str) -> None:
        self.bring(source, name, target)

    def sync(self, folder: str = "") -> None:
        """Do nothing: what a store has answered is kept."""

    def remove(self, name: str) -> None:
        key = self._key(name)
        with or_storage_error(self.path(name), "removed", _CHECK_STORE, may_lack=True):
            if not self._is_s3:
                self._fs.rm(key, recursive=True)
                return
            self._remove_below(key)
            self._fs.rm_file(key)

    def _remove_below(self, key: str) -> None:
        """Remove the objects below a key, also those by which Spark marks empty folders.

        Not by s3fs: it forgets the slash at the end of such a mark, and says nothing of objects that the
        store does not remove.
        """
        parent, _, last = key.rpartition("/")
        bucket = f"{key.partition('/')[0]}/"
        # A mark after what it marks.
        object_names = sorted(self._fs.find(parent, prefix=f"{last}/"), reverse=True)
        for first in range(0, len(object_names), _AT_ONCE):
            keys = [{"Key": name.removeprefix(bucket)} for name in object_names[first : first + _AT_ONCE]]
            answer = self._fs.call_s3(
                "delete_objects", Bucket=bucket.rstrip("/"), Delete={"Objects": keys, "Quiet": True}
            )
            if errors := answer.get("Errors"):
                first_error = errors[0]
                raise PermissionError(
                    f"s3://{bucket}{first_error['Key']}: {first_error['Code']}: {first_error['Message']}"
                )

    def _key(self, name: str) -> str:
        return f"{self._base}/{name}" if name else str(self._base)


_MARK = "streamkeeper-create"
"""Metadata of a file: which call wrote it. It tells one's own file from another's with the same content."""
_AT_ONCE = 1000
"""Objects that a store removes by one request, at most."""
_PROVEN: set[tuple[str, str]] = set()
"""URLs, with the address of their store, for which create-if-absent is known to hold."""
_CHECK_STORE = (
    "Check that the bucket is there, that the network reaches it, and that the credentials may read and"
    " write it."
)
