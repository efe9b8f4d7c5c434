"""How fast do JSON and Avro values become columns, alone and from the log to committed Parquet?

A report, not a test. CPU seconds of one process, the median of three.

    PYTHONPATH=src:tests:bench python bench/bench_typed_tables.py [--records 300000] [--decoding]

1. decoding: values to Arrow's columns by their schema, in MB of values per CPU second. Flat: 8
   fields, about 140 B; nested: 40 fields, up to 1 KiB. Then with 1 % of bad values.
2. job: `run_table_once` in this process, one partition, from an embedded server's log (lz4) to a
   commit; records per CPU second of this process, beside a raw table of the same records.

Aims: 110 MB of JSON and 200 MB of Avro; the job 0.6 (JSON) and 0.7 (Avro) of the raw table and
300,000 and 350,000 flat records; 1 % of bad values costs a fifth at most.
"""

import argparse
import io
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from penstock.kernels.encode import encode
from penstock.pipeline.api_messages import OutputObject, WriteRequest, WriteRun
from penstock.pipeline.client import ClientOptions, PipelineClient
from penstock.pipeline.engine import LocalEngine
from penstock.pipeline.lease import JobLease
from penstock.pipeline.objects import ObjectAccess
from penstock.pipeline.tables.columns import arrow_schema
from penstock.pipeline.tables.dead_letters import _numbers, _run
from penstock.pipeline.tables.decoders import compile_schema
from penstock.pipeline.tables.evolution import Ids, iceberg_fields
from penstock.pipeline.tables.job import run_table_once
from penstock.pipeline.tables.parts import BARE, BARE_ID, VALUE, PartPlan, PartReader
from penstock.pipeline.tables.schema_text import SchemaText
from penstock.pipeline.tables.settings import CatalogSettings, TableSettings
from penstock.segment import build_segment, job_object_key
from penstock.system.randomness import SystemRandom
from support.server import ServerProcess

NOW_MS = 1_700_000_000_000
STEP = 16_384
CHANCE = random.Random(1)
WORDS = ["ATL", "ORD", "DFW", "DEN", "SFO", "LAX", "Hartsfield-Jackson", "O'Hare", "Z\u00fcrich"]


def flat_json(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "origin": CHANCE.choice(WORDS),
        "at": f"2024-02-29T12:{number % 60:02}:00.{CHANCE.randrange(10**6):06}Z",
        "delay": round(CHANCE.gauss(5, 30), 2),
        "flight": CHANCE.randrange(9000),
        "cancelled": CHANCE.random() < 0.02,
        "tail": f"N{CHANCE.randrange(10**5)}",
        "gate": None if CHANCE.random() < 0.5 else f"B{CHANCE.randrange(40)}",
    }


FLAT_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "origin": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "delay": {"type": "number"},
        "flight": {"type": "integer"},
        "cancelled": {"type": "boolean"},
        "tail": {"type": "string"},
        "gate": {"type": ["null", "string"]},
    },
    "required": ["id"],
}
NESTED_JSON = {
    "type": "object",
    "properties": {
        **{f"group_{name}": FLAT_JSON for name in "abcd"},
        "legs": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"from": {"type": "string"}, "miles": {"type": "number"}},
            },
        },
        "note": {"type": "string"},
    },
}


def nested(number: int, flat: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    return {
        **{f"group_{name}": flat(number) for name in "abcd"},
        "legs": [{"from": CHANCE.choice(WORDS), "miles": CHANCE.random()} for _ in range(4)],
        "note": "x" * CHANCE.randrange(300),
    }


def flat_avro(number: int) -> dict[str, Any]:
    at = NOW_MS * 1000 + CHANCE.randrange(10**9)
    return {**flat_json(number), "at": at, "tail": "N" * 100}


FLAT_AVRO = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "origin", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "delay", "type": "double"},
        {"name": "flight", "type": "int"},
        {"name": "cancelled", "type": "boolean"},
        {"name": "tail", "type": "string"},
        {"name": "gate", "type": ["null", "string"]},
    ],
}
NESTED_AVRO = {
    "type": "record",
    "name": "Nested",
    "fields": [
        {"name": "group_a", "type": FLAT_AVRO},
        *({"name": f"group_{name}", "type": "Flat"} for name in "bcd"),
        {
            "name": "legs",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Leg",
                    "fields": [
                        {"name": "from", "type": "string"},
                        {"name": "miles", "type": "double"},
                    ],
                },
            },
        },
        {"name": "note", "type": "string"},
    ],
}


def avro_bytes(schema: Any) -> Callable[[Any], bytes]:
    parsed = fastavro.parse_schema(schema)

    def encoded(value: Any) -> bytes:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, value)
        return stream.getvalue()

    return encoded


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


CASES: dict[str, tuple[str, Any, Callable[[int], bytes]]] = {
    "flat JSON": ("JSON", FLAT_JSON, lambda n: json_bytes(flat_json(n))),
    "nested JSON": ("JSON", NESTED_JSON, lambda n: json_bytes(nested(n, flat_json))),
    "flat Avro": ("AVRO", FLAT_AVRO, lambda n: avro_bytes(FLAT_AVRO)(flat_avro(n))),
    "nested Avro": ("AVRO", NESTED_AVRO, lambda n: avro_bytes(NESTED_AVRO)(nested(n, flat_avro))),
}


