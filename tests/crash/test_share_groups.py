"""A server that is killed keeps what a share group was told: acknowledged records are not delivered
again, others are, with the delivery count that was journaled."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.server import ServerProcess
from support.share_client import ACCEPT, REJECT, RELEASE, ShareMember

RECORDS = 40


def test_what_was_acknowledged_is_not_delivered_again(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", tmp_path / "server.log")
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        member = ShareMember(server.bootstrap, "g", "t")
        member.beat()
        assert member.fetch([0], wait_s=0) == {}
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for number in range(RECORDS):
            producer.produce("t", value=b"%d" % number)
        producer.flush()
        got = 0
        while got < RECORDS:
            got = member.fetch()[0].acquired[-1][1] + 1
        said = [(0, 9, [ACCEPT]), (12, 14, [REJECT]), (20, 20, [RELEASE]), (25, 29, [ACCEPT])]
        assert member.acknowledge({0: said}) == ("none", {0: "none"})
        # Of the others nothing was said: their delivery is not known to have ended.
        server.kill()
        member.close()
        server.start()
        again = ShareMember(server.bootstrap, "g", "t", member_id=member.member_id)
        # The member is known, and lives on in its epoch.
        assert again.beat(epoch=member.epoch).error_code.name.lower() == "none"
        assert again.offsets(0) == {0: (10, RECORDS - 10 - 3 - 5)}
        found: dict[int, int] = {}
        reply = again.fetch([0])
        while reply:
            for first, last, count in reply[0].acquired:
                found |= dict.fromkeys(range(first, last + 1), count)
            reply = again.fetch(wait_s=0.5)
        left = {*range(10, RECORDS)} - {*range(12, 15)} - {*range(25, 30)}
        assert found == {offset: 2 if offset == 20 else 1 for offset in left}
        assert again.acknowledge({0: [(10, 11, [ACCEPT]), (30, 39, [ACCEPT])]})[0] == "none"
        again.close()
        server.kill()
        server.start()
        third = ShareMember(server.bootstrap, "g", "t", member_id=member.member_id)
        assert third.offsets(0) == {0: (15, 10)}
        third.close()
    finally:
        status = server.stop()
    assert status == 0, server.tail()
