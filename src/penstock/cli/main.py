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
    "acl": Lazy("acl", "List, add and delete access rules: what clients may do."),
    "user": Lazy("user", "List, make and delete users' passwords."),
    "key": Lazy("key", "Make, list and revoke API keys of the HTTP port."),
    "quota": Lazy("quota", "List, set and remove quotas: how much clients may use."),
    "transaction": Lazy("transaction", "List, describe and abort transactions."),
    "pipeline": Lazy("pipeline", "Run jobs on stored records: compaction, tables, export, import."),
    "authz": Lazy("authz", "Run the authorization service; check, format and test its policies."),
    "status": Lazy("status", "Show a server's status."),
    "verify": Lazy("verify", "Read everything in a data directory or a cluster and check it."),
    "repair": Lazy("repair", "Find damaged or lost records, and bring them back."),
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

    `penstock serve` runs a server; the other commands talk to a server, or read its data.
    """


def main() -> NoReturn:
    """Run the console script; never returns."""
    _leave(_run())


def _leave(status: int) -> NoReturn:
    """End the process without finalizing the interpreter.

    Threads of obstore's runtime call Python when a request ends, even a request that was given up.
    When such a call met an interpreter that was being finalized, the process aborted with status
    134, one process in sixty.
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
        # click turns Ctrl-C into an Abort, too, also while it asks a question. The answer "no" to
        # a question is an Abort with another cause.
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
    except ImportError as error:
        # Installing Penstock installs all that other commands need.
        if (error.name or "penstock").startswith("penstock"):
            raise
        click.echo(
            f"penstock: the package {error.name} is not installed:"
            " pip install 'penstock[spark]' installs what this command needs",
            err=True,
        )
        return ERROR_EXIT_STATUS
    except BrokenPipeError:
        # The reader of the output, `head` for example, has closed the pipe. Output that Python
        # still holds for the pipe goes to /dev/null, or closing the stream would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR_EXIT_STATUS
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_STATUS
    except SystemExit as end:  # click's, where its own output finds no reader
        return end.code if isinstance(end.code, int) else ERROR_EXIT_STATUS
    except OSError as error:
        # `str` of such an error begins with its number: "[Errno 2] No such file or directory".
        said = error.strerror or str(error) or type(error).__name__
        click.echo(
            f"penstock: {error.filename}: {said}" if error.filename else f"penstock: {said}",
            err=True,
        )
        return ERROR_EXIT_STATUS
    return result if isinstance(result, int) else 0
