"""Bits that change where they are stored or on their way, and are put right again.

Damage is put right after a while, as by an operator who has another copy, so that at the end of a
run everything can be read: meanwhile no client may get a wrong record, and nothing may copy the
damage to where it would stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.wal.format import FILE_HEADER_BYTES, FRAMES_START, generation_of
from penstock.wal.recovery import find_files
from sim.foreign import foreign

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.chance import Chance
    from sim.world import World
    from support.simulated.device import SimulatedDevice


MOMENT_S = 6.0
RECENT_BYTES = 1_500


@dataclass(slots=True, eq=False)
class ObjectDamage:
    """A stored object with another content."""

    key: str
    right: bytes
    wrong: bytes
    right_version: int


@dataclass(slots=True, eq=False)
class WalDamage:
    """One bit of a WAL file."""

    device: SimulatedDevice
    name: str
    position: int
    bit: int
    generation: int
    wrong: int
    """The byte with the bit changed."""


class Rot:
    """What is damaged now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._objects: list[ObjectDamage] = []
        self._wals: list[WalDamage] = []
        self._mended: list[tuple[SimulatedDevice, float]] = []
        """Devices of WALs that were put right, and when."""
        self._until_s = 0.0
        self.reply_permille = 0
        """Replies of peers that arrive with a bit changed."""

    @property
    def is_stored(self) -> bool:
        """Whether anything that is stored is damaged, or was a moment ago."""
        if self._objects or self._wals:
            self._until_s = self._world.loop.time() + MOMENT_S
        return self._world.loop.time() < self._until_s

    def is_in(self, device: SimulatedDevice) -> bool:
        """Whether a WAL is damaged, or was a moment ago: who has met that may not have said so."""
        since_s = self._world.loop.time() - MOMENT_S
        return any(damage.device is device for damage in self._wals) or any(
            mended is device and mended_s >= since_s for mended, mended_s in self._mended
        )

    def damage_object(self, chance: Chance) -> ObjectDamage | None:
        """Change one bit of a segment, or let two change places."""
        objects = self._world.bucket.objects
        keys = [key for key in sorted(objects) if key.startswith(self._world.segments_prefix)]
        keys = [key for key in keys if not any(damage.key == key for damage in self._objects)]
        if not keys:
            return None
        # What was put last is what is read.
        key = keys[-1 - min(chance.below(len(keys)), chance.below(len(keys)))]
        right = objects[key].data
        is_replaced = chance.happens(0.3)
        if is_replaced:
            wrong = objects[chance.pick(keys)].data
        else:
            changed = bytearray(right)
            changed[chance.below(len(right))] ^= 1 << chance.below(8)
            wrong = bytes(changed)
        if wrong == right:
            return None
        return self._replace(key, wrong, is_put=is_replaced)

    def swap_object(self, chance: Chance) -> ObjectDamage | None:
        """Let one object have the bytes of another of the same length."""
        objects = self._world.bucket.objects
        keys = [key for key in sorted(objects) if key.startswith(self._world.segments_prefix)]
        keys = [key for key in keys if not any(damage.key == key for damage in self._objects)]
        for key in chance.shuffled(keys)[:10]:
            right = objects[key].data
            fitting = [objects[other].data for other in keys if other != key]
            fitting = [wrong for wrong in fitting if len(wrong) == len(right) and wrong != right]
            if fitting:
                return self._replace(key, chance.pick(fitting), is_put=True)
        return None

    def replace_object(self, chance: Chance) -> ObjectDamage | None:
        """Let an object have the bytes of another cluster's of the same layout."""
        objects = self._world.bucket.objects
        keys = [key for key in sorted(objects) if key.startswith(self._world.segments_prefix)]
        keys = [key for key in keys if not any(damage.key == key for damage in self._objects)]
        if not keys:
            return None
        key = keys[-1 - min(chance.below(len(keys)), chance.below(len(keys)))]
        return self._replace(key, foreign(objects[key].data), is_put=True)

    def _replace(self, key: str, wrong: bytes, *, is_put: bool) -> ObjectDamage:
        """
        Args:
            is_put: something put it, so that its version is another: rot leaves that as it was.
        """
        found = self._world.bucket.objects[key]
        right, right_version = found.data, found.version
        found.data = wrong
        if is_put:
            found.version = self._world.bucket.next_version()
        self._world.note(f"rot in {key}")
        self._world.history.count("rot in an object")
        damage = ObjectDamage(key, right, wrong, right_version)
        self._objects.append(damage)
        self._until_s = self._world.loop.time() + MOMENT_S
        return damage

    def undamaged(self, key: str) -> bytes | None:
        """An object as it was put; None: there is none."""
        found = self._world.bucket.objects.get(key)
        if found is None:
            return None
        for damage in self._objects:
            if damage.key == key and found.data is damage.wrong:
                return damage.right
        return found.data

    def mend_object(self, damage: ObjectDamage) -> None:
        """Put it right, if it is there and nothing else has been put in its place."""
        if damage not in self._objects:
            return
        self._objects.remove(damage)
        found = self._world.bucket.objects.get(damage.key)
        if found is not None and found.data is damage.wrong:
            found.data = damage.right
            found.version = damage.right_version

    def damage_wal(self, agent: Agent, chance: Chance) -> WalDamage | None:
        """Change one bit of a frame."""
        device = agent.device
        files = [file for file in find_files(device) if file.header is not None]
        if not files:
            return None
        file = chance.pick(files)
        if chance.happens(0.7):
            # What was written last has not been moved.
            file = max(files, key=lambda found: found.header.generation if found.header else 0)
        opened = device.open(file.name)
        data = opened.read_at(FRAMES_START, file.size_bytes - FRAMES_START)
        opened.close()
        used = len(data.rstrip(b"\0"))
        if not used:
            return None
        first = max(0, used - RECENT_BYTES) if chance.happens(0.7) else 0
        position = FRAMES_START + first + chance.below(used - first)
        bit = chance.below(8)
        device.flip_bit(file.name, position, bit)
        assert file.header is not None
        wrong = data[position - FRAMES_START] ^ 1 << bit
        damage = WalDamage(device, file.name, position, bit, file.header.generation, wrong)
        self._wals.append(damage)
        self._world.note(f"rot in {agent.name}'s {file.name} at {position}")
        self._world.history.count("rot in a WAL")
        return damage

    def mend_wal(self, damage: WalDamage) -> None:
        """Put it right, unless the file has been used again since, or the block that holds the byte
        was written again with what follows it."""
        if damage not in self._wals:
            return
        self._wals.remove(damage)
        self._mended.append((damage.device, self._world.loop.time()))
        try:
            file = damage.device.open(damage.name)
        except FileNotFoundError:
            return
        is_same = generation_of(file.read_at(0, FILE_HEADER_BYTES)) == damage.generation
        if is_same and file.read_at(damage.position, 1) == bytes([damage.wrong]):
            damage.device.flip_bit(damage.name, damage.position, damage.bit)
        file.close()

    def forget_device(self, device: SimulatedDevice) -> None:
        """It lost power, and what it kept is on another one."""
        self._wals = [damage for damage in self._wals if damage.device is not device]

    def changed_reply(self, data: bytes, chance: Chance) -> bytes:
        """A peer's reply as it arrives."""
        if not data or chance.below(1000) >= self.reply_permille:
            return data
        changed = bytearray(data)
        changed[chance.below(len(data))] ^= 1 << chance.below(8)
        self._world.history.count("rot in a reply")
        return bytes(changed)

    def mend(self) -> None:
        """Put everything right."""
        self.reply_permille = 0
        for damage in list(self._objects):
            self.mend_object(damage)
        for wal_damage in list(self._wals):
            self.mend_wal(wal_damage)
