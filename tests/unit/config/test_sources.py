"""Settings come from defaults, file, environment, command line, each above those before it."""

import re
from pathlib import Path

import pytest

import penstock
from penstock.config.checks import check_places
from penstock.config.fields import setting_fields
from penstock.config.settings import ServerSettings
from penstock.config.sources import load_settings
from penstock.model.errors import InvalidRequestError, NotFoundError

SECRET = "0123456789abcdef"


def load(
    toml: str | None = None,
    environment: dict[str, str] | None = None,
    command_line: dict[str, str] | None = None,
    *,
    folder: Path | None = None,
) -> ServerSettings:
    file = None
    if toml is not None:
        assert folder is not None
        file = folder / "penstock.toml"
        file.write_text(toml)
    return load_settings(file=file, environment=environment or {}, command_line=command_line or {})


def test_without_sources_every_setting_has_its_default() -> None:
    assert load() == ServerSettings()


def test_each_source_overrides_those_before_it(tmp_path: Path) -> None:
    settings = load(
        'segment_bytes = "1MiB"\nblock_bytes = 65536\nfsync = false\ndata = "from-file"',
        {"PENSTOCK_SEGMENT_BYTES": "2MiB", "PENSTOCK_DATA": "from-environment", "OTHER": "x"},
        {"data": "from-command-line"},
        folder=tmp_path,
    )
    assert settings.segment_bytes == 2 << 20
    assert settings.block_bytes == 65536
    assert not settings.fsync
    assert settings.data == "from-command-line"


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "named.toml"
    file.write_text("connections_max = 7")
    assert load(environment={"PENSTOCK_CONFIG": str(file)}).connections_max == 7


def test_every_setting_can_be_given_by_each_source(tmp_path: Path) -> None:
    for field in setting_fields().values():
        text = field.show(field.default)
        assert getattr(load(command_line={field.name: text}), field.name) == field.default
        assert getattr(load(environment={field.variable: text}), field.name) == field.default
        quoted = load(f'{field.name} = "{text}"', folder=tmp_path)
        assert getattr(quoted, field.name) == field.default


