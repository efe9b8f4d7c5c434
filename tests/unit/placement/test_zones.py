"""A client's zone, and whom it is sent to."""

import pytest

from penstock.placement.zones import Place, candidates, zone_in_client_id, zone_of


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("penstock_zone=eu-1a", "eu-1a"),
        ("app-7,penstock_zone=eu-1a", "eu-1a"),
        ("penstock_zone=eu-1a,team=x", "eu-1a"),
        ("app;penstock_zone=b;c", "b"),
        ("app penstock_zone=b c", "b"),
        ("rdkafka", ""),
        ("my_penstock_zone=b", ""),
        ("penstock_zone=", ""),
        ("", ""),
    ],
)
def test_a_client_id_names_a_zone(client_id, zone):
    assert zone_in_client_id(client_id) == zone


def test_the_client_id_goes_before_the_rack():
    assert zone_of("penstock_zone=a", "b") == "a"
    assert zone_of("app", "b") == "b"
    assert zone_of(None, "b") == "b"
    assert zone_of(None) == ""


A1 = Place(agent=1, zone="a")
A2 = Place(agent=2, zone="a", draining=True)
B3 = Place(agent=3, zone="b")
N4 = Place(agent=4)


def test_clients_stay_in_their_zone():
    assert candidates([B3, A2, A1], "a") == (1,)
    assert candidates([B3, A2, A1], "b") == (3,)


def test_without_an_agent_in_the_zone_all_of_them_serve():
    assert candidates([B3, A1, N4], "c") == (1, 3, 4)
    assert candidates([B3, A1, N4], "") == (1, 3, 4)
    # The last agent of the zone is drained: the client moves to others.
    assert candidates([B3, A2], "a") == (3,)


def test_agents_that_are_drained_serve_when_nobody_else_does():
    assert candidates([A2], "b") == (2,)
    assert candidates([], "b") == ()
