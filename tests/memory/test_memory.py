"""The replay memory against a plain list of transitions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operant.errors import SpecError, UsageError
from operant.memory import Cursor, Replay, RowSpec
from operant.types import Rollout

GAMMA = 0.5  # powers are exact in binary
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@dataclasses.dataclass
class Step:
    """One row of a stream. `s` is unique, so that it names the row."""

    s: int
    a: int
    r: float
    terminated: bool
    truncated: bool
    valid: bool
    stack: tuple[int, ...]
    first: bool


class Stream:
    """Endless episodes of one actor; `pad` says what fills the stack of a first observation."""

    def __init__(self, seed, column, pad="repeat", longest=5, k=3):
        self.random, self.pad, self.longest, self.k = np.random.default_rng(seed), pad, longest, k
        self.count = column * 10000
        self.rows = []

    def unique(self):
        self.count += 1
        return self.count

    def episode(self):
        length = int(self.random.integers(1, self.longest + 1))
        terminated = bool(self.random.integers(2))
        stack = ()
        for i in range(length + 1):
            s = self.unique()
            if i == 0:
                earlier = [self.unique() for _ in range(self.k - 1)]
                stack = {
                    "repeat": (s,) * (self.k - 1),
                    "zero": (0,) * (self.k - 1),
                    "earlier": tuple(earlier),
                }[self.pad]
            stack = (*stack, s)[-self.k :]
            end = i == length - 1
            # What stands in an invalid row means nothing: fill it with what must not be used.
            flags = (True, True, False) if i == length else (end and terminated, end and not terminated, True)
            reward = 1e6 if i == length else float(self.random.integers(-4, 5))
            self.rows.append(Step(s, s % 7, reward, *flags, stack, i == 0))

    def __getitem__(self, index):
        while len(self.rows) <= index:
            self.episode()
        return self.rows[index]


class PlainMemory:
    """Keeps everything; says what a memory of `length` rows and `frames` frames per column still knows."""

    def __init__(self, streams, length, k=1, frames=None):
        self.streams, self.length, self.k, self.frames = streams, length, k, frames
        self.written = [0] * len(streams)

    def block(self, T, columns, stacked=False):
        grid = [[self.streams[c][self.written[c] + t] for c in columns] for t in range(T + 1)]
        for c in columns:
            self.written[c] += T

        def leaf(name, dtype, rows=grid[:-1]):
            return jnp.asarray([[getattr(x, name) for x in row] for row in rows], dtype)

        observation = {"id": leaf("s", jnp.int32, grid)}
        if stacked:
            ids = np.asarray([[x.stack for x in row] for row in grid])
            observation["camera"] = jnp.asarray(np.stack([ids // 256, ids % 256], axis=2), jnp.uint8)
        flags = [leaf(name, bool) for name in ("terminated", "truncated", "valid")]
        extras = {"twice": leaf("s", jnp.int32) * 2, "carry": leaf("s", jnp.float32)}
        return Rollout(observation, {"a": leaf("a", jnp.int32)}, leaf("r", jnp.float32), *flags, extras, ())

    def held(self, c):
        """The rows of a column that are held: the last ones, while the frames of all of them are there."""
        rows = self.streams[c].rows[: self.written[c]]
        number, numbers = 0, []
        for row in rows:
            number += self.k if row.first else 1
            numbers.append(number)
        oldest = max(0, len(rows) - self.length)
        if self.frames is not None:
            while number - (numbers[oldest] - self.k) > self.frames:
                oldest += 1
        return oldest, rows

    def transitions(self, n_step):
        """What may be sampled: id -> (a, reward, discount, id after, stack, stack after)."""
        found = {}
        for c in range(len(self.streams)):
            oldest, rows = self.held(c)
            for t in range(oldest, len(rows) - 1):
                if not rows[t].valid:
                    continue
                reward, discount, i = 0.0, 1.0, t
                while i < min(t + n_step, len(rows) - 1):
                    reward += discount * rows[i].r
                    discount *= GAMMA
                    i += 1
                    if rows[i - 1].terminated or rows[i - 1].truncated:
                        break
                discount *= not rows[i - 1].terminated
                found[rows[t].s] = (rows[t].a, reward, discount, rows[i].s, rows[t].stack, rows[i].stack)
        return found


def size(replay, row):
    """Bytes of a memory for rows like `row`."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda: replay.init(row)))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def example(stacked=False, k=3):
    observation = {"id": jnp.int32(0)}
    if stacked:
        observation["camera"] = jnp.zeros((2, k), jnp.uint8)
    return RowSpec(observation, {"a": jnp.int32(0)}, {"twice": jnp.int32(0), "carry": jnp.float32(0)})


