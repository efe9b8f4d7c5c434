"""Who should claim which shard, from what everybody sees."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.shard_plan import ShardPlan, plan_shards, proposed_owner, shard_candidates
from penstock.state.cluster_tables import GROUP_SHARDS
from penstock.state.rows import Agent, AgentStatus

LIVE, DRAINING, FENCED = AgentStatus.LIVE, AgentStatus.DRAINING, AgentStatus.FENCED
STATUSES = st.dictionaries(st.integers(1, 9), st.sampled_from([LIVE, DRAINING, FENCED]))


def agents(statuses: dict[int, AgentStatus]) -> list[Agent]:
    return [
        Agent(
            agent_id=agent_id,
            epoch=1,
            status=status,
            labels={},
            software="",
            endpoint="",
            peer="",
            level_max=2,
        )
        for agent_id, status in statuses.items()
    ]


@given(STATUSES, st.lists(st.integers(0, 9), min_size=GROUP_SHARDS, max_size=GROUP_SHARDS))
def test_every_shard_is_claimed_by_exactly_the_proposed_agent(statuses, owners):
    def owner(shard: int) -> int | None:
        return owners[shard] or None

    known = agents(statuses)
    candidates = shard_candidates(known)
    plans = {agent: plan_shards(agent, known, owner) for agent in range(1, 10)}
    for shard in range(GROUP_SHARDS):
        claimants = [
            agent for agent, plan in plans.items() if shard in plan.free + plan.drained + plan.moved
        ]
        proposed = proposed_owner(shard, candidates)
        held = owner(shard) == proposed
        assert claimants == ([] if proposed is None or held else [proposed])
        if claimants:
            plan = plans[claimants[0]]
            status = statuses.get(owners[shard], FENCED)
            assert (shard in plan.free) == (status is FENCED)
            assert (shard in plan.drained) == (status is DRAINING)
            assert (shard in plan.moved) == (status is LIVE)


def test_a_new_agent_takes_and_nobody_else_moves_anything():
    before = agents({1: LIVE, 2: LIVE})
    owners = {
        shard: proposed_owner(shard, shard_candidates(before)) for shard in range(GROUP_SHARDS)
    }
    after = agents({1: LIVE, 2: LIVE, 3: LIVE})
    assert plan_shards(1, after, owners.get) == ShardPlan()
    taken = plan_shards(3, after, owners.get)
    assert 10 < len(taken.moved) < 35
    assert not taken.free


def test_an_agent_that_is_drained_keeps_its_shards_when_nobody_else_is_there():
    known = agents({1: DRAINING, 2: FENCED})
    owners = dict.fromkeys(range(GROUP_SHARDS), 1)
    assert plan_shards(1, known, owners.get) == ShardPlan()
    assert len(plan_shards(1, known, {}.get).free) == GROUP_SHARDS
