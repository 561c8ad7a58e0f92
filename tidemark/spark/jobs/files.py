"""Files and directories of a job, on the file system that Spark itself would use for the path.

Hadoop's FileSystem does the work, through the session's JVM: local paths, HDFS, and object stores
whose connector the session has. On an object store a rename is a copy, so readers may see a part of
a batch. If a run was killed meanwhile, the next one makes the batch anew.
"""

from __future__ import annotations

import re
from typing import Any

from tidemark.errors import ConfigError, TidemarkError

_PATTERN = re.compile(r"[\\{}\[\]*?]")


class FileError(TidemarkError):
    """The file system of the job refused; the message has its reason."""


def literal(path: str) -> str:
    """The pattern that matches this path alone: readers of Spark take patterns."""
    return _PATTERN.sub(r"\\\g<0>", path)


class HadoopFiles:
    """A directory. Its parent directories are made on demand.

    Raises FileError, and ConfigError for a path without text: it would be the root of all.
    """

    def __init__(self, spark: Any, root: str) -> None:
        if not root.strip():
            raise ConfigError("the path of the directory is empty")
        self._jvm = spark._jvm
        self.root = root.rstrip("/") or "/"
        path = self._path("")
        self._fs = path.getFileSystem(spark._jsc.hadoopConfiguration())

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{name}" if name else self.root)

    def names(self) -> list[str]:
        path = self._path("")
        if not self._fs.exists(path):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(path))

    def locations(self, name: str, suffix: str) -> list[str]:
        """The URIs of the files with a suffix in a directory."""
        found = (str(status.getPath()) for status in self._fs.listStatus(self._path(name)))
        return sorted(one for one in found if one.endswith(suffix))

    def is_directory(self) -> bool:
        return bool(self._fs.exists(self._path("")) and self._fs.isDirectory(self._path("")))

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def read(self, name: str) -> str | None:
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        stream = self._fs.open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        except UnicodeDecodeError as error:
            raise FileError(f"{self.root}/{name} is damaged: {error}") from None
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        new = self._path(f".{name}.new")
        stream = self._fs.create(new, True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        path = self._path(name)
        try:
            is_renamed = self._fs.rename(new, path)
        except Exception:  # that the file exists, as s3a says it
            if not self._fs.exists(path):
                raise
            is_renamed = False
        if not is_renamed:  # a rename does not replace here
            self._fs.delete(path, False)
            self._rename(new, name)

    def rename(self, name: str, new_name: str) -> None:
        """Renames a directory; there must be none with the new name."""
        if self.exists(new_name):
            raise FileError(f"{self.root}/{new_name} exists")
        self._fs.mkdirs(self._path(new_name).getParent())
        self._rename(self._path(name), new_name)
        inside = f"{new_name}/{name.rpartition('/')[2]}"
        if self.exists(inside):  # one appeared meanwhile: then a rename leads into it
            self.delete(inside)
            raise FileError(f"{self.root}/{new_name} exists, by another run of the job")

    def _rename(self, path: Any, new_name: str) -> None:
        if not self._fs.rename(path, self._path(new_name)):
            raise FileError(f"{path} could not be renamed to {self.root}/{new_name}")

    def delete(self, name: str) -> None:
        """Deletes a file or a directory with all in it, if it exists."""
        self._fs.delete(self._path(name), True)