@functools.cache
def compiled(replay):
    sample = jax.jit(
        lambda state, key, n_step: replay.sample(state, key, 512, jnp.float32(GAMMA), n_step=n_step),
        static_argnums=2,
    )
    sequences = jax.jit(
        lambda state, key, length: replay.sample_sequences(state, key, 256, length), static_argnums=2
    )
    return jax.jit(replay.add, donate_argnums=0), sample, sequences


def unstack(camera):
    return tuple(map(tuple, np.asarray(camera[..., 0, :], int) * 256 + np.asarray(camera[..., 1, :], int)))


def check_samples(replay, state, plain, key, n_step, stacked=False):
    """Every sample is a transition of the plain memory, and every transition is sampled."""
    expected = plain.transitions(n_step)
    assert int(replay.size(state)) == len(expected)
    assert int(replay.rows(state)) == sum(
        len(rows) - oldest for oldest, rows in map(plain.held, range(replay.columns))
    )
    batch = jax.device_get(compiled(replay)[1](state, key, n_step))
    if not expected:
        assert not batch.weight.any() and not batch.discount.any()
        return
    assert (batch.weight > 0).all()
    stacks = (
        (unstack(batch.observation["camera"]), unstack(batch.next_observation["camera"])) if stacked else None
    )
    for i, s in enumerate(batch.observation["id"].tolist()):
        a, reward, discount, after, stack, stack_after = expected[s]
        assert batch.action["a"][i] == a
        assert batch.reward[i] == reward
        assert batch.discount[i] == discount
        assert batch.next_observation["id"][i] == after
        assert batch.extras["twice"][i] == 2 * s
        if stacked:
            assert stacks[0][i] == stack
            assert stacks[1][i] == stack_after
    # 512 draws miss one of at most 26 rows with probability below 26 (25/26)^512 = 5e-8.
    assert set(batch.observation["id"].tolist()) == set(expected)


def sampleable(state):
    """Ids of the rows whose weight in the sum tree is above zero."""
    positive = np.flatnonzero(np.asarray(state.priorities[0]))
    return set(np.asarray(state.rows["observation"]["id"])[positive].tolist())


REPLAYS = [
    Replay(18, 3),
    Replay(26, 3, prioritised=True),  # rounded up to 27
    Replay(5, 1, prioritised=True),
]
plans = st.lists(
    st.tuples(st.sampled_from([1, 5]), st.sampled_from([None, (2, 0), (0, 1), (1, 2)])),
    min_size=1,
    max_size=14,
)


@pytest.mark.slow
@SETTINGS
@given(st.sampled_from(REPLAYS), plans, st.integers(0, 2**31 - 1), st.sampled_from([1, 3]))
def test_samples_are_the_transitions_of_a_plain_memory(replay, plan, seed, n_step):
    plain = PlainMemory([Stream((seed, c), c) for c in range(replay.columns)], replay.length)
    add = compiled(replay)[0]
    state = replay.init(example())
    for T, columns in plan:
        columns = columns if replay.columns == 3 else None
        block = plain.block(T, columns or range(replay.columns))
        state = add(state, block, columns and jnp.asarray(columns))
        if replay.prioritised:
            assert sampleable(state) == set(plain.transitions(1))
    check_samples(replay, state, plain, jax.random.key(seed), n_step)


