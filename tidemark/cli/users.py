"""`tidemark users`: who can log in by name and password (SCRAM-SHA-512, KIP-900)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tidemark.cli.session import Session, with_session
from tidemark.errors import ConfigError

app = typer.Typer(help="Users that log in by name and password.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The user, as in the principal User:NAME.")]


@app.command("list")
@with_session
def list_(session: Session) -> None:
    """Show the users."""
    with session.admin() as admin:
        found = admin.security.describe_scram_users()
    session.show(
        [{"user": user, "iterations": count} for user, count in found.items()],
        ("USER", "MECHANISM", "ITERATIONS"),
        [(user, "SCRAM-SHA-512", count) for user, count in found.items()],
        empty="no users",
    )


@app.command("set-password")
@with_session
def set_password(
    session: Session,
    user: Name,
    password_file: Annotated[
        Path | None,
        typer.Option("--password-file", help="The password; without it, you are asked, or stdin."),
    ] = None,
    iterations: Annotated[int, typer.Option(help="Rounds of the hash, 4096 to 16384.")] = 4096,
) -> None:
    """Add a user, or change the password; nodes get a salted hash of it alone."""
    password = _password(password_file)
    with session.admin() as admin:
        admin.security.set_scram_password(user, password, iterations=iterations)
    session.tell({"user": user}, [f"user {user} can log in"])


@app.command("delete")
@with_session
def delete(session: Session, user: Name) -> None:
    """Remove a user; what is logged in as the user is turned away from then on."""
    with session.admin() as admin:
        admin.security.delete_scram_user(user)
    session.tell({"user": user}, [f"user {user} is removed"])


def _password(file: Path | None) -> str:
    """Never from an argument: other users of the machine see those."""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--password-file: {error}") from None
    elif sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        text = sys.stdin.readline()
    password = text.rstrip("\r\n")
    if not password:
        raise ConfigError("the password is empty")
    return password
