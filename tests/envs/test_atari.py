"""Atari and image preprocessing: pixels against a plain reference, the stream of rows, what training is
told and what reports count."""

from __future__ import annotations

import json
import types
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from operant.envs import Environment, check_env
from operant.envs.gymnasium import adapter as adapter
from operant.envs.gymnasium.atari import preprocessed
from operant.envs.gymnasium.games import Games, whole_games
from operant.envs.gymnasium.preprocessing import PreprocessingOptions, PreprocessingWrapper, read
from operant.envs.vector import create
from operant.envs.vector.base import VectorEnv, VectorStep
from operant.envs.vector.batched import NativeEnvironment
from operant.errors import SpecError, UsageError
from operant.execution.play import PlayConfig
from operant.execution.play import environment as play_environment
from operant.execution.trainers.inputs import create_envs, play_env
from operant.spec.run import RunConfig
from operant.spec.run import images as images_of
from operant.spec.spaces import Spaces, from_gymnasium
from operant.training.environments import Environments, host_vector, make_environments
from operant.training.episodes import EpisodeStatistics
from operant.training.evaluate import run_episodes
from operant.training.train import ExperimentConfig, resumed, train

needs_ale = pytest.mark.skipif(
    adapter.find_package("ale_py") is None, reason="ALE is not installed (extra 'atari')"
)
PONG = "PongNoFrameskip-v4"


class Film(gymnasium.Env):
    """Shows image `t` of a film at frame `t`, and rewards with `t`."""

    observation_space = spaces.Box(0, 255, (6, 4, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, images, length=1000):
        self.images, self.length, self.t = images, length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.images[0], {}

    def step(self, action):
        self.t += 1
        return self.images[self.t % len(self.images)], float(self.t), self.t >= self.length, False, {}


def flat_images(levels):
    return [np.full((6, 4, 3), level, np.uint8) for level in levels]


def slow_resize(image, size):
    """Average over areas, pixel by pixel and stretch by stretch."""
    height, width = image.shape
    rows, columns = size
    out = np.zeros(size)
    for i in range(rows):
        for j in range(columns):
            top, bottom = i * height / rows, (i + 1) * height / rows
            left, right = j * width / columns, (j + 1) * width / columns
            for y in range(height):
                for x in range(width):
                    h = max(0.0, min(bottom, y + 1) - max(top, y))
                    w = max(0.0, min(right, x + 1) - max(left, x))
                    out[i, j] += image[y, x] * h * w
    return out * rows * columns / (height * width)


# One environment


def test_grey_levels_and_areas_against_a_slow_reference():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (6, 4, 3), np.uint8)
    env = PreprocessingWrapper(Film([image]), PreprocessingOptions(resize=3))
    seen = env.reset()[0][..., -1]
    grey = np.rint(0.299 * image[..., 0] + 0.587 * image[..., 1] + 0.114 * image[..., 2])
    np.testing.assert_allclose(seen, slow_resize(grey, (3, 3)), atol=0.51)
    swapped = np.rint(0.114 * image[..., 0] + 0.587 * image[..., 1] + 0.299 * image[..., 2])
    assert np.abs(seen - slow_resize(swapped, (3, 3))).max() > 5  # the order of colours matters


def test_frames_of_a_stack():
    env = PreprocessingWrapper(Film(flat_images(range(100))), PreprocessingOptions(resize=2, frame_skip=3))
    assert env.reset()[0][0, 0].tolist() == [0, 0, 0, 0]
    observation, reward, *_ = env.step(0)
    assert observation[0, 0].tolist() == [0, 0, 0, 3]  # black, black, the first frame, the third one after it
    assert reward == 1 + 2 + 3
    assert env.step(0)[0][0, 0].tolist() == [0, 0, 3, 6]
    assert env.step(0)[0][0, 0].tolist() == [0, 3, 6, 9]
    env.reset()
    assert env.step(0)[0][0, 0].tolist() == [0, 0, 0, 3]  # nothing of the episode before


def test_maximum_of_the_last_two_frames():
    images = flat_images([0, 0, 9, 50, 20])  # frames 3 and 4 hold 50 and 20
    last = PreprocessingWrapper(Film(images), PreprocessingOptions(resize=2))
    both = PreprocessingWrapper(Film(images), PreprocessingOptions(resize=2, max_frame=True))
    buffer = np.zeros((6, 4, 3), np.uint8)
    drawing = gymnasium.wrappers.TransformObservation(
        Film(images), lambda image: np.add(image, 0, out=buffer), Film.observation_space
    )
    reused = PreprocessingWrapper(drawing, PreprocessingOptions(resize=2, max_frame=True))
    for env, level in ((last, 20), (both, 50), (reused, 50)):
        env.reset()
        assert env.step(0)[0][0, 0, -1] == level