STACKED = [Replay(20, 1, frames={"camera": 3}), Replay(40, 2, prioritised=True, frames={"camera": 3})]


@pytest.mark.slow
@SETTINGS
@given(
    st.sampled_from(STACKED),
    st.lists(st.sampled_from([1, 4]), min_size=1, max_size=16),
    st.integers(0, 2**31 - 1),
    st.sampled_from(["repeat", "zero", "earlier"]),
    st.sampled_from([1, 9]),
)
def test_stacks_come_back_exactly(replay, plan, seed, pad, longest):
    streams = [Stream((seed, c), c, pad, longest) for c in range(replay.columns)]
    plain = PlainMemory(streams, replay.length, 3, replay.stacks.length)
    add = compiled(replay)[0]
    state = replay.init(example(stacked=True))
    for T in plan:
        state = add(state, plain.block(T, range(replay.columns), stacked=True))
        if replay.prioritised:
            assert sampleable(state) == set(plain.transitions(1))
    check_samples(replay, state, plain, jax.random.key(seed), 2, stacked=True)


@pytest.mark.parametrize("replay", STACKED)
def test_short_episodes_fill_the_frames_before_the_rows(replay):
    # An episode of one action is two rows and k + 1 = 4 frames; 20 rows have 20 + 0 + 12 = 32 frames: 16
    # rows' worth.
    assert replay.stacks.length == 32
    streams = [Stream(0, c, "earlier", longest=1 + 2 * c) for c in range(replay.columns)]
    plain = PlainMemory(streams, replay.length, 3, replay.stacks.length)
    state = replay.init(example(stacked=True))
    for _ in range(50):
        state = compiled(replay)[0](state, plain.block(1, range(replay.columns), stacked=True))
        held = [len(rows) - oldest for oldest, rows in map(plain.held, range(replay.columns))]
        assert Cursor(*state.cursor).held.tolist() == held
        assert int(replay.size(state)) == len(plain.transitions(1))
        if replay.prioritised:
            assert sampleable(state) == set(plain.transitions(1))
    assert held[0] == 16
    # As full as it gets: what waits for a full memory must not wait for ever.
    assert replay.begun(state, replay.length) and not replay.begun(replay.init(example(stacked=True)), 1)
    check_samples(replay, state, plain, jax.random.key(0), 2, stacked=True)


def test_rows_whose_frames_have_left_get_no_priority():
    """They may have been drawn before: their slots are not overwritten yet."""
    replay = STACKED[1]
    streams = [Stream(0, c, longest=1 + 2 * c) for c in range(replay.columns)]
    plain = PlainMemory(streams, replay.length, 3, replay.stacks.length)
    state, update = replay.init(example(stacked=True)), jax.jit(replay.update_priorities)
    everywhere = jnp.indices((replay.length, replay.columns), jnp.int32).reshape(2, -1).T
    for _ in range(30):
        state = compiled(replay)[0](state, plain.block(1, range(replay.columns), stacked=True))
        state = update(state, everywhere, jnp.ones(len(everywhere)))
        assert sampleable(state) == set(plain.transitions(1))
    assert Cursor(*state.cursor).held[0] == 16 < replay.length


def test_the_longest_rollout_of_stacks():
    """All of its rows may be firsts of episodes, whose frames must fit."""
    replay = STACKED[0]
    longest = replay.stacks.longest_rollout
    assert longest == 9  # of 3 frames each, and those of one more row, in 32
    plain = PlainMemory([Stream(0, 0, longest=1)], replay.length, 3, replay.stacks.length)
    state = replay.init(example(stacked=True))
    for _ in range(4):
        state = compiled(replay)[0](state, plain.block(longest, [0], stacked=True))
        check_samples(replay, state, plain, jax.random.key(0), 2, stacked=True)
    with pytest.raises(SpecError, match="rollout must be of at most 9 rows. Received: rollout=10"):
        replay.add(state, plain.block(longest + 1, [0], stacked=True))


