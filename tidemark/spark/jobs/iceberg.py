"""A table of Apache Iceberg that has the batches of an export, each once.

Its data files are those that the export wrote. A batch is added in one commit, which also sets the
table's property `tidemark.export.next-batch`. So a run that was killed before the commit adds the
batch again, and one that was killed behind it does not. Iceberg refuses a commit to a table that
somebody changed meanwhile: then the property is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidemark.errors import ConfigError, TidemarkError

NEXT_BATCH = "tidemark.export.next-batch"
DIRECTORY = "tidemark.export.directory"
_BATCH = "tidemark.export.batch"  # of a snapshot
_CONFLICTS_MAX = 10


class IcebergError(TidemarkError):
    """The catalog or the table refused; the message has its reason."""


class IcebergTable:
    """The table CATALOG.NAMESPACE.TABLE, with a catalog of PyIceberg's settings."""

    def __init__(self, identifier: str, catalog: Any = None) -> None:
        """`catalog` of None: that of the name. Raises ConfigError and IcebergError."""
        self.identifier = identifier
        name, *self._path = identifier.split(".")
        if len(self._path) < 2 or not all((name, *self._path)):
            raise ConfigError(f"--iceberg is CATALOG.NAMESPACE.TABLE, and not {identifier!r}")
        with _refusals(identifier):
            self._catalog = catalog or _catalog(name)

    def begin(self, directory: str, schema: Any) -> None:
        """Makes the table where there is none, with the Arrow `schema` of the files.

        Raises ConfigError for a table that is not of the export into `directory`.
        """
        with _refusals(self.identifier):
            self._catalog.create_namespace_if_not_exists(tuple(self._path[:-1]))
            own = {NEXT_BATCH: "0", DIRECTORY: directory}
            table = self._catalog.create_table_if_not_exists(
                tuple(self._path), schema=schema, properties=own
            )
        found = table.properties.get(DIRECTORY)
        if found != directory:
            what = f"has the batches of {found}" if found else "is not of an export"
            raise ConfigError(f"the table {self.identifier} {what}: name another one")

    def follow(self, end: int, files_of: Callable[[int], Sequence[str]]) -> None:
        """Adds the batches below number `end` that the table lacks; `files_of` tells the locations
        of one. Raises IcebergError.
        """
        from pyiceberg.exceptions import CommitFailedException

        conflicts = 0
        with _refusals(self.identifier):
            while True:
                table = self._catalog.load_table(tuple(self._path))
                number = int(table.properties[NEXT_BATCH])
                if number >= end:
                    return
                try:
                    _add(table, number, files_of(number))
                except CommitFailedException:
                    conflicts += 1
                    if conflicts > _CONFLICTS_MAX:
                        raise


def _add(table: Any, number: int, files: Sequence[str]) -> None:
    # Of this object alone. The library's own retries do not look whether the batch is there by now.
    table.properties["commit.retry.num-retries"] = "0"
    with table.transaction() as transaction:
        if files:
            transaction.add_files(list(files), {_BATCH: str(number)})
        transaction.set_properties({NEXT_BATCH: str(number + 1)})


def _catalog(name: str) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError:
        raise ConfigError("--iceberg needs PyIceberg: pip install 'tidemark[iceberg]'") from None
    return load_catalog(name)


@contextmanager
def _refusals(identifier: str) -> Iterator[None]:
    """Within it, errors of the library are IcebergError; it raises those of its many parts, too."""
    try:
        yield
    except TidemarkError:
        raise
    except Exception as error:
        raise IcebergError(f"{identifier}: {error or type(error).__name__}") from error