def test_the_end_of_an_episode_ends_the_repetition():
    env = PreprocessingWrapper(Film(flat_images(range(100)), length=6), PreprocessingOptions(resize=2))
    env.reset()
    assert env.step(0)[1:4] == (1 + 2 + 3 + 4, False, False)
    observation, reward, terminated, _, _ = env.step(0)
    assert (reward, terminated, observation[0, 0, -1]) == (5 + 6, True, 6)


def test_a_game_begins_with_fire_and_as_many_no_ops_as_were_drawn():
    class Waiting(Film):
        def __init__(self, waits, length=1000):
            super().__init__(flat_images(range(100)), length)
            self._np_random, self.actions = types.SimpleNamespace(integers=lambda most: min(waits, most)), []

        def get_action_meanings(self):
            return ["NOOP", "FIRE"]

        def step(self, action):
            self.actions.append(action)
            return super().step(action)

    def began(game, **settings):
        seen, _ = PreprocessingWrapper(game, PreprocessingOptions(resize=2, **settings)).reset()
        return game.actions, seen[0, 0].tolist()

    assert began(Waiting(5)) == ([1, 0, 0, 0, 0], [0, 0, 0, 5])  # FIRE is one of them
    assert began(Waiting(0)) == ([1], [0, 0, 0, 1])
    assert began(Waiting(2), fire_reset=False) == ([0, 0], [0, 0, 0, 2])
    assert began(Waiting(9), noop_max=0) == ([1], [0, 0, 0, 1])
    assert began(Waiting(5, length=3)) == (
        [1, 0, 0, 0, 0],
        [0, 0, 0, 2],
    )  # it ended meanwhile, and began anew


def test_returned_observations_are_not_written_again():
    env = PreprocessingWrapper(Film(flat_images(range(100))), PreprocessingOptions(resize=2))
    first = env.reset()[0]
    copy = first.copy()
    env.step(0)
    np.testing.assert_array_equal(first, copy)


def test_the_space_holds_what_comes_and_frames_are_stored_once():
    env = PreprocessingWrapper(Film(flat_images(range(100)), length=50), PreprocessingOptions())
    assert env.observation_space.contains(env.reset()[0])
    (finding,) = check_env(env)
    assert "right if nothing is random" in finding
    within = gymnasium.wrappers.RecordEpisodeStatistics(env)
    (leaf,) = create.create([within]).spaces.states.components.values()
    assert (leaf.shape, leaf.dtype, leaf.frames) == ((84, 84, 4), "uint8", 4)


def test_a_time_limit_counts_steps_of_several_frames():
    gymnasium.register("Film-v0", lambda: Film(flat_images(range(9))), max_episode_steps=10)
    try:
        env = create.create("Film-v0", 2, preprocess=True, mode="in-process")
        assert preprocessed("Film-v0").spec.max_episode_steps == 3
    finally:
        del gymnasium.registry["Film-v0"]
    assert env.max_episode_timesteps == 3  # of 4 frames each
    env.reset(0)
    cut = [env.step({"action": np.zeros(2, np.int32)}).truncated[0] for _ in range(3)]
    assert cut == [False, False, True]


# Other images: resize, gray, frame_stack, frame_skip


