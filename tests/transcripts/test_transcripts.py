"""Each story produces exactly its transcript."""

from __future__ import annotations

import pytest

from tests.transcripts.rewrite import FOLDER, expected
from tests.transcripts.stories import STORIES


@pytest.mark.parametrize("name", sorted(STORIES))
def test_the_story_is_told_as_written(name):
    story = STORIES[name]
    told = f"{story.__doc__}\n\n{story()}"
    assert told == expected(name), "read the difference; then: python -m tests.transcripts.rewrite"


def test_every_transcript_has_its_story():
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(STORIES)
