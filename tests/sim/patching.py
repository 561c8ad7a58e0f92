"""How a bug is planted in production code while a world runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest.mock import patch


class Patching:
    """The correct implementation. Each subclass breaks one rule by its patches."""

    patches: ClassVar[tuple[tuple[Any, str, Any], ...]] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """Runs the world with the bug in place."""
        with contextlib.ExitStack() as stack:
            for owner, name, broken in self.patches:
                stack.enter_context(patch.object(owner, name, broken))
            yield
