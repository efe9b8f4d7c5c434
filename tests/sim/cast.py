"""Who takes part in a run: its topics, and the clients that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.admin import Admin
from sim.chance import Chance
from sim.compactor import Cleaner, Compactor
from sim.keyed import KeyedProducer, create_topic
from sim.member import Member
from sim.pipeline import StreamWriter
from sim.producer import Producer
from sim.readers import Consumer, Watcher
from sim.rolling import RollingMember
from sim.sharer import prepare_shares
from sim.tasker import Tasker

if TYPE_CHECKING:
    from sim.world import World

KEYED_SHARE = 0.35
"""Of the runs that have a topic which is compacted by key."""
KEPT_MESSAGES = 10
"""What retention by count leaves of a partition, in half of the runs with a topic kept short."""
GROUP_TOPIC = "group-topic"
ROLLED_TOPIC = "rolled-topic"
ROLLED_PARTITIONS = 3


async def prepare(world: World) -> None:
    """Create the topics and the clients, which do not run yet."""
    chance = world.chance
    admin = Admin(world, "admin")
    await world.within(
        world.heal_s, world.on_node("admin0", admin.create("t0", 2, **world.durability())), "create"
    )
    await world.within(
        world.heal_s, world.on_node("admin1", admin.create("t1", 1, **world.durability())), "create"
    )
    if chance.happens(0.3):
        await _prepare_kept_short(world, admin)
    members = max(chance.pick((0, 2, 3)), world.profile.members_min)
    if members:
        create = admin.create(GROUP_TOPIC, 2, **world.durability())
        await world.within(world.heal_s, world.on_node("admin2", create), "create")
    world.actors = [admin, Watcher(world, "watch0"), Consumer(world, "reads0")]
    world.actors += [
        Producer(world, f"p{number}", world.profile.records_times * (20 + chance.below(60)))
        for number in range(max(chance.pick((1, 2, 3)), world.profile.producers_min))
    ]
    world.actors += [
        Member(world, f"m{number}", "group", GROUP_TOPIC, 2) for number in range(members)
    ]
    if chance.happens(0.5):
        world.actors.append(Consumer(world, "reads1"))
    world.actors += [
        Compactor(world, f"compacts{number}")
        for number in range(max(chance.pick((0, 0, 1, 1, 2)), world.profile.compactors_min))
    ]
    if chance.happens(0.4):
        world.actors.append(StreamWriter(world, "stream", 5 + chance.below(15)))
    await _prepare_keyed(world, admin)


async def prepare_groups(world: World) -> None:
    """Create the topic and the members of groups of all kinds."""
    admin = Admin(world, "admin")
    create = admin.create(ROLLED_TOPIC, ROLLED_PARTITIONS, **world.durability())
    await world.within(world.heal_s, world.on_node("admin5", create), "create")
    world.actors += [
        RollingMember(world, f"r{number}", "rolled", ROLLED_TOPIC, ROLLED_PARTITIONS)
        for number in range(2 + Chance(world.seed ^ 0x726F6C6C).below(3))
    ]
    await prepare_shares(world, ROLLED_TOPIC, 2)
    world.actors += [
        Tasker(world, f"tasks{number}", ROLLED_TOPIC, f"process{number % 2}") for number in range(3)
    ]


async def _prepare_kept_short(world: World, admin: Admin) -> None:
    configs = {"retention_bytes": "1500"}
    # A stream of its own: the other runs stay what they are.
    if Chance(world.seed ^ 0x636F756E74).happens(0.5):
        configs = {"penstock_retention_messages": str(KEPT_MESSAGES)}
        world.history.keeps("kept-short", KEPT_MESSAGES)
    else:
        world.history.expires("kept-short")
    create = admin.create("kept-short", 1, **configs, **world.durability())
    await world.within(world.heal_s, world.on_node("admin3", create), "create")


async def _prepare_keyed(world: World, admin: Admin) -> None:
    # A stream of its own: the other runs stay what they are.
    chance = Chance(world.seed ^ 0x6B65796564)
    if not chance.happens(KEYED_SHARE):
        return
    await world.within(
        world.heal_s, world.on_node("admin4", create_topic(world, admin, chance)), "create"
    )
    world.actors += [
        KeyedProducer(world, f"k{number}", 30 + chance.below(60))
        for number in range(1 + chance.below(2))
    ]
    world.actors += [Cleaner(world, f"cleans{number}") for number in range(1 + chance.below(2))]
