"""Check by shapes alone, without compiling, whether a user's JAX-native environment keeps to the protocol.

JAX would complain about the loop that it is compiled into, and name nothing of the user's.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from operant.envs.native.functional import Adapter
from operant.envs.native.native_env import NativeEnv, TimeLimit, TimeStep
from operant.envs.validated_env import smaller_limit
from operant.envs.validation_errors import brief, state_label
from operant.errors import EnvError, OperantError, SpecError, raised_at, whole
from operant.spec.spaces import Leaf, Spaces
from operant.types import Array, Arrays, Key, Tree

_RESET = "(state, observation)"
_STEP = "(state, TimeStep(observation, reward, terminated))"


@dataclasses.dataclass(frozen=True, eq=False)
class AcceptedEnv:
    """An environment as drivers need it, which its user may have written more loosely.

    One that cannot be hashed (it holds arrays) equals itself alone: compiled programs belong to the object.
    """

    env: NativeEnv
    from_zero: bool = False
    """Whether its integers count from their `min_value`, as it declares; algorithms count from 0."""
    dtypes: tuple[Any, ...] | None = None
    """The types of the leaves of its state. Its Python numbers, and numbers of narrower types than declared,
    get these and those of its spaces; None: they have them."""

    @functools.cached_property
    def _key(self) -> Any:
        return self.env if _hashable(self.env) else id(self.env), self.from_zero, self.dtypes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AcceptedEnv) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def spaces(self) -> Spaces:
        """Those of the environment."""
        return self.env.spaces

    @property
    def max_episode_timesteps(self) -> int | None:
        """That of the environment."""
        return self.env.max_episode_timesteps

    def reset(self, key: Key) -> tuple[Tree, Arrays]:
        """Begin an episode."""
        state, observation = self.env.reset(key)
        return self._state(state), self._observation(observation)

    def step(self, state: Tree, action: Arrays, key: Key) -> tuple[Tree, TimeStep]:
        """Take one action."""
        leaves = self.spaces.actions.components
        for name in action if self.from_zero else ():
            if leaves[name].has_offset:
                offset = jnp.asarray(leaves[name].offset, jnp.int32)
                action = {**action, name: jnp.asarray(action[name], jnp.int32) + offset}
        following, stepped = self.env.step(state, action, key)
        observation = self._observation(stepped.observation)
        return self._state(following), TimeStep(observation, stepped.reward, stepped.terminated)

    def _state(self, state: Tree) -> Tree:
        if self.dtypes is None:
            return state
        leaves, structure = jax.tree.flatten(state)
        return jax.tree.unflatten(structure, [_as(x, d) for x, d in zip(leaves, self.dtypes, strict=True)])

    def _observation(self, observation: Any) -> Any:
        leaves = self.spaces.observation_components
        if self.from_zero and isinstance(observation, Mapping):  # else the check says what is wrong
            observation = {k: _from_zero(x, leaves[k]) if k in leaves else x for k, x in observation.items()}
        if self.dtypes is not None:
            observation = {name: _as(observation[name], leaf.storage) for name, leaf in leaves.items()}
        return observation


class _Form(NamedTuple):
    structure: Any
    places: tuple[str, ...]
    """Of its leaves: ``state['position']``."""
    leaves: tuple[jax.ShapeDtypeStruct, ...]


class _CallForm(NamedTuple):
    state: _Form
    cast: bool
    """Whether a component of its observation has another type than declared, and must be cast to it."""


def accepted(env: Any, name: str, limit: int | None = None) -> Any:
    """Return an environment as drivers can compile it, under its own time limit or a smaller one.

    Raises:
        SpecError: its spaces or its time limit are not declared as they must be, or `limit` is larger.
        EnvError: `reset` or `step` fails, or does not return what the protocol or its spaces say.
    """
    env = _compilable(env, name)
    return env if limit is None else TimeLimit(env, smaller_limit(limit, env.max_episode_timesteps, name))


def _compilable(env: Any, name: str) -> Any:
    """Return it, or a wrapper that makes arrays of its numbers."""
    if name.startswith("jax:") or isinstance(env, AcceptedEnv):  # operant's own
        return env
    spaces = env.spaces
    if not isinstance(spaces, Spaces):
        raise SpecError(
            f"spaces of {name!r} must be a property that returns Spaces.read(states=..., actions=...). "
            f"Received: {_brief(spaces)}."
        )
    whole("max_episode_timesteps", env.max_episode_timesteps, optional=True)
    leaves = [*spaces.observation_components.values(), *spaces.actions.components.values()]
    counts_on = any(leaf.has_offset for leaf in leaves) and not _converts(env)
    if counts_on or not _hashable(env):
        env = AcceptedEnv(env, counts_on)
    key = jax.random.key(0)
    first_call = _traced(env, name, "reset", lambda answer: _reset_answer(answer, name, spaces), key)
    actions = spaces.actions.components.items()
    action = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.storage) for name, leaf in actions}
    state = first_call.state
    while True:
        arguments = jax.tree.unflatten(state.structure, [_strong(x) for x in state.leaves])
        stepped = _traced(
            env, name, "step", lambda answer: _step_answer(answer, name, spaces), arguments, action, key
        )
        agreed = _agreed(state, stepped.state, name)
        if agreed.leaves == state.leaves:
            break
        state = agreed
    _warn_of_unused(env, name, arguments, action, key)
    dtypes = tuple(x.dtype for x in state.leaves)
    forms = zip(dtypes, first_call.state.leaves, stepped.state.leaves, strict=True)
    needs_cast = any(
        first.weak_type or not dtype == first.dtype == after.dtype for dtype, first, after in forms
    )
    if not (needs_cast or first_call.cast or stepped.cast):
        return env
    return AcceptedEnv(env.env if isinstance(env, AcceptedEnv) else env, counts_on, dtypes)


def _warn_of_unused(env: Any, name: str, state: Tree, action: Mapping[str, Any], key: Key) -> None:
    """Warn if `step` does not use its action: `action == 1` compares a dict and is always False."""
    jaxpr = jax.make_jaxpr(env.step)(state, action, key).jaxpr
    first = len(jax.tree.leaves(state))
    read = {id(x) for equation in jaxpr.eqns for x in equation.invars} | {id(x) for x in jaxpr.outvars}
    if action and not any(id(x) in read for x in jaxpr.invars[first : first + len(action)]):
        warnings.warn(
            f"step of {name!r} makes no use of its action, {_shown(action)}. Read its components by name: "
            f"action[{next(iter(action))!r}].",
            RuntimeWarning,
            stacklevel=3,
        )


def _traced(env: Any, name: str, method: str, read: Callable[[Any], _CallForm], *arguments: Any) -> _CallForm:
    results = []

    def call(*arguments: Any) -> None:
        results.append(read(getattr(env, method)(*arguments)))

    try:
        jax.eval_shape(call, *arguments)
    except OperantError:
        raise
    except Exception as error:
        about = str(error).strip().partition("\n")[0].rstrip(".")
        called = "key" if method == "reset" else f"state, {_shown(arguments[1])}, key"
        remedy = ""
        if isinstance(error, jax.errors.JAXTypeError):
            remedy = " It is compiled: decide by jax.numpy.where or jax.lax.cond, compute by jax.numpy."
        raise EnvError(
            f"{method} of {name!r} raised {type(error).__name__}: {about}{raised_at(error)}. It is called "
            f"as {method}({called}).{remedy}"
        ) from error
    return results[0]


def _reset_answer(answer: Any, name: str, spaces: Spaces) -> _CallForm:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise EnvError(f"reset of {name!r} must return {_RESET}. Received: {_brief(answer)}.")
    state, observation = answer
    return _CallForm(_form(state, "reset", name), _validate_observation(observation, "reset", name, spaces))


def _step_answer(answer: Any, name: str, spaces: Spaces) -> _CallForm:
    fields = TimeStep._fields
    pair = isinstance(answer, tuple) and len(answer) == 2
    if not pair or not all(hasattr(answer[1], field) for field in fields):
        received = _brief(answer) if not pair else f"(state, {_brief(answer[1])})"
        raise EnvError(
            f"step of {name!r} must return {_STEP}, with TimeStep of operant.envs.native.native_env. "
            f"Received: {received}."
        )
    state, stepped = answer
    for what, value, kinds, must in (
        ("reward", stepped.reward, (jnp.integer, jnp.floating), "a number"),
        ("terminated", stepped.terminated, (jnp.bool_,), "True or False"),
    ):
        form = _array(value)
        if form is None or form.shape != () or not any(jnp.issubdtype(form.dtype, kind) for kind in kinds):
            label = "reward" if what == "reward" else "flag terminated"
            raise EnvError(
                f"step of {name!r}: The {label} must be {must} of shape (). Received: {_shown(value)}."
            )
    return _CallForm(
        _form(state, "step", name), _validate_observation(stepped.observation, "step", name, spaces)
    )


def _validate_observation(observation: Any, call: str, name: str, spaces: Spaces) -> bool:
    """Check an observation against its spaces; return whether a component must be cast."""
    leaves, cast = spaces.observation_components, False

    def refuse(fault: str) -> EnvError:
        return EnvError(
            f"{call} of {name!r} returned an observation that does not fit its spaces: {fault} Correct one "
            "or the other."
        )

    if not isinstance(observation, Mapping) or observation.keys() != leaves.keys():
        wanted = "{" + ", ".join(f"{key!r}: {_shape(leaf)}" for key, leaf in leaves.items()) + "}"
        raise refuse(f"It must be {wanted}. Received: {_shown(observation)}.")
    for key, leaf in leaves.items():
        label = state_label(spaces, key) if key in spaces.states.components else f"mask {key!r}"
        form = _array(observation[key])
        if form is None or form.shape != leaf.shape:
            raise refuse(f"The {label} must be {_shape(leaf)}. Received: {_shown(observation[key])}.")
        if form.dtype != leaf.storage:
            if not _fits(form, leaf):
                raise refuse(
                    f"The {label} must be {_shape(leaf)}. Received: {_shown(observation[key])}. Convert it: "
                    f"x.astype({leaf.dtype!r})."
                )
            cast = True
    return cast


def _fits(form: jax.ShapeDtypeStruct, leaf: Leaf) -> bool:
    """Tell whether values can be cast to the declared type: of a narrower kind or width, or weakly typed."""
    rank, declared = _rank(form.dtype), _rank(leaf.storage)
    if rank < 0 or rank > declared:
        return False
    return (
        form.weak_type or rank < declared or bool(jnp.promote_types(form.dtype, leaf.storage) == leaf.storage)
    )


def _agreed(state: _Form, after: _Form, name: str) -> _Form:
    """Return the form of the state on which `reset` and `step` agree; weak types adopt the other's."""
    if after.structure != state.structure:
        differences = [f"without {place}" for place in state.places if place not in after.places]
        differences += [f"with {place}" for place in after.places if place not in state.places]
        difference = ", ".join(differences[:3]) or f"{after.structure}, not {state.structure}"
        raise EnvError(
            f"step of {name!r} must return a state of the same structure as reset and the step before. "
            f"Received: one {difference}."
        )
    leaves = []
    for place, x, y in zip(state.places, state.leaves, after.leaves, strict=True):
        if x.shape == y.shape and (x.dtype == y.dtype or _yields(y, x)):
            leaves.append(x)
        elif x.shape == y.shape and _yields(x, y):
            leaves.append(y)
        else:
            raise EnvError(
                f"step of {name!r} must return a state of the same shapes and dtypes as reset. Received: "
                f"{place} of {_shown(y)}, where reset returned {_shown(x)}."
            )
    return state._replace(leaves=tuple(leaves))


