"""The program `outbox`: its commands, and what it answers to the shell.

| exit code | meaning |
|---|---|
| 0 | ok |
| 1 | failure |
| 2 | the command line or outbox.toml is wrong |
| 3 | a check or a verification found something |
| 4 | going on could lose or double events: do not restart, look first |
| 75 | temporary: restart me |
| 130 | interrupted |
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from cli import printing
from cli.config import did_you_mean
from cli.flags import examples
from outbox.errors import OutboxError, Transient

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

INTERRUPTED = 130

# Command, and the module of `cli` that has it: imported when it is called.
COMMANDS = {
    "init": "install",
    "upgrade": "install",
    "check": "check",
    "relay": "relay",
    "sink": "sink",
    "replay": "replay",
    "tap": "tap",
    "flux": "flux",
    "emit": "emit",
    "status": "status",
    "verify": "verify",
    "rebase": "rebase",
    "group": "group",
    "inbox": "inbox",
    "dlq": "dlq",
    "stream": "stream",
    "table": "table",
    "uninstall": "install",
    "demo": "demo",
}
ALIASES = {"doctor": "check"}


class Program(click.Group):
    """Commands in the order of a first use, each loaded when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"cli.{COMMANDS[name]}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], [*COMMANDS, *ALIASES])}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "outbox init  --database postgresql://app@db/shop",
        "outbox relay --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
        "outbox tap   --stream file:///var/lib/outbox/shop --from earliest --follow",
        "outbox check --database postgresql://relay@db/shop --stream file:///var/lib/outbox/shop",
    )
    + "\n\n\b\nExit codes: 0 ok · 1 failure · 2 usage · 3 a check or verification failed ·\n"
    "4 do not restart, look first · 75 temporary, restart me · 130 interrupted.\n"
    "Flags come before OUTBOX_* variables, these before outbox.toml. OUTBOX_DEBUG=1 shows tracebacks.",
)
@click.version_option(package_name="outbox-connector", message="outbox %(version)s")
def program() -> None:
    """From a committed row to a durable stream: exactly once, in ID order.

    An application emits events into an out table, in its own transactions. A relay puts
    each committed event exactly once into a stream, whatever crashes in between.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with the exit code of what came of it."""
    code = run(arguments)
    try:
        sys.stderr.flush()
    except OSError:
        _forget(sys.stderr)
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; an exit code, never a traceback."""
    try:
        code = program.main(
            args=None if arguments is None else list(arguments), prog_name="outbox", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        printing.say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        return _leave_quietly()
    except OutboxError as error:
        printing.print_error(error, str(error))
        return error.exit_code
    except Exception as error:
        return _fail(error)


def _fail(error: Exception) -> int:
    """Say what an error means that nobody has put into words before; the exit code for it."""
    from outbox.database import is_connection_error
    from spark_sink.worker_errors import ours_of

    ours = ours_of(error)
    printing.print_error(error, _explain(error) if ours is None else str(ours))
    try:
        sys.stdout.flush()
    except OSError:
        _forget(sys.stdout)
    if ours is not None:
        return ours.exit_code
    return Transient.exit_code if is_connection_error(error) else 1


def _explain(error: Exception) -> str:
    """What happened, for a person, of an error that nobody has put into words before."""
    from outbox.database import is_driver_error, is_refusal, one_line

    if is_refusal(error):
        return (
            f"the database refuses this: {one_line(error)}; run `outbox check` as this role; "
            "`outbox init --grant-relay ROLE` grants what it needs"
        )
    if is_driver_error(error):
        return f"the database answers with an error: {one_line(error)}; `outbox check` may say why"
    if isinstance(error, OSError) and error.strerror:
        place = error.filename if error.filename is not None else "the output, or a file in use,"
        return f"{place} cannot be read or written: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def _leave_quietly() -> int:
    """Whoever read our output has seen enough."""
    _forget(sys.stdout)
    return 1


def _forget(output: TextIO) -> None:
    # Python flushes it once more at its end, and would complain then, by exit code 120.
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


if __name__ == "__main__":
    main()