def filled(replay, adds, seed=0, stacked=False, longest=5):
    plain = PlainMemory([Stream((seed, c), c, longest=longest) for c in range(replay.columns)], replay.length)
    state = replay.init(example(stacked))
    for T, columns in adds:
        state = compiled(replay)[0](state, plain.block(T, columns, stacked), jnp.asarray(columns))
    return plain, state


def chi_square(replay, state, ids, draws=40):
    """Return (statistic - df) / sqrt(2 df), about standard normal if all ids are drawn equally often."""
    keys = jax.random.split(jax.random.key(5), draws)
    seen = np.concatenate([compiled(replay)[1](state, key, 1).observation["id"] for key in keys])
    counts = np.array([np.sum(seen == i) for i in sorted(ids)])
    expected = len(seen) / len(ids)
    df = len(ids) - 1
    # Draws of anything else count as a cell that should be empty.
    other = len(seen) - counts.sum()
    return (((counts - expected) ** 2 / expected).sum() + other**2 - df) / np.sqrt(2 * df)


UNEVEN = [(5, [0]), (5, [0, 1, 2]), (5, [0]), (2, [2])]  # 15 rows into 9, 5 into 9, 7 into 9


def test_uniform_over_columns_of_different_fill():
    replay = Replay(27, 3)
    plain, state = filled(replay, UNEVEN)
    held = Cursor(*state.cursor).held
    assert held.tolist() == [9, 5, 7]
    assert abs(chi_square(replay, state, plain.transitions(1))) < 4


def test_uniformity_fails_when_invalid_rows_count():
    """Negative control: with every row marked valid, last observations are sampled, and the test above
    notices."""
    replay = Replay(27, 3)
    plain, state = filled(replay, UNEVEN)
    broken = replay.init(example())
    again = PlainMemory([Stream((0, c), c) for c in range(3)], replay.length)
    for T, columns in UNEVEN:
        block = again.block(T, columns)
        broken = compiled(replay)[0](
            broken, block._replace(valid=jnp.ones_like(block.valid)), jnp.asarray(columns)
        )
    assert int(replay.size(broken)) > int(replay.size(state))
    assert chi_square(replay, broken, plain.transitions(1)) > 100
    with pytest.raises((AssertionError, KeyError)):
        check_samples(replay, broken, plain, jax.random.key(0), 1)


def test_n_step_by_hand(key):
    # Rows r = 1, 2, 4 | terminated; last observation; r = 8, 16 | truncated; last observation; r = 32, 64;
    # gamma 1/2.
    nan = jnp.nan
    rewards = jnp.asarray([[1, 2, 4, nan, 8, 16, nan, 32, 64]], jnp.float32).T
    terminated = jnp.zeros((9, 1), bool).at[2].set(True)
    truncated = jnp.zeros((9, 1), bool).at[5].set(True)
    valid = ~jnp.isnan(rewards)
    observation = {"id": jnp.arange(10, dtype=jnp.int32)[:, None]}
    block = Rollout(observation, {}, rewards, terminated, truncated, valid, (), ())
    replay = Replay(20)
    state = jax.jit(replay.add)(replay.init(RowSpec({"id": jnp.int32(0)}, {})), block)
    batch = jax.jit(lambda state, key: replay.sample(state, key, 300, GAMMA, n_step=3))(state, key)
    expected = {
        0: (1 + 2 / 2 + 4 / 4, 0.0, 3),  # all three rows, the last terminated
        1: (2 + 4 / 2, 0.0, 3),
        2: (4, 0.0, 3),
        4: (8 + 16 / 2, 0.25, 6),  # two rows: truncated, so the last observation's value counts gamma^2
        5: (16, 0.5, 6),
        7: (32, 0.5, 8),  # one row: row 8 is the newest, only its observation is known
    }
    found = {}
    for s, r, d, n in zip(
        batch.observation["id"], batch.reward, batch.discount, batch.next_observation["id"], strict=True
    ):
        found[int(s)] = (float(r), float(d), int(n))
    assert found == expected


