"""The journal of a job: a directory with what it is, the plan of each batch, and its result.

    job.json             what the job does, and its id; a run with other words is refused
    owner                the run that has the journal; a later run takes it, and the earlier stops
    plan-00000007.json   the ranges of batch 7, before it is worked on
    counts-00000007.json what attempts at batch 7 were about to make visible
    done-00000007.json   its counts, after it took effect

Only the last batch can be without a result. A run begins with that one, from its plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tidemark.errors import ConfigError, TidemarkError
from tidemark.spark.jobs.batches import (
    JobBatch,
    Tallies,
    from_json,
    tallies_from_json,
    tallies_to_json,
    to_json,
)
from tidemark.types import random_uuid, uuid_to_text

_FILE = re.compile(r"(plan|done)-(\d{8})\.json")


class JobFencedError(TidemarkError):
    """Another run of the same job took over its journal; this one stops and changes nothing."""


class JobDamagedError(TidemarkError):
    """A file of the journal cannot be read, or one is missing; the message names it."""


class Files(Protocol):
    """Small files of one directory."""

    def names(self) -> list[str]:
        """Names in the directory; empty if there is none."""

    def read(self, name: str) -> str | None:
        """The text of a file, or None."""

    def write(self, name: str, text: str) -> None:
        """Replaces the file as a whole: after a crash it has the old text or the new one."""


class Plan(Protocol):
    """A batch, whose number is one more than that of the batch before it."""

    @property
    def number(self) -> int: ...


_Plan = TypeVar("_Plan", bound=Plan)


class PlanText(NamedTuple, Generic[_Plan]):
    """Plans as JSON's types; the second raises ConfigError for what is no plan."""

    to_json: Callable[[_Plan], dict[str, Any]]
    from_json: Callable[[Mapping[str, Any]], _Plan]


OF_OFFSETS: PlanText[JobBatch] = PlanText(to_json, from_json)


class Journal(Generic[_Plan]):
    """Reads the directory once, at the start of a run."""

    def __init__(self, files: Files, where: str, text: PlanText[_Plan]) -> None:
        self._files = files
        self._where = where
        self._text = text
        self.run = uuid_to_text(random_uuid())
        self.job_id = ""
        self.last: _Plan | None = None
        self.is_last_done = True
        self.records = 0  # of all batches that are done

    def load(self, identity: Mapping[str, Any]) -> bool:
        """Reads where the job is; False if the directory has none.

        Raises ConfigError if the directory is of a job with another `identity`, or
        JobDamagedError.
        """
        text = self._files.read("job.json")
        if text is None:
            if any(map(_FILE.fullmatch, self._files.names())):
                raise JobDamagedError(f"{self._where} has batches, but no job.json")
            return False
        known = self._parsed("job.json", text)
        different = [
            f"{key} was {known.get(key)!r} and is {value!r}"
            for key, value in identity.items()
            if known.get(key) != value
        ]
        if different:
            raise ConfigError(
                f"{self._where} is of another job: {'; '.join(different)}; give another directory"
            )
        if not isinstance(known.get("id"), str):
            raise JobDamagedError(f"{self._where}/job.json has no id of the job")
        self.job_id = known["id"]
        self._load_batches()
        return True

    def _load_batches(self) -> None:
        found = [m for m in map(_FILE.fullmatch, self._files.names()) if m is not None]
        plans = sorted(int(m[2]) for m in found if m[1] == "plan")
        done = sorted(int(m[2]) for m in found if m[1] == "done")
        if plans != list(range(len(plans))) or done not in (plans, plans[:-1]):
            raise JobDamagedError(
                f"{self._where}: plans {plans}, and results {done}: some are gone"
            )
        if done:
            name = _name("done", done[-1])
            records = self._parsed(name, self._files.read(name)).get("records_in_all")
            if type(records) is not int:
                raise JobDamagedError(f"{self._where}/{name} has no number of records")
            self.records = records
        if plans:
            self.last = self._plan_of(_name("plan", plans[-1]))
            if self.last.number != plans[-1]:
                raise JobDamagedError(
                    f"{self._where}: plan {plans[-1]} is that of batch {self.last.number}"
                )
            self.is_last_done = done == plans

    def _plan_of(self, name: str) -> _Plan:
        try:
            return self._text.from_json(self._parsed(name, self._files.read(name)))
        except ConfigError as error:
            raise JobDamagedError(f"{self._where}/{name}: {error}") from None

    def _parsed(self, name: str, text: str | None) -> dict[str, Any]:
        try:
            found = json.loads(text or "")
        except ValueError as error:
            raise JobDamagedError(f"{self._where}/{name} can not be read: {error}") from None
        if not isinstance(found, dict):
            raise JobDamagedError(f"{self._where}/{name} can not be read: {text!r}")
        return found

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Takes the journal for this run; a run that has it stops at its next step.

        Raises as `load`, and has taken nothing then.
        """
        self.load(identity)  # one that is refused stops nobody
        self._files.write("owner", self.run)
        if not self.load(identity):
            self.check()
            self.job_id = uuid_to_text(random_uuid())
            self._write("job.json", dict(identity) | {"id": self.job_id})

    def check(self) -> None:
        """Raises JobFencedError if a later run took over."""
        if self._files.read("owner") != self.run:
            raise JobFencedError(f"another run took over {self._where}; this one stops")

    def plan(self, batch: _Plan) -> None:
        """Makes the plan of the next batch durable. Raises JobFencedError."""
        assert self.is_last_done
        assert batch.number == (0 if self.last is None else self.last.number + 1)
        self.check()
        self._write(_name("plan", batch.number), self._text.to_json(batch))
        self.last, self.is_last_done = batch, False

    def finish(self, records: int, more: Mapping[str, Any] | None = None) -> None:
        """Makes it durable that the last batch took effect. Raises JobFencedError."""
        assert self.last is not None
        self.check()
        result = {"records": records, "records_in_all": self.records + records}
        self._write(_name("done", self.last.number), result | dict(more or {}))
        self.records += records
        self.is_last_done = True

    def note(self, counts: Tallies) -> None:
        """Makes durable what this attempt at the last batch is about to make visible.

        The topic may have less when the batch is looked at again: only this tells then that all of
        it is there. Raises JobFencedError.
        """
        assert self.last is not None
        self.check()
        attempts = [tallies_to_json(each) for each in (*self.noted(), counts)]
        self._write(_name("counts", self.last.number), {"attempts": attempts})

    def noted(self) -> list[Tallies]:
        """The counts of all attempts at the last batch, in order. Raises JobDamagedError."""
        assert self.last is not None
        name = _name("counts", self.last.number)
        text = self._files.read(name)
        if text is None:
            return []
        try:
            return [tallies_from_json(each) for each in self._parsed(name, text)["attempts"]]
        except (ConfigError, KeyError, TypeError) as error:
            raise JobDamagedError(f"{self._where}/{name} can not be read: {error!r}") from None

    def plans(self) -> list[_Plan]:
        """All plans, in order."""
        names = sorted(n for n in self._files.names() if n.startswith("plan-"))
        return [self._plan_of(name) for name in names]

    def results(self) -> list[dict[str, Any]]:
        """The results of all batches that are done, in order."""
        names = sorted(n for n in self._files.names() if n.startswith("done-"))
        return [self._parsed(name, self._files.read(name)) for name in names]

    def _write(self, name: str, value: Any) -> None:
        self._files.write(name, json.dumps(value, indent=1) + "\n")


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:08d}.json"
