"""Places: how many in all and per address, and which idle connections make room."""

from dataclasses import dataclass, field

from penstock.kafka.net.admission import ROOM_IDLE_S, Admission, AdmissionLimits


@dataclass(eq=False)
class Client:
    """A connection; `idle_s`: since when it is idle, None: it isn't."""

    admission: "Admission[Client]"
    client_host: str = "10.0.0.1"
    since_s: float | None = None
    ended: list[bool] = field(default_factory=list)
    looked: int = 0

    def idle_since_s(self) -> float | None:
        self.looked += 1
        return self.since_s

    def end_idle(self, *, for_room: bool) -> None:
        self.ended.append(for_room)
        self.admission.leave(self)


def opened(
    admission: "Admission[Client]", *sinces: float | None, host: str = "10.0.0.1"
) -> list[Client]:
    clients = [Client(admission, host, since_s) for since_s in sinces]
    assert [admission.refusal(client, 0) for client in clients] == [""] * len(clients)
    return clients


def test_the_one_that_is_idle_for_longest_makes_room() -> None:
    admission: Admission[Client] = Admission(AdmissionLimits(connections_max=3))
    clients = opened(admission, 50, 10, 30)
    opened_s = 100.0
    assert admission.refusal(Client(admission, since_s=opened_s), opened_s) == ""
    assert [client.ended for client in clients] == [[], [True], []]
    assert admission.refusal(Client(admission, since_s=opened_s), opened_s) == ""
    assert [client.ended for client in clients] == [[], [True], [True]]
    assert len(admission.open) == 3


def test_of_the_address_that_has_the_most() -> None:
    admission: Admission[Client] = Admission(AdmissionLimits(connections_max=4))
    (other,) = opened(admission, 0, host="10.0.0.2")
    many = opened(admission, 50, 40, 60)
    assert admission.refusal(Client(admission, "10.0.0.3"), 100) == ""
    assert not other.ended
    assert [client.ended for client in many] == [[], [True], []]


def test_none_that_works_or_was_just_used_makes_room() -> None:
    admission: Admission[Client] = Admission(AdmissionLimits(connections_max=2))
    clients = opened(admission, None, 100.5 - ROOM_IDLE_S)
    assert admission.refusal(Client(admission), 100) == "connections_max"
    assert not any(client.ended for client in clients)
    # Once more a moment later: it isn't looked at all of them each time.
    looked = clients[0].looked
    assert admission.refusal(Client(admission), 100.1) == "connections_max"
    assert clients[0].looked == looked
    assert admission.refusal(Client(admission), 101) == ""
    assert clients[1].ended == [True]


def test_one_that_became_busy_after_it_was_found_stays() -> None:
    admission: Admission[Client] = Admission(AdmissionLimits(connections_max=200))
    clients = opened(admission, *range(200))
    # Two are found, the first of which goes.
    assert admission.refusal(Client(admission, since_s=1000), 1000) == ""
    clients[1].since_s = None
    assert admission.refusal(Client(admission, since_s=1000), 1000) == ""
    assert [number for number, client in enumerate(clients) if client.ended] == [0, 2]


def test_room_for_many_is_made_in_few_looks() -> None:
    admission: Admission[Client] = Admission(AdmissionLimits(connections_max=1000))
    clients = opened(admission, *[0.0] * 1000)
    for _ in range(500):
        assert admission.refusal(Client(admission, since_s=100), 100) == ""
    assert sum(client.looked for client in clients) < 60_000


def test_an_address_has_a_limit_of_its_own() -> None:
    limits = AdmissionLimits(
        connections_max=100, per_address_max=2, per_address_overrides={"10.0.0.9": 3}
    )
    admission: Admission[Client] = Admission(limits)
    first, _ = opened(admission, 0, 0)
    assert admission.refusal(Client(admission), 100) == "max_connections_per_ip"
    assert not first.ended
    opened(admission, 0, 0, 0, host="10.0.0.9")
    assert admission.refusal(Client(admission, "10.0.0.9"), 100) == "max_connections_per_ip"
    assert admission.leave(first)
    assert not admission.leave(first)
    assert admission.refusal(Client(admission), 100) == ""


def test_idle_ones_end_after_their_time() -> None:
    admission: Admission[Client] = Admission(AdmissionLimits(connections_max=10))
    clients = opened(admission, 0, 41, None)
    admission.end_idle(100, 60)
    assert [client.ended for client in clients] == [[False], [], []]
