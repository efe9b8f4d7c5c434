"""The group of all commands. A command's module is imported only when it is called.

Exit status: 0 done, 1 an error (one line on standard error), 2 wrong usage, 130 interrupted.
"""

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

import click

from penstock.cli.lazy import Lazy, LazyGroup
from penstock.model.errors import PenstockError
from penstock.version import VERSION

ERROR_EXIT_STATUS: Final = 1
INTERRUPTED_EXIT_STATUS: Final = 130


COMMANDS: Final[Mapping[str, Lazy]] = {
    "serve": Lazy("serve", "Run a server in the foreground."),
    "topic": Lazy("topic", "Create, list, describe, alter and delete topics."),
    "produce": Lazy("produce", "Send lines of files or of standard input to a topic."),
    "consume": Lazy("consume", "Print the records of topics."),
    "agent": Lazy("agent", "List, drain and remove the agents of a cluster."),
    "group": Lazy("group", "List, describe, reset and delete consumer groups."),
    "pipeline": Lazy("pipeline", "Run jobs on what is stored: compaction, tables, export, import."),
    "status": Lazy("status", "Show what a server says about itself."),
    "verify": Lazy("verify", "Read everything in a data directory or a cluster and check it."),
    "repair": Lazy("repair", "Bring back what was acknowledged and is not in the log any more."),
    "bench": Lazy("bench", "Measure any server of Kafka's protocol."),
    "backup": Lazy("backup", "Copy a data directory, online."),
    "restore": Lazy("restore", "Make a data directory or a cluster from a backup or a bucket."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="penstock", message="%(prog)s %(version)s")
def root() -> None:
    """Penstock: a Kafka-compatible log whose only disk is object storage.

    `penstock serve` runs a server; the other commands talk to one, or read its data directory.
    """


def main() -> NoReturn:
    """Run the console script; never returns."""
    _leave(_run())


def _leave(status: int) -> NoReturn:
    """End the process, but don't take the interpreter apart.

    Threads of obstore's runtime call Python when a request ends, also one that was given up: met by
    an interpreter that is ending, one such process in sixty aborted with status 134.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - `os._exit` leaves them out
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            status = status or ERROR_EXIT_STATUS
    os._exit(status)


def _run() -> int:
    try:
        result = root.main(standalone_mode=False)
    except click.exceptions.Abort as abort:
        # click makes one of Ctrl-C too, also where it asks a question; "no" is an answer.
        if isinstance(abort.__context__, KeyboardInterrupt):
            return INTERRUPTED_EXIT_STATUS
        click.echo("aborted", err=True)
        return ERROR_EXIT_STATUS
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except PenstockError as error:
        click.echo(f"penstock: {error}", err=True)
        return ERROR_EXIT_STATUS
    except BrokenPipeError:
        # The reader of our output has enough, `head` for example. What Python still holds for the
        # pipe must go nowhere, or its closing would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR_EXIT_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_STATUS
    except SystemExit as end:  # click's, where its own output finds no reader
        return end.code if isinstance(end.code, int) else ERROR_EXIT_STATUS
    except OSError as error:
        click.echo(f"penstock: {error}", err=True)
        return ERROR_EXIT_STATUS
    return result if isinstance(result, int) else 0