class Seen(gymnasium.Env):
    """Shows a screen and numbers: `levels[t]` at step `t`."""

    observation_space = spaces.Dict(
        screen=spaces.Box(0, 255, (6, 4, 3), np.uint8), numbers=spaces.Box(0, 99, (3, 2), np.float32)
    )
    action_space = spaces.Discrete(2)

    def __init__(self, length=9):
        self.length, self.rng = length, np.random.default_rng(0)
        self.screens = self.rng.integers(0, 256, (length + 1, 6, 4, 3), np.uint8)

    def observe(self):
        return {"screen": self.screens[self.t], "numbers": np.full((3, 2), self.t, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 1.0, self.t == self.length, False, {}


def images(**asked):
    return read(asked, "Seen")


def test_the_images_of_a_dict_are_resized_and_stacked_in_colour():
    env = PreprocessingWrapper(Seen(), images(resize=[3, 2], frame_stack=2, frame_skip=2))
    assert env.observation_space["screen"] == spaces.Box(0, 255, (3, 2, 6), np.uint8)
    first, _ = env.reset()
    second, reward, *_ = env.step(0)
    assert reward == 2 and second["numbers"][0, 0] == 2
    for channel in range(3):
        small = [slow_resize(env.env.screens[t][..., channel], (3, 2)) for t in (0, 2)]
        assert not first["screen"][..., channel].any()  # black
        np.testing.assert_allclose(first["screen"][..., 3 + channel], small[0], atol=0.51)
        np.testing.assert_array_equal(second["screen"][..., channel], first["screen"][..., 3 + channel])
        np.testing.assert_allclose(second["screen"][..., 3 + channel], small[1], atol=0.51)
    assert env.observation_space.contains(second) and env.stacked_frames == 1  # colours are stored whole


def test_grey_stacks_are_stored_once_where_no_other_part_looks_like_one():
    grey = PreprocessingWrapper(Seen(), images(gray=True, frame_stack=3))
    assert grey.reset()[0]["screen"].shape == (6, 4, 3)
    leaves = create.create([grey]).spaces.states.components
    assert (leaves["screen"].frames, leaves["numbers"].frames) == (3, 1)
    two = create.create([PreprocessingWrapper(Seen(), images(gray=True, frame_stack=2))])
    assert [leaf.frames for leaf in two.spaces.states.components.values()] == [1, 1]  # numbers: (3, 2)


@pytest.mark.slow
def test_images_of_a_function_are_made_smaller_also_in_workers():
    asked = {"resize": 2, "gray": True, "frame_skip": 3}
    with (
        create.create(Seen, 2, images=asked) as env,
        create.create(Seen, 2, "processes", images=asked) as far,
    ):
        assert env.spaces == far.spaces and env.spaces.states.components["screen"].shape == (2, 2, 1)
        assert not env.preprocessed  # rewards are not clipped
        np.testing.assert_array_equal(env.reset(0)["screen"], far.reset(0)["screen"])
        stepped, elsewhere = (each.step({"action": np.zeros(2, np.int32)}) for each in (env, far))
        np.testing.assert_array_equal(stepped.observation["screen"], elsewhere.observation["screen"])
        assert stepped.reward.tolist() == [3.0, 3.0]


def test_images_of_an_id_are_made_smaller():
    pytest.importorskip("Box2D", reason="CarRacing is of the extra box2d")
    (one,) = create_envs("CarRacing-v3", preprocess=False, resize=(24, 32), frame_skip=5)
    assert one.observation_space.shape == (24, 32, 3) and one.spec.max_episode_steps == 200


@pytest.mark.parametrize(
    ("asked", "environment", "message"),
    [
        ({"resize": (1, 2, 3)}, Seen, "resize must be a height and a width, or one number for both"),
        ({"resize": 0}, Seen, "resize must be a whole number of at least 1. Received: resize=0"),
        ({"gray": True}, "CartPole-v1", "gray and frame_stack are for images.*CartPole-v1 shows Box"),
        ({"preprocess": True}, Seen(), "preprocess: for an id, a class or a function, which 'Seen' is not"),
        ({"gray": True}, Seen(), r"gray: for an id.*create_envs\(name, n, resize=84\)"),
        (
            {"gray": True},
            lambda: NativeEnvironment(None),
            "are for one environment of Gymnasium. Received: Native",
        ),
    ],
)
def test_what_has_no_images_is_told(asked, environment, message, monkeypatch):
    monkeypatch.setattr(NativeEnvironment, "__init__", lambda self, vector: None)
    with pytest.raises((SpecError, UsageError), match=message):
        create.create(environment, images=asked)


def test_preprocess_names_what_other_images_take():
    gymnasium.register("Seen-v0", Seen)
    try:
        with pytest.raises(
            SpecError,
            match=r"Cannot use --preprocess for non-atari environment Seen-v0, with input "
            r"shape {'screen': \(6, 4, 3\), .*Its images take --resize 84, --gray",
        ):
            create.create("Seen-v0", preprocess=True)
        run = RunConfig.from_dict({"env": "Seen-v0", "max_steps": 1, "resize": 2, "preprocess": True})
    finally:
        del gymnasium.registry["Seen-v0"]
    assert images_of(run) == {"preprocess": True, "resize": 2}
    jax_native = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 1, "resize": 2})
    with pytest.raises(
        SpecError, match="resize: for environments of Gymnasium, not JAX-native ones as 'jax:CartPole-v1' is"
    ):
        make_environments(jax_native)
    with pytest.raises(SpecError, match="gray is for an id. Preprocess objects where they are made"):
        make_environments(RunConfig.from_dict({"env": "x", "max_steps": 1, "gray": True}), Seen())