def damaged(values: list[bytes]) -> list[bytes]:
    return [value[:-1] if index % 100 == 7 else value for index, value in enumerate(values)]


def median_cpu_s(work: Callable[[], Any]) -> float:
    work()
    found = []
    for _ in range(3):
        before = time.process_time()
        work()
        found.append(time.process_time() - before)
    return statistics.median(found)


def decoding(name: str) -> None:
    kind, schema, value_of = CASES[name]
    text = SchemaText(kind=kind, text=json.dumps(schema))
    record = compile_schema(text, framed=False).type
    columns = arrow_schema(Schema(*iceberg_fields(record, Ids(1))))
    values = [value_of(number) for number in range(STEP)]
    plan = PartPlan(kind=BARE, schemas={BARE_ID: text})
    for share, payloads in (("", values), (", 1 % bad", damaged(values))):
        column = pa.chunked_array([payloads], pa.binary())
        reader = PartReader(plan, pa.struct(list(columns)), VALUE)
        size = sum(map(len, payloads))
        cpu_s = median_cpu_s(lambda: [reader.read(column) for _ in range(10)]) / 10  # noqa: B023
        print(
            f"decoding {name}{share}: {size / STEP:.0f} B, {size / cpu_s / 1e6:.0f} MB and "
            f"{STEP / cpu_s:,.0f} values per CPU second",
            flush=True,
        )


def load(client: PipelineClient, topic: str, values: list[bytes]) -> None:
    """Write records by the API, one partition."""
    (state,) = client.topics(names=[topic]).topics
    chunk = 100_000
    with JobLease(client, kind="write", name="bench") as job, ObjectAccess(client) as objects:
        for number, start in enumerate(range(0, len(values), chunk)):
            part = pa.array(values[start : start + chunk], pa.binary())
            times = np.full(len(part), NOW_MS)
            batches = encode(pa.nulls(len(part), pa.binary()), part, times, codec="lz4")
            run = _run(state.topic_id, 0, batches)
            segment = build_segment([run], offsets_final=False)
            key = job_object_key(job=job.job, name=SystemRandom().token_bytes(16).hex())
            objects.put(key, segment.parts)
            client.write(
                WriteRequest(
                    job=job.job,
                    writer_id=f"once-bench-{topic}",
                    batch_id=number + 1,
                    incarnation="bench",
                    objects=[OutputObject(key=key, size_bytes=segment.size_bytes)],
                    runs=[
                        WriteRun(
                            topic_id=state.topic_id,
                            partition=0,
                            object=0,
                            position=segment.positions[0],
                            batches=_numbers(batches),
                        )
                    ],
                )
            )


def job(server: ServerProcess, root: Path, name: str, records: int) -> None:
    kind, schema, value_of = CASES[name]
    values = [value_of(number) for number in range(records)]
    text = SchemaText(kind=kind, text=json.dumps(schema))
    raw = 0.0
    for share, payloads in (("", values), (", 1 % bad", damaged(values))):
        topic = f"{name}{share}".replace(" ", "-").replace(",", "").replace("%", "p")
        for created in (topic, f"{topic}.dlq"):
            subprocess.run(
                [
                    *(sys.executable, "-m", "penstock", "topic", "create", created),
                    *("--partitions", "1", "--server", server.bootstrap),
                ],
                check=True,
                capture_output=True,
            )
        with PipelineClient(ClientOptions(urls=(f"http://{server.http}",))) as client:
            load(client, topic, payloads)
            for typed in (False, True) if not share else (True,):
                rates = []
                for again in range(4):
                    name_of = f"{topic.replace('-', '_')}_{'typed' if typed else 'raw'}{again}"
                    settings = TableSettings(
                        topic=topic,
                        catalog=CatalogSettings(warehouse=str(root)),
                        table=f"bench.{name_of}",
                        **({"schema": "file", "value_schema": text} if typed else {}),
                    )
                    before = time.process_time()
                    summary = run_table_once(client, LocalEngine(1), settings)
                    rates.append(records / (time.process_time() - before))
                    assert summary.rows + summary.bad_records == records, summary
                rate = statistics.median(rates[1:])
                if not typed:
                    raw = rate
                print(
                    f"job {name}{share}, {'typed' if typed else 'raw'}: {rate:,.0f} records per "
                    f"CPU second, {rate / raw:.2f} of raw",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--decoding", action="store_true", help="only decoding")
    arguments = parser.parse_args()
    for name in CASES:
        decoding(name)
    if arguments.decoding:
        return
    with tempfile.TemporaryDirectory(prefix="bench-typed-") as folder:
        root = Path(folder)
        server = ServerProcess(root / "data", root / "log")
        server.start()
        try:
            for name in ("flat JSON", "flat Avro", "nested JSON", "nested Avro"):
                records = arguments.records // (6 if "nested" in name else 1)
                job(server, root / "warehouse", name, records)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
