"""The flags that several commands share, each with its environment variable in the help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cli.settings import flag, variable

Command = TypeVar("Command", bound=Callable[..., Any])


def setting(key: str, metavar: str, help_text: str) -> Callable[[Command], Command]:
    """A flag that may also come from the environment or from outbox.toml."""
    return click.option(
        flag(key), key if key != "name" else "outbox", metavar=metavar, help=f"{help_text}  [env: {variable(key)}]"
    )


database = setting("database", "URL", "The database: postgresql://, mysql://, mariadb:// or sqlite:///path.")
stream = setting("stream", "URL", "The stream, such as file:///var/lib/outbox/shop.")
outbox = setting("name", "NAME", 'The out table, NAME or SCHEMA.NAME; "outbox" by default.')
config = click.option(
    "--config",
    metavar="FILE",
    help="The configuration; outbox.toml in the working folder by default.  [env: OUTBOX_CONFIG]",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout instead of text for people."
)


def together(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several decorators as one, in the order in which the help shows them."""

    def decorate(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def examples(*lines: str) -> str:
    """An epilog of commands, kept from being wrapped."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