def test_a_run_is_resumed_played_and_evaluated_with_its_images(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    gymnasium.register("Seen-v0", Seen)
    small = {"resize": (3, 2), "gray": True, "frame_stack": 2, "frame_skip": 2}
    try:
        run = RunConfig(env="Seen-v0", max_steps=16, run_dir="run", quiet=True, seed=0, **small)
        train(ExperimentConfig("a2c", {"n_steps": 8}, run))
        saved = json.loads(Path("run/run.json").read_text())["run"]
        assert [saved[name] for name in small] == [[3, 2], True, 2, 2]
        shape = host_vector(run, 1).spaces.states.components["screen"].shape
        assert (
            shape
            == play_environment(PlayConfig(run_dir="run")).spaces.states.components["screen"].shape
            == (3, 2, 2)
        )
        other = play_environment(PlayConfig(run_dir="run", resize=4)).spaces.states.components["screen"].shape
        assert other == (4, 4, 2)
        plan = resumed("run", {"max_steps": 24})
        assert train(plan).outcome.reason == "max_steps"
    finally:
        del gymnasium.registry["Seen-v0"]


def test_large_images_are_remarked_upon():
    def remarks(shape, dtype):
        space = spaces.Box(0, 255 if dtype is np.uint8 else 1, shape, dtype)
        vector = types.SimpleNamespace(spaces=from_gymnasium(space, spaces.Discrete(2))[0])
        return list(Environments(None, vector).remarks)

    (text,) = remarks((240, 320, 3), np.uint8)
    assert (
        text.startswith("Observations of 240 x 320 x 3 (state) make training slow") and "--resize 84" in text
    )
    assert remarks((128, 128, 3), np.uint8) == remarks((300, 300, 1), np.float32) == []


# Games: what training is told, what reports count


class Script(VectorEnv):
    """Plays given rewards, ends and lives, and notes the actions."""

    num_envs, name, mode = 1, "script", "in-process"
    spaces = Spaces.read({"type": "float", "shape": 1}, {"type": "int", "num_values": 3})

    def __init__(self, rows):
        self.rows, self.t, self.actions = rows, 0, []
        self.envs = [type("Cell", (), {"env": ScriptedLives(self)})()]

    def reset(self, seed=None):
        return {"state": np.zeros((1, 1), np.float32)}

    def step(self, actions):
        self.t += 1
        self.actions.append(int(actions["action"][0]))
        reward, over, _ = self.rows[self.t]
        return VectorStep(
            {"state": np.full((1, 1), self.t, np.float32)},
            np.array([reward], np.float32),
            np.array([over]),
            np.array([False]),
        )

    def close(self):
        pass


class ScriptedLives(PreprocessingWrapper):
    """Stands where the lives are read."""

    def __init__(self, script):
        self.script, self.resume = script, 2

    @property
    def lives(self):
        return self.script.rows[self.script.t][2]


# reward, game over, lives after the row; row 0 is the reset
ROWS = [
    (0, False, 2),
    (5, False, 2),
    (-3, False, 1),
    (7, False, 1),
    (2, True, 0),
    (0, False, 2),
    (1, False, 2),
]


def played(clip_rewards, episodic_life, rows=ROWS):
    script = Script(rows)
    games = Games(script, clip_rewards=clip_rewards, episodic_life=episodic_life)
    games.reset(0)
    accounts, finished, ended, rows = EpisodeStatistics(1), [], np.zeros(1, bool), []
    for t in range(1, len(script.rows)):
        step = games.step({"action": np.zeros(1, np.int32)})
        valid = ~ended
        ended = step.terminated | step.truncated
        accounts.row(finished, t, games.game.score, valid, games.game.over)
        rows.append((float(step.reward[0]), bool(step.terminated[0]), bool(valid[0])))
    return rows, finished, script.actions


def test_a_lost_life_ends_an_episode_and_the_score_is_of_the_whole_game():
    rows, finished, actions = played(clip_rewards=True, episodic_life=True)
    assert rows == [
        (1.0, False, True),
        (-1.0, True, True),  # the life was lost
        (0.0, False, False),  # the row of the last observation: FIRE, its reward counts for the score only
        (1.0, True, True),
        (0.0, False, False),  # the reset
        (1.0, False, True),
    ]
    assert actions == [0, 0, 2, 0, 0, 0]
    assert [(f.reward, f.length) for f in finished] == [(5 - 3 + 7 + 2, 3)]


def test_only_lives_that_a_game_goes_on_after_end_an_episode():
    """Not the last one, after which some games show a few more frames.

    Nor a game's own, above those of the next one.
    """
    rows = [
        (0, False, 2),
        (1, False, 3),
        (1, True, 3),
        (0, False, 2),
        (1, False, 1),
        (1, False, 0),
        (1, True, 0),
    ]
    told, finished, actions = played(clip_rewards=True, episodic_life=True, rows=rows)
    assert [terminated for _, terminated, _ in told] == [False, True, False, True, False, True]
    assert actions == [0, 0, 0, 0, 2, 0]
    assert [f.reward for f in finished] == [2.0, 3.0]


def test_nothing_of_a_lost_life_is_left_where_games_begin_anew():
    games = Games(script := Script(ROWS), clip_rewards=False, episodic_life=True)
    games.reset(0)
    no_op = {"action": np.zeros(1, np.int32)}
    assert [bool(games.step(no_op).terminated[0]) for _ in range(2)] == [False, True]
    games.reset(0)
    assert games.step(no_op).reward[0] == 7.0 and script.actions == [0, 0, 0]


def test_evaluations_count_whole_games_and_true_scores():
    games = Games(Script(ROWS), clip_rewards=True, episodic_life=True)
    no_op = {"action": np.zeros(1, np.int32)}
    (episode,) = run_episodes(lambda observation, carry, first, row: (no_op, carry), (), games, 1)
    assert (episode.reward, episode.length) == (5 - 3 + 7 + 2, 3)


def test_without_clipping_and_lives():
    rows, finished, actions = played(clip_rewards=False, episodic_life=False)
    assert [row[0] for row in rows] == [5, -3, 7, 2, 0, 1]
    assert [row[1] for row in rows] == [False, False, False, True, False, False]
    assert actions == [0] * 6
    assert [(f.reward, f.length) for f in finished] == [(11, 4)]


def test_a_game_by_which_a_policy_is_judged_goes_on_after_a_lost_life():
    script = Script(ROWS)
    games = whole_games(script)
    assert games.envs == script.envs
    games.reset(0)
    accounts, finished, ended, steps = EpisodeStatistics(1), [], np.zeros(1, bool), []
    for t in range(1, len(ROWS)):
        steps.append(games.step({"action": np.zeros(1, np.int32)}))
        valid = ~ended
        ended = steps[-1].terminated | steps[-1].truncated
        accounts.row(finished, t, steps[-1].reward, valid, ended)
    assert games.game is None
    assert [float(step.reward[0]) for step in steps] == [5, -3, 7, 2, 0, 1]
    assert [bool(step.terminated[0]) for step in steps] == [False, False, False, True, False, False]
    assert script.actions == [0, 0, 2, 0, 0, 0]
    assert [(f.reward, f.length) for f in finished] == [(11, 4)]
    script.envs = []
    assert whole_games(script) is script  # nothing waits for FIRE


# Games however they are given


class Ale:
    def __init__(self):
        self.left = 2

    def lives(self):
        return self.left


class Lives(gymnasium.Env):
    """Two lives of three frames, each of which brings 3; it waits for FIRE after a lost life."""

    observation_space, action_space = spaces.Box(0, 255, (6, 4, 3), np.uint8), spaces.Discrete(3)

    def __init__(self):
        self.ale, self.t, self.waits = Ale(), 0, False

    def get_action_meanings(self):
        return ["NOOP", "LEFT", "FIRE"]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.ale.left, self.waits = 0, 2, False
        return np.zeros((6, 4, 3), np.uint8), {}

    def step(self, action):
        self.waits &= action != 2
        if not self.waits:
            self.t += 1
        if self.t == 3 and self.ale.left == 2:
            self.ale.left, self.waits = 1, True
        return np.full((6, 4, 3), self.t, np.uint8), 3.0, self.t == 6, False, {}


def lives():
    return PreprocessingWrapper(
        Lives(), PreprocessingOptions(resize=2, frame_skip=1, noop_max=0, fire_reset=True)
    )


GIVEN = {
    "objects": lambda: [lives(), lives()],
    "one object": lives,
    "a function": lambda: lives,
    "functions": lambda: [lives, lives],
    "as Environment": lambda: [Environment.create(lives()) for _ in range(2)],
    "within a wrapper": lambda: [gymnasium.wrappers.RecordEpisodeStatistics(lives()) for _ in range(2)],
}


def seen(env, n):
    """Return rewards, ends and scores of five steps without FIRE; the first one is taken by the reset."""
    env.reset(0)
    found = []
    for _ in range(5):
        step = env.step({"action": np.zeros(n, np.int32)})
        score = None if env.game is None else float(env.game.score[0])
        found.append((float(step.reward[0]), bool(step.terminated[0]), score))
    env.close()
    return found


@pytest.mark.parametrize("given", GIVEN)
def test_games_are_trained_alike_however_they_are_given(given):
    n = 1 if given == "one object" else 2
    count = 2 if given == "a function" else None
    run = RunConfig.from_dict({"env": "lives", "max_steps": 1, "n_envs": n})
    lost, between = (1.0, True, 3.0), (0.0, False, 3.0)
    made = make_environments(run, GIVEN[given](), count).vector
    assert seen(made, n) == [(1.0, False, 3.0), lost, between, (1.0, False, 3.0), (1.0, True, 3.0)]
    judged = host_vector(run, n, GIVEN[given]())
    assert [reward for reward, *_ in seen(judged, n)] == [
        3.0
    ] * 5  # whole games, which FIRE brings to their end
    plain = run.replace(clip_rewards=False, episodic_life=False)
    for env in (
        make_environments(plain, GIVEN[given](), count).vector,
        host_vector(plain, n, GIVEN[given]()),
    ):
        assert seen(env, n) == [(3.0, False, None)] * 5  # it waits for FIRE
    score = make_environments(run.replace(clip_rewards=False), GIVEN[given](), count).vector
    assert seen(score, n)[:2] == [(3.0, False, 3.0), (3.0, True, 3.0)]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["a function", pytest.param("functions", marks=pytest.mark.slow)])
