"""What is served, and what the documentation says of it, against the APIs of Kafka 4.3.1."""

from pages.kafka import NOT_SERVED, apis_page
from pages.kafka_4_3 import BROKER_APIS, UNSUPPORTED
from penstock.kafka.net.unserved import NAMES
from penstock.kafka.registry import APIS


def test_each_api_of_a_broker_is_served_or_has_a_reason() -> None:
    names = {key: name for key, (name, _) in BROKER_APIS.items()}
    served = {key: api.name for key, api in APIS.items()}
    declined = {key: name for key, name in names.items() if name in NOT_SERVED}
    assert served | declined == names
    assert not served.keys() & declined.keys()
    assert set(NOT_SERVED) == set(declined.values())
    assert declined == NAMES


def test_what_is_served_is_served_in_all_versions_of_kafka() -> None:
    for key, api in APIS.items():
        assert BROKER_APIS[key][1] != UNSUPPORTED
        assert (api.advertised_min, api.versions_max) == BROKER_APIS[key][1], api.name


def test_the_page_has_a_row_of_each() -> None:
    page = apis_page()
    for key, (name, _) in BROKER_APIS.items():
        assert f"| {key} | {name} |" in page
