"""`tidemark completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidemark.errors import ConfigError

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def completion(
    ctx: typer.Context,
    shell: Annotated[
        str | None, typer.Argument(help=f"{', '.join(SHELLS)}; default: the one that runs.")
    ] = None,
) -> None:
    """Print the completion script of a shell: `eval "$(tidemark completion bash)"`, for one."""
    from typer.completion import show_callback

    chosen = shell or _running_shell()
    if chosen not in SHELLS:
        raise ConfigError(f"there is no completion for {chosen!r}, only for {', '.join(SHELLS)}")
    unused: Any = None
    show_callback(ctx, unused, chosen)


def _running_shell() -> str:
    import os
    from pathlib import Path

    return Path(os.environ.get("SHELL", "bash")).name