def test_lives_are_counted_in_this_process_also_where_a_function_makes_the_games(given, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    monkeypatch.setattr(create, "PROCESSES_PAY_SECONDS", 0.0)
    monkeypatch.setattr(create, "processors", lambda: 2)
    run = RunConfig.from_dict({"env": "lives", "max_steps": 1, "n_envs": 2})
    for made in (make_environments(run, GIVEN[given](), 2).vector, host_vector(run, 2, GIVEN[given]())):
        assert made.mode == "in-process" and "lives are counted in this process" in made.why
        made.close()
    apart = run.replace(vector="processes")
    with pytest.raises(
        SpecError, match="The lives of games in worker .* vector, --vector.*--no-episodic-life"
    ):
        make_environments(apart, GIVEN[given](), 2)
    with make_environments(apart.replace(episodic_life=False), GIVEN[given](), 2).vector as made:
        assert made.mode == "processes"
        assert seen(made, 2)[:2] == [(1.0, False, 3.0)] * 2


def test_options_of_games_are_refused_where_none_were_made():
    closed = []

    class Plain(Film):
        def __init__(self):
            super().__init__(flat_images(range(3)))

        def close(self):
            closed.append(self)

    run = RunConfig.from_dict({"env": "plain", "max_steps": 1, "n_envs": 2, "clip_rewards": False})
    for given, count in ((Plain, 2), ([Plain, Plain], None), ([Plain(), Plain()], None)):
        with pytest.raises(SpecError, match="clip_rewards is for preprocessed games"):
            make_environments(run, given, count)
    assert len(closed) == 4  # objects are left open
    with pytest.raises(SpecError, match="clip_rewards is for preprocessed games"):
        make_environments(run, create.create(lives, 2))  # which has rules of its own
    as_given = create.create(lives, 2, clip_rewards=True)
    assert make_environments(run.replace(clip_rewards=True), as_given).vector is as_given
    assert host_vector(run, 2, as_given) is as_given


def test_play_presses_fire_in_games_that_are_objects():
    config = PlayConfig.from_dict({"env": "lives"})
    own = make_environments(RunConfig.from_dict({"env": "lives", "max_steps": 1}), lives()).vector.spaces
    for given in (lives(), lives):
        for pressed in (True, False):
            with play_env(config, "lives", given, own, pressed) as env:
                env.reset(0)
                steps = [env.step({"action": np.zeros(1, np.int32)}) for _ in range(5)]
                assert any(step.terminated[0] for step in steps) is pressed


# ALE's games


@needs_ale
@pytest.mark.parametrize("n", [1, 8])
@pytest.mark.slow
def test_a_policy_that_never_presses_fire_is_judged_by_games_that_end(n):
    run = RunConfig.from_dict(
        {"env": "BreakoutNoFrameskip-v4", "preprocess": True, "max_steps": 1, "max_episode_timesteps": 400}
    )
    made = {
        "judged": host_vector(run, n),
        "plain": make_environments(run.replace(n_envs=n, clip_rewards=False, episodic_life=False)).vector,
    }
    ends = {}
    for name, env in made.items():
        env.reset(0)
        steps = [env.step({"action": np.zeros(n, np.int32)}) for _ in range(400)]
        first = [next(s for s in steps if s.terminated[i] or s.truncated[i]) for i in range(n)]
        ends[name] = [bool(step.terminated[i]) for i, step in enumerate(first)]
        env.close()
    assert all(ends["judged"])
    assert not any(ends["plain"])  # the ball lies there until the time limit


@needs_ale
@pytest.mark.parametrize("max_frame", [False, True])
@pytest.mark.parametrize("game", [PONG, "SpaceInvadersNoFrameskip-v4"])
def test_one_game_and_ales_vector_show_the_same(game, max_frame):
    options = {"max_frame": max_frame, "noop_max": 0}
    many, one = create.create(game, 1, preprocess=True, **options), preprocessed(game, **options)
    assert many.mode == "native-vector"
    seen, own = many.reset(0)["state"][0], one.reset(seed=0)[0]
    assert not seen[..., :3].any() and seen[..., 3].any()  # black before the first frame
    different = 0
    for action in np.random.default_rng(0).integers(0, 6, 60):
        assert np.abs(seen.astype(int) - own.astype(int)).max() <= 1  # rounding of averages
        different += np.count_nonzero(seen != own)
        step = many.step({"action": np.array([action], np.int32)})
        own, reward, terminated, _, _ = one.step(action)
        seen = step.observation["state"][0]
        assert (reward, terminated) == (step.reward[0], step.terminated[0])
    assert different < 0.001 * 60 * seen.size
    many.close()


@needs_ale
def test_the_maximum_makes_a_difference():
    def frames(max_frame):
        env = create.create("SpaceInvadersNoFrameskip-v4", 1, preprocess=True, max_frame=max_frame)
        env.reset(0)
        stop = {"action": np.zeros(1, np.int32)}
        return np.stack([env.step(stop).observation["state"] for _ in range(20)])

    assert (frames(True) >= frames(False)).all() and (frames(True) != frames(False)).any()


@needs_ale
@pytest.mark.parametrize("name", [PONG, "Pong-v4", "ALE/Pong-v5"])
def test_frame_skips_do_not_multiply(name):
    one = preprocessed(name, noop_max=0)
    start = one.reset(seed=0)[1]["episode_frame_number"]
    assert one.step(0)[4]["episode_frame_number"] - start == 4
    many = create.create(name, 1, preprocess=True, noop_max=0)
    _, before = many._vector.env.reset(seed=0)
    *_, after = many._vector.env.step(np.zeros(1, np.int64))
    assert after["episode_frame_number"] - before["episode_frame_number"] == 4
    sticky = "probability 0.25" if name.startswith("ALE/") else "no sticky actions"
    assert sticky in many.why
    with pytest.raises(SpecError, match=r"'ALE/Pong-v5' skips frames itself.*frameskip=1"):
        preprocessed(gymnasium.make("ALE/Pong-v5"), max_frame=True)
    own = preprocessed(gymnasium.make("ALE/Pong-v5"), noop_max=0)
    start = own.reset(seed=0)[1]["episode_frame_number"]
    assert own.step(0)[4]["episode_frame_number"] - start == 4


@needs_ale
@pytest.mark.slow
def test_no_ops_at_the_start_differ_with_the_seed():
    env = preprocessed(PONG)
    starts = [env.reset(seed=seed)[1]["episode_frame_number"] for seed in range(8)]
    assert len(set(starts)) > 3 and max(starts) < 30
    assert [env.reset(seed=seed)[1]["episode_frame_number"] for seed in range(8)] == starts


@pytest.mark.slow
@needs_ale
def test_lives_of_a_real_game_and_equal_seeds():
    def run(seed, **options):
        env = create.create("BreakoutNoFrameskip-v4", 3, preprocess=True, **options)
        env.reset(seed)
        rng = np.random.default_rng(1)
        steps = []
        for _ in range(320):
            steps.append((env.step({"action": rng.integers(0, 4, 3).astype(np.int32)}), env.game))
        env.close()
        return steps

    training = run(0, clip_rewards=True, episodic_life=True)
    ended = np.stack([step.terminated for step, _ in training])
    over = np.stack([game.over for _, game in training])
    rewards = np.stack([step.reward for step, _ in training])
    assert (over <= ended).all() and ended.sum() > 3 * over.sum() > 0  # five lives to a game
    assert not (ended[:-1] & ended[1:]).any()
    assert not rewards[1:][ended[:-1]].any()  # the row of the last observation earns nothing
    again = run(0, clip_rewards=True, episodic_life=True)
    other = run(1, clip_rewards=True, episodic_life=True)
    screens = [np.stack([step.observation["state"] for step, _ in of]) for of in (training, again, other)]
    np.testing.assert_array_equal(screens[0], screens[1])
    assert (screens[0] != screens[2]).any()
    whole = run(0)
    assert whole[0][1] is None
    assert sum(step.terminated.sum() for step, _ in whole) < ended.sum()


@needs_ale
def test_the_row_after_the_last_observation_begins_a_game():
    env = create.create(PONG, 1, preprocess=True, max_episode_timesteps=5)
    env.reset(0)
    stop = {"action": np.zeros(1, np.int32)}
    rows = [env.step(stop) for _ in range(7)]
    assert [bool(row.truncated[0]) for row in rows] == [False] * 4 + [True] + [False] * 2
    assert rows[4].observation["state"].any(axis=(1, 2)).all()  # the last observation has four frames
    assert rows[5].observation["state"].any(axis=(1, 2)).tolist() == [[False] * 3 + [True]]


@needs_ale
def test_a_million_transitions_in_the_memory_of_dqn():
    import jax

    from operant.agents.base.agent_spec import parse_agent
    from operant.agents.base.learner import Learner

    env = create.create(PONG, 8, preprocess=True)
    definition = parse_agent("dqn", buffer_max_size=1_000_000)
    algorithm = definition.cls.create(definition.config, env.spaces, 8)
    env.close()
    shapes = jax.tree.leaves(jax.eval_shape(lambda: algorithm.memory.init(Learner(algorithm).example())))
    assert sum(x.size * x.dtype.itemsize for x in shapes) < 7.3e9


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"preprocess": True},
            r"Cannot use --preprocess for non-atari environment CartPole-v1, with input shape \(4,\)",
        ),
        ({"max_frame": True}, r"max_frame is a part of preprocessing.*Add preprocess=True"),
        ({"preprocess": 1}, r"preprocess must be True or False. Received: preprocess=1"),
        (
            {"preprocess": True, "frame_stack": 0},
            r"frame_stack must be a whole number of at least 1. Received: frame_stack=0",
        ),
    ],
)
def test_mistakes(arguments, message):
    with pytest.raises(SpecError, match=message):
        create.create("CartPole-v1", 2, **arguments)