def test_a_step_is_whole_with_all_its_rewards_or_up_to_the_end_of_its_episode():
    # t: terminated, c: cut (truncated), x: a last observation; that in row 8 follows a row with neither flag,
    # as after an interruption.
    kinds = "..t x .c x .x ..... ".replace(" ", "")
    n, replay = 3, Replay(20)
    add, whole = jax.jit(replay.add), jax.jit(replay.whole, static_argnums=2)
    state = replay.init(RowSpec({"id": jnp.int32(0)}, {}))
    for t in range(len(kinds)):
        terminated, truncated, valid = (jnp.full((1, 1), kinds[t] == k) for k in "tcx")
        ids = {"id": jnp.asarray([[t], [t + 1]], jnp.int32)}
        state = add(state, Rollout(ids, {}, jnp.ones((1, 1)), terminated, truncated, ~valid, (), ()))
        rows = [r for r in range(t) if kinds[r] != "x"]
        expected = [
            r + n <= t or any(k in "tc" for k in kinds[r : min(r + n, t)]) or "x" in kinds[r : t + 1]
            for r in rows
        ]
        index = jnp.asarray([(r, 0) for r in rows + [0] * (20 - len(rows))], jnp.int32)
        assert whole(state, index, n)[: len(rows)].tolist() == expected


def test_rewards_are_scaled_one_by_one_before_they_are_summed(key):
    replay = Replay(40)
    _, state = filled(replay, [(20, [0])])

    def sample(**scale):
        return jax.jit(lambda state, key: replay.sample(state, key, 200, GAMMA, n_step=3, **scale))(
            state, key
        )

    plain, doubled = sample(), sample(scale=lambda r: 2 * r)
    np.testing.assert_allclose(doubled.reward, 2 * np.asarray(plain.reward), rtol=1e-6)
    ones = sample(scale=jnp.ones_like).reward  # 1, 1 + γ or 1 + γ + γ²
    assert set(np.unique(ones)) == {1.0, 1.5, 1.75}


@pytest.mark.parametrize("replay", [Replay(27, 3), Replay(18, 3)])
def test_sequences_are_runs_of_the_stream(replay, key):
    plain, state = filled(replay, UNEVEN)
    length = 4
    block = jax.device_get(compiled(replay)[2](state, key, length))
    starts = set()
    streams = [{row.s: i for i, row in enumerate(s.rows)} for s in plain.streams]
    for b in range(256):
        s = int(block.observation["id"][0, b])
        c = s // 10000
        start = streams[c][s]
        rows = plain.streams[c].rows[start : start + length + 1]
        starts.add((c, start))
        assert block.observation["id"][:, b].tolist() == [x.s for x in rows]
        for name, field in (
            ("reward", "r"),
            ("terminated", "terminated"),
            ("truncated", "truncated"),
            ("valid", "valid"),
        ):
            assert getattr(block, name)[:, b].tolist() == [getattr(x, field) for x in rows[:-1]]
        assert block.action["a"][:, b].tolist() == [x.a for x in rows[:-1]]
        assert block.extras["twice"][:, b].tolist() == [2 * x.s for x in rows[:-1]]
        assert block.carry[b] == s
    # Every start whose run, and the row after it, is held.
    held = [plain.held(c) for c in range(3)]
    assert starts == {
        (c, i) for c, (oldest, rows) in enumerate(held) for i in range(oldest, len(rows) - length)
    }
    assert not block.valid.all()


def test_a_memory_without_a_whole_sequence_has_none_that_is_valid(key):
    replay = Replay(27, 3)
    for rows, whole in ((4, False), (5, True)):  # a sequence of four rows, and the one that follows
        _, state = filled(replay, [(rows, [0, 1, 2])])
        assert bool(Replay.has_sequence(state, 4)) == whole
        assert bool(compiled(replay)[2](state, key, 4).valid.any()) == whole