def _yields(x: jax.ShapeDtypeStruct, y: jax.ShapeDtypeStruct) -> bool:
    return bool(x.weak_type) and _rank(x.dtype) <= _rank(y.dtype)


def _form(state: Any, call: str, name: str) -> _Form:
    pairs, structure = jax.tree_util.tree_flatten_with_path(state)
    places, leaves = [], []
    for path, value in pairs:
        places.append(f"state{jax.tree_util.keystr(path)}")
        leaf = _array(value)
        if leaf is None:
            raise EnvError(
                f"{call} of {name!r} must return a state of arrays. Received: {places[-1]} of "
                f"{_brief(value)}."
            )
        leaves.append(leaf)
    return _Form(structure, tuple(places), tuple(leaves))


def _array(value: Any) -> jax.ShapeDtypeStruct | None:
    try:
        form = jax.typeof(value)
    except TypeError:
        return None
    return jax.ShapeDtypeStruct(form.shape, form.dtype, weak_type=form.weak_type)


def _strong(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _hashable(env: Any) -> bool:
    try:
        hash(env)
    except TypeError:
        return False
    return True


def _converts(env: Any) -> bool:
    """Tell whether it counts from 0 whatever its spaces say, as adapters of other libraries do."""
    return isinstance(env, Adapter) or (isinstance(env, TimeLimit) and _converts(env.env))


def _from_zero(value: Any, leaf: Leaf) -> Any:
    """Return declared integers as they are stored, from 0; anything else, or of another shape, as it is."""
    form = _array(value)
    if not leaf.has_offset or form is None or form.shape != leaf.shape or _rank(form.dtype) != 1:
        return value
    return (jnp.asarray(value, jnp.int32) - jnp.asarray(leaf.offset, jnp.int32)).astype(leaf.storage)


def _as(x: Any, dtype: Any) -> Array:
    return x if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(x, dtype)


def _rank(dtype: Any) -> int:
    """Return the rank of a type: boolean, whole number, float or complex number; else -1."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), -1)


def _shape(leaf: Leaf) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def _shown(value: Any) -> str:
    """Show shapes and types: ``float32[3]``, within dicts too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(x)}" for key, x in value.items()) + "}"
    if isinstance(value, jax.ShapeDtypeStruct):
        form: Any = value
    elif isinstance(value, bool | int | float) or (form := _array(value)) is None:
        return _brief(value)
    return f"{form.dtype}[{','.join(map(str, form.shape))}]"


def _brief(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, jax.Array):
        return _shown(value)
    return brief(value)
