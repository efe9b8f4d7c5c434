"""A whole cluster on this machine: PostgreSQL, an S3 server and three agents, until Ctrl-C.

    make cluster
    make demo ARGS="--bootstrap 127.0.0.1:9092"      in another terminal

PostgreSQL comes from a wheel, S3 is moto's server; both keep what they have in a folder that is
gone afterwards. In production both are yours: docs/operations.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY / "tests")]

from support.agents import SECRET, Agents  # noqa: E402
from support.postgres import PostgresServer  # noqa: E402
from support.s3 import S3Server, environment  # noqa: E402

FIRST_KAFKA_PORT = 9092
FIRST_HTTP_PORT = 8080


def main() -> int:
    """Returns: the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--kafka-port", type=int, default=FIRST_KAFKA_PORT)
    parser.add_argument("--http-port", type=int, default=FIRST_HTTP_PORT)
    arguments = parser.parse_args()
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-cluster-")))
        folder.chmod(0o755)  # PostgreSQL, started by root, runs as nobody
        print("starting PostgreSQL and S3 ...", flush=True)
        postgres = PostgresServer(folder / "postgres")
        postgres.start()
        stack.callback(postgres.stop)
        s3 = S3Server(folder / "s3.log").start()
        stack.callback(s3.stop)
        agents = stack.enter_context(
            Agents(
                folder,
                journal=postgres.url,
                objects=f"s3://{s3.make_bucket()}/log",
                environment=environment(s3.endpoint),
            )
        )
        for number in range(arguments.agents):
            agent = agents.prepare()
            agent.server.kafka_port = arguments.kafka_port + number
            # The port after it is where the agent serves the others.
            agent.server.http_port = arguments.http_port + 2 * number
            agent.server.start()
            print(f"agent {number} in zone {agent.zone} serves {agent.address}", flush=True)
        agents.wait_live()
        print(
            f"""
{arguments.agents} agents, one cluster.

  Kafka clients  {agents.bootstrap}
  logs           {folder}/agent-*.log

Try in another terminal:

  make demo ARGS="--bootstrap {agents.agents[0].address}"
  PENSTOCK_CLUSTER_SECRET={SECRET} penstock agent list --http 127.0.0.1:{arguments.http_port}

Ctrl-C drains and stops all of it.""",
            flush=True,
        )
        stopping.wait()
        print("draining", flush=True)
        agents.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
