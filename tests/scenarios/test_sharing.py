"""Workers that share their work: is each job done by one of them, and none forgotten?"""

from __future__ import annotations

from penstock.mqtt.kinds import MQTT_5
from penstock.mqtt.packets import Puback, Publish
from penstock.mqtt.reasons import Reason
from tests.doors.hosted import Hosted
from tests.scenarios.actors import BOTH, Actor, numbers, seeded


@BOTH
def test_jobs_are_divided(broker: Hosted, name: str, version: int) -> None:
    """Four workers, a hundred jobs: has each its part, and is every job done once?"""
    workers = [Actor(broker, f"{name}{at}", version) for at in range(4)]
    for worker in workers:
        worker.subscribe(f"$share/team/{name}/#", qos=1)
    with Actor(broker, name + "p", version) as boss:
        boss.publish_all(f"{name}/job", 100, qos=1)
    done = [worker.heard() for worker in workers]
    assert sorted(int(one) for part in done for one in part) == list(range(100))
    assert all(part for part in done)
    for worker in workers:
        worker.close()


@BOTH
def test_work_of_those_who_fall_is_taken_over(broker: Hosted, name: str, version: int) -> None:
    """Workers die in the middle of their jobs: does somebody else get every job not done?"""
    chance = seeded()
    hired = 0

    def hire() -> Actor:
        nonlocal hired
        hired += 1
        worker = Actor(broker, f"{name}{hired}", version)
        worker.subscribe(f"$share/team/{name}", qos=1)
        return worker

    workers = [hire() for _ in range(3)]
    done: set[bytes] = set()
    with Actor(broker, name + "p", version) as boss:
        for number in range(60):
            boss.publish(name, b"%d" % number, 1)
            at = chance.randrange(3)
            for packet in workers[at].settle():
                assert isinstance(packet, Publish)
                if chance.random() < 0.6:
                    done.add(packet.payload)
                    workers[at].send(Puback(packet.packet_id))
            if chance.random() < 0.3:
                workers[at].settle()
                workers[at].close()
                workers[at] = hire()
        last = hire()
        for worker in workers:
            done.update(worker.heard())
            worker.close()
        while len(done) < 60:
            done.add(last.receive().payload)
    assert done == set(numbers(0, 60))
    last.close()


@BOTH
def test_team_and_auditor_side_by_side(broker: Hosted, name: str, version: int) -> None:
    """Two teams and somebody who reads everything: is each of the three complete?"""
    teams = {
        team: [Actor(broker, f"{name}{team}{at}", version) for at in range(2)] for team in "ab"
    }
    for team, members in teams.items():
        for member in members:
            member.subscribe(f"$share/{team}/{name}", qos=1)
    with Actor(broker, name, version) as auditor, Actor(broker, name + "p", version) as boss:
        auditor.subscribe(name, qos=1)
        boss.publish_all(name, 40, qos=1)
        assert auditor.receive_all(40) == numbers(0, 40)
    for members in teams.values():
        done = [one for member in members for one in member.heard()]
        assert sorted(done) == sorted(numbers(0, 40))
        for member in members:
            member.close()


def test_team_that_goes_home_finds_its_work_in_the_morning(broker: Hosted, name: str) -> None:
    """All members are away: does the work wait, and is it divided when they are back?"""
    for at in range(3):
        member = Actor(broker, f"{name}{at}", MQTT_5, stays=True)
        member.subscribe(f"$share/team/{name}", qos=1)
        member.close()
    with Actor(broker, name + "p", MQTT_5) as boss:
        boss.publish_all(name, 30, qos=1)
    members = [
        Actor(broker, f"{name}{at}", MQTT_5, stays=True, receive_maximum=5) for at in range(3)
    ]
    done: list[bytes] = []
    while len(done) < 30:
        for member in members:
            done += member.heard()
    assert sorted(done) == sorted(numbers(0, 30))
    for member in members:
        member.close()


def test_job_that_a_worker_refuses_is_not_tried_again(broker: Hosted, name: str) -> None:
    """Is a job refused with an error gone for the whole team, and are the others done?"""
    workers = [Actor(broker, f"{name}{at}", MQTT_5) for at in range(2)]
    for worker in workers:
        worker.subscribe(f"$share/team/{name}", qos=1)
    done = []
    with Actor(broker, name + "p", MQTT_5) as boss:
        for number in range(20):
            boss.publish(name, b"%d" % number, 1)
            for worker in workers:
                for packet in worker.settle():
                    assert isinstance(packet, Publish)
                    is_bad = int(packet.payload) % 4 == 0
                    reason = Reason.PAYLOAD_FORMAT_INVALID if is_bad else Reason.SUCCESS
                    worker.send(Puback(packet.packet_id, reason))
                    done += [] if is_bad else [int(packet.payload)]
        workers[0].close()
        assert workers[1].heard() == []
    assert sorted(done) == [number for number in range(20) if number % 4]
    workers[1].close()
