"""The table of APIs against the handler modules, kio's schemas and Kafka's error table."""

import importlib
import importlib.util
import subprocess
import sys

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from penstock.kafka.errors import ErrorCode, error_code, refusal_code
from penstock.kafka.registry import APIS, Api
from penstock.kafka.wire import schema
from penstock.model import errors as model_errors
from penstock.state.answers import Refusal
from support.parsing import versions_of

by_name = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


@by_name
def test_a_handler_serves_what_the_table_says(api: Api) -> None:
    name = f"penstock.kafka.handlers.{api.module}"
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not there yet")
    handler = importlib.import_module(name)
    assert hasattr(handler, "serve" if getattr(handler, "RAW", False) else "handle")


@by_name
def test_keys_and_flexible_versions_are_the_schemas(api: Api) -> None:
    for version in versions_of(api.module):
        for kind in ("Request", "Response"):
            entity = schema._entity_type(api.module, version, kind)
            assert entity.__api_key__ == api.key  # type: ignore[attr-defined]
            assert entity.__flexible__ == (version >= api.flexible_from)  # type: ignore[attr-defined]


def test_error_codes_are_kafkas() -> None:
    for code in ErrorCode:
        assert KioErrorCode[code.name.lower()].value == code


def test_every_refusal_and_every_error_of_ours_has_a_code() -> None:
    for refusal in Refusal:
        assert isinstance(refusal_code(refusal), ErrorCode)
    for kind in vars(model_errors).values():
        if isinstance(kind, type) and kind is not model_errors.PenstockError:
            # Some ask for more than the root of all errors does.
            error = kind.__new__(kind)
            model_errors.PenstockError.__init__(error, "do", "thing", "why")
            assert error_code(error) is not ErrorCode.UNKNOWN_SERVER_ERROR
    assert error_code(ValueError()) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_first_answers_need_nothing_of_kio() -> None:
    program = (
        "import sys\n"
        "import penstock.kafka.net.server\n"
        "import penstock.kafka.handlers.api_versions, penstock.kafka.handlers.metadata\n"
        "sys.exit(sum(name.split('.')[0] == 'kio' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