def test_sequences_of_stacks(key):
    replay = STACKED[0]
    plain, state = filled(replay, [(4, [0])] * 8, stacked=True)
    block = jax.device_get(compiled(replay)[2](state, key, 5))
    place = {row.s: i for i, row in enumerate(plain.streams[0].rows)}
    for b in range(256):
        start = place[int(block.observation["id"][0, b])]
        expected = tuple(row.stack for row in plain.streams[0].rows[start : start + 6])
        assert unstack(block.observation["camera"][:, b]) == expected


def test_nothing_to_sample(key):
    replay = Replay(27, 3)
    _, state = filled(replay, [(1, [1])])
    keys = jax.random.split(key)
    assert int(replay.size(state)) == 0 and int(replay.rows(state)) == 1
    batch = compiled(replay)[1](state, keys[0], 1)
    assert not batch.weight.any()
    assert not batch.discount.any()
    assert not compiled(replay)[2](state, keys[1], 4).valid.any()


@pytest.mark.slow
def test_compiled_is_the_same(key):
    replay = Replay(18, 3)
    plain = PlainMemory([Stream((1, c), c) for c in range(3)], 6)
    first, second = (plain.block(5, [0, 1, 2]) for _ in range(2))
    state = compiled(replay)[0](replay.init(example()), first, None)

    def run(state, key):
        state = replay.add(state, second)
        return state, replay.sample(state, key, 16, 0.9, n_step=2)

    eager, jitted = run(state, key), jax.jit(run)(state, jax.random.clone(key))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), eager, jitted)


def test_same_key_same_batch():
    replay = Replay(27, 3)
    _, state = filled(replay, UNEVEN)
    sample = compiled(replay)[1]
    first, again, other = (sample(state, jax.random.key(seed), 1).index for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_second_call_compiles_nothing():
    replay = Replay(40, 2)
    add = jax.jit(replay.add, donate_argnums=0)
    sample = jax.jit(lambda state, key, gamma: replay.sample(state, key, 4, gamma))
    plain = PlainMemory([Stream(c, c) for c in range(2)], 20)
    state = replay.init(example())
    for seed in range(3):
        state = add(state, plain.block(2, [0, 1]))
        sample(state, jax.random.key(seed), jnp.float32(0.9 + seed / 100))
    assert add._cache_size() == 1
    assert sample._cache_size() == 1


def test_a_memory_per_seed_by_vmap():
    """Under `vmap` a memory is what it is alone."""
    replay = Replay(12, 2)
    plain = [PlainMemory([Stream((seed, c), c) for c in range(2)], 6) for seed in range(2)]
    add = jax.jit(replay.add)
    adds = jax.jit(jax.vmap(lambda state, block: replay.add(state, block)))
    alone = [replay.init(example())] * 2
    together = jax.tree.map(lambda *x: jnp.stack(x), *alone)
    for _ in range(3):
        blocks = [memory.block(4, [0, 1]) for memory in plain]
        alone = [add(state, block) for state, block in zip(alone, blocks, strict=True)]
        together = adds(together, jax.tree.map(lambda *x: jnp.stack(x), *blocks))
    jax.tree.map(np.testing.assert_array_equal, together, jax.tree.map(lambda *x: jnp.stack(x), *alone))


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize(
    "replay",
    [Replay(1_000_000), Replay(1_000_000, 8, prioritised=True), Replay(1_000_000, 4, frames={"camera": 3})],
    ids=["uniform", "prioritised", "frames"],
)
def test_a_million_rows_are_written_in_place(replay, conditional):
    """Compiled with the state donated, no ring is copied (the smallest has 4 MB)."""
    row = example(stacked=bool(replay.frames))
    state = jax.eval_shape(lambda: replay.init(row))
    plain = PlainMemory([Stream(c, c) for c in range(replay.columns)], replay.length)
    block = plain.block(2, range(replay.columns), bool(replay.frames))

    def learn(state, key):
        batch = replay.sample(state, key, 32, 0.9, n_step=2)
        if replay.prioritised:
            state = replay.update_priorities(state, batch.index, jnp.abs(batch.reward))
        return state, (batch.reward * batch.weight).sum()

    def train(state, block, key):
        state = replay.add(state, block)
        if not conditional:
            return learn(state, key)
        return jax.lax.cond(
            replay.size(state) > 9, learn, lambda state, key: (state, jnp.float32(0)), state, key
        )

    memory = (
        jax.jit(train, donate_argnums=0).lower(state, block, jax.random.key(0)).compile().memory_analysis()
    )
    assert memory.alias_size_in_bytes >= size(replay, row)
    assert memory.temp_size_in_bytes < 200_000


def test_reading_before_writing_would_copy():
    """Negative control of the test above: a ring read before it is written is copied."""

    def add(ring, i, x):
        return ring.at[i].set(x), jnp.sin(ring[i]) + ring[i + 1]

    ring = jax.ShapeDtypeStruct((1_000_000,), jnp.float32)
    arguments = jax.ShapeDtypeStruct((4,), jnp.int32), jax.ShapeDtypeStruct((4,), jnp.float32)
    memory = jax.jit(add, donate_argnums=0).lower(ring, *arguments).compile().memory_analysis()
    assert memory.temp_size_in_bytes >= 4_000_000


def test_bytes_of_a_million_atari_rows():
    row = RowSpec(
        {"screen": jax.ShapeDtypeStruct((84, 84, 4), jnp.uint8)},
        {"action": jax.ShapeDtypeStruct((), jnp.int32)},
    )
    frame, million = 84 * 84, 1_000_000
    replay = Replay(million, 8, frames={"screen": 4})
    # A column has 125,000 rows, and frames for a 64th more and 4 * 4; a row has reward, mark, order, frame,
    # action.
    frames = 8 * (125_000 + 125_000 // 64 + 16)
    assert size(replay, row) == frames * frame + million * 5 * 4 + 4 * 6 * 8
    assert size(replay, row) < 7.3e9
    assert size(Replay(million, 8), row) > 28e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"capacity": 5, "columns": 3},
            "capacity must be at least 6, 2 for each of 3 actors. Received: capacity=5. Raise buffer_max",
        ),
        ({"capacity": 5, "columns": 0}, "columns must be at least 1"),
        ({"capacity": 2**31}, "capacity must be below 2\\^27 per column"),
        ({"capacity": 9, "frames": {"x": 1}}, "must be at least 2.*leave it out"),
    ],
)
def test_bad_descriptions(arguments, message):
    with pytest.raises(SpecError, match=message):
        Replay(**arguments)