@pytest.mark.parametrize(
    ("environment", "nearest"),
    [
        ({"PENSTOCK_SEGMNT_BYTES": "1"}, "PENSTOCK_SEGMENT_BYTES"),
        ({"PENSTOCK_WAL_MAX_BYTES": "1"}, "PENSTOCK_WAL_BYTES_MAX"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_name(
    environment: dict[str, str], nearest: str
) -> None:
    with pytest.raises(InvalidRequestError, match=nearest) as refusal:
        load(environment=environment)
    assert next(iter(environment)) in str(refusal.value)


@pytest.mark.slow
def test_whatever_variable_some_part_of_the_program_reads_a_server_puts_up_with(
    tmp_path: Path,
) -> None:
    """They stand in one environment file or container with the server's own."""
    root = Path(penstock.__path__[0])
    texts = [path.read_text() for path in root.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"\bPENSTOCK_[A-Z_]*[A-Z]\b", text)}
    file = tmp_path / "empty.toml"
    file.touch()
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    values = {"PENSTOCK_CONFIG": str(file), "PENSTOCK_CLUSTER_SECRET_FILE": str(secret)}
    for field in setting_fields().values():
        values[field.variable] = field.show(field.default)
    assert {"PENSTOCK_CLUSTER_SECRET_FILE", "PENSTOCK_REGISTRY_USER"} < named
    for name in sorted(named):
        load(environment={name: values.get(name, "x")})


def test_what_kubernetes_says_of_a_service_with_our_name_is_no_setting() -> None:
    """Every pod of a namespace gets these, unless enableServiceLinks is false."""
    load(
        environment={
            "PENSTOCK_SERVICE_HOST": "10.0.0.11",
            "PENSTOCK_SERVICE_PORT": "9092",
            "PENSTOCK_SERVICE_PORT_KAFKA": "9092",
            "PENSTOCK_PORT": "tcp://10.0.0.11:9092",
            "PENSTOCK_PORT_9092_TCP": "tcp://10.0.0.11:9092",
            "PENSTOCK_PORT_9092_TCP_PROTO": "tcp",
            "PENSTOCK_PORT_9092_TCP_PORT": "9092",
            "PENSTOCK_PORT_9092_TCP_ADDR": "10.0.0.11",
            "PENSTOCK_HEADLESS_SERVICE_HOST": "10.0.0.12",
            "PENSTOCK_HEADLESS_PORT": "tcp://10.0.0.12:9092",
        }
    )
    with pytest.raises(InvalidRequestError, match="PENSTOCK_PORT"):
        load(environment={"PENSTOCK_PORT": "9092"})


def test_the_environment_may_name_a_file_that_holds_the_secret(tmp_path: Path) -> None:
    """As systemd's credentials and Kubernetes' secrets do; jobs read it from there, too."""
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    named = {"PENSTOCK_CLUSTER_SECRET_FILE": str(file)}
    assert load(environment=named).cluster_secret == SECRET
    assert load(
        'cluster_secret = "of-the-settings-file"', named, folder=tmp_path
    ).cluster_secret == (SECRET)
    given = {"cluster_secret": "of-the-command-line"}
    assert load(environment=named, command_line=given).cluster_secret == given["cluster_secret"]
    assert load(environment={"PENSTOCK_CLUSTER_SECRET_FILE": ""}).cluster_secret == ""


def test_a_secret_s_file_that_is_not_there_or_holds_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(InvalidRequestError, match=str(file)):
        load(environment={"PENSTOCK_CLUSTER_SECRET_FILE": str(file)})
    file.write_text(" \n")
    with pytest.raises(InvalidRequestError, match=str(file)):
        load(environment={"PENSTOCK_CLUSTER_SECRET_FILE": str(file)})


def test_a_command_that_only_reads_a_cluster_needs_no_more_than_its_places(tmp_path: Path) -> None:
    """What differs between agents, and the secret, is in their environment and not in the file."""
    file = tmp_path / "penstock.toml"
    file.write_text(
        'kafka = "0.0.0.0:9092"\nhttp = "0.0.0.0:8080"\nallow_insecure = true\n'
        'journal = "postgresql://db/penstock"\nobjects = "s3://logs/prod"\n'
    )
    settings = load_settings(file=file, environment={}, command_line={}, check=check_places)
    assert settings.objects == "s3://logs/prod"
    with pytest.raises(InvalidRequestError):
        load_settings(file=file, environment={}, command_line={})


def test_an_unknown_key_of_a_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"did you mean advertised\?"):
        load('advertized = "a:1"', folder=tmp_path)


@pytest.mark.parametrize(
    ("toml", "environment", "told"),
    [
        (
            'wal_bytes_max = "lots"',
            {},
            ["wal_bytes_max", "'lots'", "penstock.toml", "2MiB to 1TiB"],
        ),
        ("fsync = 1", {}, ["fsync", "true or false"]),
        ("default_partitions = true", {}, ["default_partitions", "from 1 to 10000"]),
        ("data = 5", {}, ["data", "text"]),
        ("segment_age_ms = [1]", {}, ["segment_age_ms", "10s"]),
        (None, {"PENSTOCK_DEFAULT_PARTITIONS": "0"}, ["PENSTOCK_DEFAULT_PARTITIONS", "'0'"]),
        (None, {"PENSTOCK_LOG_LEVEL": "loud"}, ["debug, info, warning, error"]),
    ],
)
def test_a_bad_value_is_refused_with_name_value_source_and_what_is_allowed(
    toml: str | None, environment: dict[str, str], told: list[str], tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        load(toml, environment, folder=tmp_path)
    for part in told:
        assert part in str(refusal.value)


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="missing"):
        load_settings(file=tmp_path / "missing.toml", environment={}, command_line={})
    with pytest.raises(InvalidRequestError, match="not TOML"):
        load("data = ", folder=tmp_path)


@pytest.mark.parametrize(
    "toml", ['labels = {zone = "a", region = "eu"}', 'labels = "zone=a, region=eu"']
)
def test_labels_are_a_table_or_text(toml: str, tmp_path: Path) -> None:
    assert load(toml, folder=tmp_path).labels == {"region": "eu", "zone": "a"}


@pytest.mark.parametrize("text", ["zone", "zone=", "=a", "zone=a,zone=b", "zone=a,,"])
def test_labels_that_name_nothing_or_twice_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="names with values"):
        load(environment={"PENSTOCK_LABELS": text})


def test_a_secret_is_never_shown() -> None:
    field = setting_fields()["cluster_secret"]
    assert "0123" not in field.show("0123456789abcdef")
    with pytest.raises(InvalidRequestError) as refusal:
        load(command_line={"cluster_secret": "0123"})
    assert "0123" not in str(refusal.value)