def test_saying_no_to_preprocessing_is_no_mistake():
    create.create("CartPole-v1", 2, preprocess=False, max_frame=False).close()


@needs_ale
def test_arguments_that_would_break_the_stream():
    with pytest.raises(SpecError, match=r"takes no argument 'frameskip'. Did you mean 'frame_skip'"):
        create.create(PONG, 2, preprocess=True, frameskip=2)
    with pytest.raises(SpecError, match=r"takes no argument 'life_loss_info'"):
        create.create(PONG, 2, preprocess=True, life_loss_info=True)


@needs_ale
def test_modes_of_a_game_are_played_in_a_loop():
    arguments = {
        "preprocess": True,
        "env_kwargs": {"mode": 1, "resize": 42, "repeat_action_probability": 0.5},
    }
    made = create.create("ALE/Pong-v5", 2, episodic_life=True, **arguments)
    assert made.mode == "in-process" and "ALE's vector plays the default mode" in made.why
    assert made.spaces.states.components["state"].shape == (42, 42, 4)
    with pytest.raises(
        SpecError, match="A preprocessed Atari game takes no argument 'obs_type': preprocessing sets"
    ):
        create.create("ALE/Pong-v5", 1, "in-process", preprocess=True, obs_type="ram")


def test_max_frame_of_a_run_needs_preprocess():
    with pytest.raises(SpecError, match=r"max_frame is a part of preprocessing.*Add --preprocess"):
        RunConfig.from_dict({"env": PONG, "max_steps": 1, "max_frame": True})


def test_preprocessing_a_jax_environment_is_refused():
    from operant.training.train import ExperimentConfig

    run = RunConfig.from_dict({"env": "jax:CartPole-v1", "max_steps": 1, "preprocess": True})
    with pytest.raises(SpecError, match=r"Cannot use --preprocess for non-atari environment jax:CartPole-v1"):
        train(ExperimentConfig("ppo", {}, run))


@pytest.mark.parametrize(
    ("name", "settings", "limit"),
    [
        ("PongNoFrameskip-v4", {"preprocess": True}, 27_000),
        ("PongNoFrameskip-v4", {"preprocess": True, "frame_skip": 2}, 54_000),
        ("ALE/Pong-v5", {"resize": 84}, 27_000),
    ],
)
def test_the_limit_of_a_game_is_known_in_steps(name, settings, limit):
    pytest.importorskip("ale_py", reason="needs the extra 'atari'")
    with create.create(name, 1, "in-process", images=settings) as envs:
        assert envs.max_episode_timesteps == limit


def test_a_game_may_have_colours():
    pytest.importorskip("ale_py", reason="needs the extra 'atari'")
    assert preprocessed("PongNoFrameskip-v4", gray=False).observation_space.shape == (84, 84, 12)