def test_frames_that_do_not_fit():
    with pytest.raises(SpecError, match=r"frames names 'camra'.*Did you mean 'camera'"):
        Replay(9, frames={"camra": 3}).init(example(stacked=True))
    with pytest.raises(SpecError, match=r"last axis of the observation, of shape \(2, 3\)"):
        Replay(9, frames={"camera": 4}).init(example(stacked=True))


def test_blocks_that_do_not_fit():
    replay = Replay(18, 3)
    state = replay.init(example())
    plain = PlainMemory([Stream(c, c) for c in range(3)], 6)
    with pytest.raises(SpecError, match=r"rollout must be of at most 6 rows. Received: rollout=7. Raise"):
        replay.add(state, plain.block(7, [0, 1, 2]))
    with pytest.raises(SpecError, match="rollout must be of 3 actors"):
        replay.add(state, plain.block(2, [0, 1]))
    block = plain.block(2, [0, 1, 2])
    with pytest.raises(SpecError, match=r"action.a is \(\(\), 'int32'\).*Received: \(\(\), 'float32'\)"):
        replay.add(state, block._replace(action={"a": block.reward}))
    with pytest.raises(SpecError, match=r"observation.speed is None.*Received"):
        replay.add(state, block._replace(observation={**block.observation, "speed": jnp.zeros((3, 3))}))


