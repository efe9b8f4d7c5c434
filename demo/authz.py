"""An authorization service with a sample policy and three facts, and three questions to try.

    make authz [ARGS="--data DIR --http HOST:PORT"]

It runs until Ctrl-C. Editing demo/authz.polar changes the policy at once.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
KEY = "e_0123456789_12345_osotesttoken01xiIn"
READY_S = 30.0
FACTS = (
    ("has_role", ("User", "alice"), ("String", "member"), ("Organization", "acme")),
    ("has_role", ("User", "bob"), ("String", "admin"), ("Organization", "acme")),
    (
        "has_relation",
        ("Repository", "anvil"),
        ("String", "organization"),
        ("Organization", "acme"),
    ),
)
ALICE = {"actor_type": "User", "actor_id": "alice"}
ANVIL = {"resource_type": "Repository", "resource_id": "anvil"}
QUESTIONS = (
    ("May alice push to anvil?", "authorize", {**ALICE, "action": "push", **ANVIL}),
    (
        "Which repositories may alice read?",
        "list",
        {**ALICE, "action": "read", "resource_type": "Repository"},
    ),
    ("What would let alice push?", "explain", {**ALICE, "action": "push", **ANVIL}),
)


def call(url: str, name: str, content: object) -> object:
    request = urllib.request.Request(
        f"{url}/api/{name}",
        data=json.dumps(content).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/healthz", timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    sys.exit(process.poll() or 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default=".data-authz")
    parser.add_argument("--http", default="127.0.0.1:8081")
    options = parser.parse_args()
    url = f"http://{options.http}"
    command = [sys.executable, "-m", "penstock", "authz", "serve", "--data", options.data]
    command += ["--http", options.http, "--test-key", "--watch"]
    command += ["--policy", str(HERE / "authz.polar")]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        wait_for(url, process)
        inserts = [
            {"predicate": name, "args": [{"type": kind, "id": id_} for kind, id_ in values]}
            for name, *values in FACTS
        ]
        call(url, "batch", [{"inserts": inserts}])
        print("\nThree questions to try in another terminal:\n")
        for text, name, content in QUESTIONS:
            answer = json.dumps(call(url, name, content))
            print(f"# {text}\ncurl -s {url}/api/{name} -H 'Authorization: Bearer {KEY}' \\")
            print(f"  -d '{json.dumps(content)}'\n# {answer[:200]}\n")
        print("Ctrl-C ends the service.", flush=True)
        process.wait()
    except KeyboardInterrupt:
        pass
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()


if __name__ == "__main__":
    main()
