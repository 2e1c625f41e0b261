"""Writes docs/cli.md from the program's own help. `tests/unit/test_cli.py` says when it is stale.

python docs/generate_cli.py
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

ROOT = Path(__file__).parent.parent
PAGE = Path(__file__).parent / "cli.md"
WIDTH = 96

HEAD = """\
# The program

Written by `python docs/generate_cli.py` from the program's own help: do not edit.

## Exit codes

{exit_codes}

An error is one line on stderr, `error: …`, that says what happened and what to do next.
`OUTBOX_DEBUG=1` shows the traceback too. Passwords in URLs are never shown.

## Settings

A flag comes before its environment variable, that before `outbox.toml`, that before the
default. `outbox.toml` is looked for in the working folder, or named by `--config` or
`OUTBOX_CONFIG`:

```toml
{config}
```

| key | flag | variable |
|---|---|---|
{settings}

`log_format` (`--log-format`, `OUTBOX_LOG_FORMAT`) stands at the top of the file only.

## The lines of `tap` and `flux`

{lines}
"""

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def render() -> str:
    """The whole page."""
    import cli.config
    import cli.main
    import stream_store.cloudevents
    from cli.settings import flag, variable

    settings = [f"| `{key}` | `{flag(key)}` | `{variable(key)}` |" for key in cli.config.KEYS]
    table = _doc(cli.main).split("\n\n", 1)[1]
    example = _indented(_doc(cli.config))
    lines = _doc(stream_store.cloudevents).split("\n\n", 1)[1]
    parts = [HEAD.format(exit_codes=table, config=example, settings="\n".join(settings), lines=_fenced(lines))]
    with click.Context(
        cli.main.program, info_name="outbox", terminal_width=WIDTH, help_option_names=["-h", "--help"]
    ) as ctx:
        for name, text in _helps(cli.main.program, ctx):
            parts.append(f"## {name}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def _helps(group: click.Group, ctx: click.Context) -> Iterator[tuple[str, str]]:
    yield ctx.command_path, group.get_help(ctx).rstrip()
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=ctx, terminal_width=WIDTH) as own:
            if isinstance(command, click.Group):
                yield from _helps(command, own)
            else:
                yield own.command_path, command.get_help(own).rstrip()


def _doc(module: ModuleType) -> str:
    return inspect.cleandoc(module.__doc__ or "")


def _indented(text: str) -> str:
    """The example in a docstring, without its indent."""
    lines = [line for line in text.splitlines() if line.startswith("    ") or not line]
    return inspect.cleandoc("\n".join(lines)).strip()


def _fenced(text: str) -> str:
    """Indented examples in a fence, which every Markdown shows the same."""
    example = [line for line in text.splitlines() if line.startswith("    ")]
    rest = [line for line in text.splitlines() if not line.startswith("    ")]
    return "```text\n" + "\n".join(line[4:] for line in example) + "\n```\n" + "\n".join(rest)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(render(), "utf-8")