def test_bad_requests(key):
    replay = Replay(18, 3)
    state = replay.init(example())
    with pytest.raises(SpecError, match=r"n_step must be at least 1. Received: n_step=0"):
        replay.sample(state, key, 4, 0.9, n_step=0)
    with pytest.raises(SpecError, match="batch_size must be at least 1"):
        replay.sample(state, key, 0, 0.9)
    with pytest.raises(SpecError, match="length must be from 1 to 5"):
        replay.sample_sequences(state, key, 4, 6)
    with pytest.raises(UsageError, match="prioritised=True"):
        replay.update_priorities(state, jnp.zeros((1, 2), jnp.int32), jnp.ones(1))


@pytest.mark.slow
@pytest.mark.parametrize(("longest", "held"), [(10_000, 119), (1, 65)])
def test_a_memory_of_frames_has_begun_once_a_ring_is_full(longest, held):
    """Not before: with long episodes that is the ring of rows, with short ones that of frames: 133, four
    for two rows."""
    replay = Replay(120, 1, frames={"camera": 3})
    plain = PlainMemory([Stream(0, 0, longest=longest)], replay.length, 3, replay.stacks.length)
    state = replay.init(example(stacked=True))
    for i in range(300):
        rows = int(Cursor(*state.cursor).held[0])
        assert bool(replay.begun(state, 120)) is (i >= held), i
        assert bool(replay.begun(state, 10)) is (rows >= 10)
        state = compiled(replay)[0](state, plain.block(1, [0], stacked=True))


def test_a_memory_has_begun_with_so_many_rows_or_where_a_column_is_full():
    replay = Replay(40, 4)  # ten rows a column
    row, state = example(), replay.init(example())
    add, begun = jax.jit(replay.add), jax.jit(replay.begun, static_argnums=1)

    def block(T, n):
        like = jax.tree.map(lambda x: jnp.zeros((T, n, *x.shape), x.dtype), row)
        after = {name: jnp.zeros((T + 1, n, *x.shape), x.dtype) for name, x in row.observation.items()}
        no = jnp.zeros((T, n), bool)
        return Rollout(after, like.action, jnp.zeros((T, n)), no, no, ~no, like.extras, ())

    for _ in range(3):
        assert not begun(state, 12)
        state = add(state, block(1, 4))
    assert begun(state, 12) and not begun(state, 30)
    for _ in range(6):  # one actor alone, until it has nine
        assert not begun(state, 30)
        state = add(state, block(1, 1), jnp.array([2]))
    assert begun(state, 30)


@pytest.mark.parametrize(
    ("replay", "stacked"),
    [
        (Replay(27, 3, frames={"camera": 3}), True),
        pytest.param(Replay(27, 3), False, marks=pytest.mark.slow),
        pytest.param(Replay(27, 3, prioritised=True), False, marks=pytest.mark.slow),
    ],
)
def test_an_emptied_memory_is_like_a_fresh_one(replay, stacked):
    """Whatever it held: the same rows and the same key give the same batches."""
    add, sample, sequences = compiled(replay)
    _, state = filled(replay, UNEVEN, seed=1, stacked=stacked)
    if replay.prioritised:
        drawn = sample(state, jax.random.key(0), 1).index
        state = replay.update_priorities(state, drawn, jnp.full(len(drawn), 7.0))
    emptied, fresh = replay.emptied(state), replay.init(example(stacked))
    jax.tree.map(lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype) or pytest.fail(), emptied, fresh)
    assert replay.rows(emptied) == replay.size(emptied) == 0 and replay.rows(state) > 0
    assert not np.any(sample(emptied, jax.random.key(0), 1).weight)
    plain = PlainMemory([Stream((2, c), c) for c in range(3)], replay.length)
    for T, columns in [(5, [0, 1, 2]), *UNEVEN, (5, [1])]:
        block = plain.block(T, columns, stacked)
        emptied, fresh = (add(memory, block, jnp.asarray(columns)) for memory in (emptied, fresh))
        for draw in (lambda s: sample(s, jax.random.key(1), 1), lambda s: sequences(s, jax.random.key(2), 3)):
            jax.tree.map(np.testing.assert_array_equal, draw(emptied), draw(fresh))
