"""`penstock verify` reads places from a server's file, and asks nothing else of it."""

from pathlib import Path

from click.testing import CliRunner

from penstock.cli.main import root


def test_a_file_whose_server_has_the_rest_from_its_environment_is_read(tmp_path: Path) -> None:
    """Where clients find the server differs between agents, which share the file."""
    missing = tmp_path / "nothing-there"
    file = tmp_path / "penstock.toml"
    file.write_text(f'data = "{missing}"\nkafka = "0.0.0.0:9092"\nhttp = "0.0.0.0:8080"\n')
    done = CliRunner().invoke(root, ["verify", "--config", str(file)])
    assert done.exit_code == 2, (done.output, done.exception)
    assert "nothing-there" in done.output
