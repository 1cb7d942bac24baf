"""Distributions of actions: immutable pytrees of parameters.

Sampling is split in two. `noise(key, shape)` draws the randomness without knowing any parameter, so a driver
can draw the noise of many rows in one call; `sample(noise)` is a deterministic function of parameters and
noise.

Shapes: parameters are `[*B, *E]` (`[*B, *E, K]` for logits of `K` choices): `B` any batch axes, `E` the axes
of one action, `event_ndim` of them. `log_prob`, `entropy` and `kl` sum over `E` and return `[*B]`. The
`shape` of `noise` is that of the parameters, with `K`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, digamma
from jaxtyping import Bool, Float, Int, UInt32

from operant.ops.losses import pick
from operant.types import Array, Arrays, Key, Tree

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def _pytree(cls: type[T]) -> type[T]:
    """Make a frozen dataclass a pytree; fields marked static are part of its structure.

    Unlike `jax.tree_util.register_dataclass` this does not call the constructor to rebuild one: JAX rebuilds
    pytrees around placeholders too (`eval_shape`), which the constructor's type checks would refuse.
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    data = [f.name for f in fields if not f.metadata.get("static")]
    static = [f.name for f in fields if f.metadata.get("static")]

    def flatten(x: T) -> tuple[Any, Any]:
        children = [(jax.tree_util.GetAttrKey(name), getattr(x, name)) for name in data]
        return children, tuple(getattr(x, name) for name in static)

    def unflatten(values: Any, children: Any) -> T:
        x = object.__new__(cls)
        for name, value in zip((*data, *static), (*children, *values), strict=True):
            object.__setattr__(x, name, value)
        return x

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def _event_ndim() -> Any:
    return dataclasses.field(default=0, metadata={"static": True})


def _event_sum(x: Array, event_ndim: int) -> Array:
    return jnp.sum(x, axis=tuple(range(x.ndim - event_ndim, x.ndim))) if event_ndim else x


@_pytree
class Categorical:
    """One of `K` choices, some of which a mask may forbid.

    A forbidden choice has probability 0 exactly; it is never drawn, entropy and KL leave it out, its logit
    has gradient 0. Its log-probability is a huge negative number rather than -inf, so that differences of two
    of them are not NaN. Where the mask forbids everything (after an episode's end, say) all choices count as
    equal.
    """

    logits: Float[Array, "*B K"]
    mask: Bool[Array, "*B K"] | None = None
    """True where allowed; None allows all."""
    event_ndim: int = _event_ndim()

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Return standard Gumbel noise; `shape` is that of the logits."""
        return jax.random.gumbel(key, shape, jnp.float32)

    @property
    def log_probs(self) -> Float[Array, "*B K"]:
        """Log-probability of every choice."""
        return jax.nn.log_softmax(self._logits)

    @property
    def probs(self) -> Float[Array, "*B K"]:
        """Probability of every choice."""
        return jax.nn.softmax(self._logits)

    @property
    def _logits(self) -> Array:
        if self.mask is None:
            return self.logits
        # half of the lowest float: the largest logit can be subtracted from it without an overflow
        return jnp.where(self.mask, self.logits, np.finfo(self.logits.dtype).min / 2)

    def sample(self, noise: Float[Array, "*B K"]) -> Int[Array, "*B"]:
        """Return the choice with the largest logit plus noise (the Gumbel-max trick: Gumbel 1954)."""
        return jnp.argmax(self._logits + noise, axis=-1).astype(jnp.int32)

    def mode(self) -> Int[Array, "*B"]:
        """Return the most probable choice."""
        return jnp.argmax(self._logits, axis=-1).astype(jnp.int32)

    def log_prob(self, x: Int[Array, "*B"]) -> Float[Array, "*E"]:
        """Return the log-probability of choices 0 to K - 1."""
        return _event_sum(pick(self.log_probs, x), self.event_ndim)

    def entropy(self) -> Float[Array, "*E"]:
        """Return -Σ p log p."""
        return _event_sum(-jnp.sum(self.probs * self.log_probs, axis=-1), self.event_ndim)

    def kl(self, other: Categorical) -> Float[Array, "*E"]:
        """Return Σ p (log p - log q). Huge where `other` forbids what this one allows."""
        difference = self.log_probs - other.log_probs
        return _event_sum(jnp.sum(self.probs * difference, axis=-1), self.event_ndim)


@_pytree
class Bernoulli:
    """Yes or no; the logit is log(p / (1 - p))."""

    logits: Float[Array, "*B"]
    event_ndim: int = _event_ndim()

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Return standard logistic noise; `shape` is that of the logits."""
        return jax.random.logistic(key, shape, jnp.float32)

    def sample(self, noise: Float[Array, "*B"]) -> Bool[Array, "*B"]:
        """Return True where logit plus noise is above 0."""
        return self.logits + noise > 0

    def mode(self) -> Bool[Array, "*B"]:
        """Return the more probable answer."""
        return self.logits > 0

    def log_prob(self, x: Bool[Array, "*B"]) -> Float[Array, "*E"]:
        """Return the log-probability of the answers."""
        return _event_sum(jax.nn.log_sigmoid(jnp.where(x, self.logits, -self.logits)), self.event_ndim)

    def entropy(self) -> Float[Array, "*E"]:
        """Return -p log p - (1 - p) log (1 - p)."""
        nats = jax.nn.softplus(self.logits) - self.logits * jax.nn.sigmoid(self.logits)
        return _event_sum(nats, self.event_ndim)

    def kl(self, other: Bernoulli) -> Float[Array, "*E"]:
        """Return the divergence, written with logits so that p of 0 or 1 does no harm."""
        p = jax.nn.sigmoid(self.logits)
        normaliser = jax.nn.softplus(other.logits) - jax.nn.softplus(self.logits)
        return _event_sum(p * (self.logits - other.logits) + normaliser, self.event_ndim)


@_pytree
class Normal:
    """Independent Gaussians."""

    mean: Float[Array, "*B"]
    log_std: Float[Array, "*B"]
    event_ndim: int = _event_ndim()

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...]) -> Float[Array, "..."]:
        """Return standard normal noise; `shape` is that of the mean."""
        return jax.random.normal(key, shape, jnp.float32)

    def sample(self, noise: Float[Array, "*B"]) -> Float[Array, "*B"]:
        """Return mean + std * noise, differentiable in both parameters."""
        return self.mean + jnp.exp(self.log_std) * noise

    def mode(self) -> Float[Array, "*B"]:
        """Return the mean."""
        return self.mean

    def std(self) -> Float[Array, "*B"]:
        """Return the standard deviation of every element."""
        return jnp.exp(self.log_std)

    def log_prob(self, x: Float[Array, "*B"]) -> Float[Array, "*E"]:
        """Return the log-density of `x`."""
        z = (x - self.mean) * jnp.exp(-self.log_std)
        return _event_sum(_log_density(z, self.log_std), self.event_ndim)

    def entropy(self) -> Float[Array, "*E"]:
        """Return log σ + log(2πe) / 2."""
        return _event_sum(self.log_std + 0.5 * math.log(2 * math.pi * math.e), self.event_ndim)

    def kl(self, other: Normal) -> Float[Array, "*E"]:
        """Return log(σ'/σ) + (σ² + (μ - μ')²) / 2σ'² - 1/2."""
        ratio = self.log_std - other.log_std
        distance = (self.mean - other.mean) * jnp.exp(-other.log_std)
        nats = 0.5 * (jnp.expm1(2.0 * ratio) + jnp.square(distance)) - ratio
        return _event_sum(nats, self.event_ndim)


def _log_density(z: Array, log_std: Array) -> Array:
    return -0.5 * jnp.square(z) - log_std - 0.5 * math.log(2 * math.pi)


_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)  # weights sum to sqrt(2π)


def _log_tanh_slope(u: Array) -> Array:
    """Return log(1 - tanh² u) as 2 (log 2 - u - softplus(-2u)), which does not round to log 0."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


def _width(range_: Array) -> Array:
    """Return the width that densities use: 1 instead of 0, if there is only one value."""
    return jnp.where(range_ > 0, range_, 1.0)


@_pytree
class SquashedNormal:
    """A Gaussian u through tanh, scaled to [low, high]: x = centre + half * tanh(u).

    Haarnoja et al. 2018, appendix C. `mean` and `log_std` are those of u, without bounds.
    """

    mean: Float[Array, "*B"]
    log_std: Float[Array, "*B"]
    low: Float[Array, "..."]
    """Lower bounds, of the shape of one action or scalar."""
    high: Float[Array, "..."]
    event_ndim: int = _event_ndim()

    noise = staticmethod(Normal.noise)

    def _scale(self) -> tuple[Array, Array]:
        half = 0.5 * self.high - 0.5 * self.low  # the whole width may be beyond the largest float
        return jnp.broadcast_to(self.low + half, self.mean.shape), jnp.broadcast_to(half, self.mean.shape)

    def sample(self, noise: Float[Array, "*B"]) -> Float[Array, "*B"]:
        """Return an action within the bounds, differentiable in the parameters."""
        return self.sample_and_log_prob(noise)[0]

    def sample_and_log_prob(self, noise: Float[Array, "*B"]) -> tuple[Float[Array, "*B"], Float[Array, "*E"]]:
        """Return an action and its log-density, which is exact even where tanh rounds to ±1."""
        u = self.mean + jnp.exp(self.log_std) * noise
        centre, half = self._scale()
        log_prob = _log_density(noise, self.log_std) - _log_tanh_slope(u) - jnp.log(_width(half))
        return centre + half * jnp.tanh(u), _event_sum(log_prob, self.event_ndim)

    def mode(self) -> Float[Array, "*B"]:
        """Return the squashed mean (the median: the density itself may peak at a bound)."""
        centre, half = self._scale()
        return centre + half * jnp.tanh(self.mean)

    def log_prob(self, x: Float[Array, "*B"]) -> Float[Array, "*E"]:
        """Return the log-density of `x`. At a bound, and beyond, that of the nearest float inside."""
        centre, half = self._scale()
        bound = 1.0 - float(np.finfo(self.mean.dtype).eps)
        u = jnp.arctanh(jnp.clip((x - centre) / _width(half), -bound, bound))
        z = (u - self.mean) * jnp.exp(-self.log_std)
        log_prob = _log_density(z, self.log_std) - _log_tanh_slope(u) - jnp.log(_width(half))
        return _event_sum(log_prob, self.event_ndim)

    def std(self) -> Float[Array, "*B"]:
        """Return the standard deviation of every element, by the quadrature of `entropy`."""
        first, second = self._expect(jnp.tanh), self._expect(lambda u: jnp.square(jnp.tanh(u)))
        return self._scale()[1] * jnp.sqrt(jnp.maximum(second - jnp.square(first), 0.0))

    def entropy(self) -> Float[Array, "*E"]:
        """Return the entropy of u plus E[log dx/du], the latter by Gauss-Hermite quadrature over 32 nodes.

        There is no closed form. The quadrature is deterministic and differentiable; it errs by less than
        0.001 nats for a standard deviation of u up to 2, and by less than 0.02 up to 4.
        """
        slope = self._expect(_log_tanh_slope) + jnp.log(_width(self._scale()[1]))
        gaussian = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return _event_sum(gaussian + slope, self.event_ndim)

    def _expect(self, function: Callable[[Array], Array]) -> Array:
        nodes = jnp.asarray(_NODES, self.mean.dtype).reshape(-1, *[1] * self.mean.ndim)
        weights = jnp.asarray(_WEIGHTS / _WEIGHTS.sum(), self.mean.dtype)
        mean, std = self.mean[None], jnp.exp(self.log_std)[None]
        return jnp.tensordot(weights, function(mean + std * nodes), axes=1)

    def kl(self, other: SquashedNormal) -> Float[Array, "*E"]:
        """Return the divergence of the Gaussians: exact, as both go through the same bijection."""
        mine = Normal(self.mean, self.log_std, self.event_ndim)
        return mine.kl(Normal(other.mean, other.log_std, self.event_ndim))


@_pytree
class Beta:
    """A Beta distribution scaled to [low, high]: Chou et al. 2017."""

    alpha: Float[Array, "*B"]
    """First concentration, above 0; with both above 1 the density has one peak, inside the bounds."""
    beta: Float[Array, "*B"]
    low: Float[Array, "..."]
    """Lower bounds, of the shape of one action or scalar."""
    high: Float[Array, "..."]
    event_ndim: int = _event_ndim()

    @staticmethod
    def noise(key: Key, shape: tuple[int, ...]) -> UInt32[Array, "... 2"]:
        """Return the bits of one key per element, as the sampler rejects an unknown number of proposals."""
        return jax.random.bits(key, (*shape, 2), jnp.uint32)

    def _scale(self) -> tuple[Array, Array]:
        shape = self.alpha.shape
        half = 0.5 * self.high - 0.5 * self.low  # the whole width may be beyond the largest float
        return jnp.broadcast_to(self.low + half, shape), jnp.broadcast_to(half, shape)

    def _log_width(self) -> Array:
        half = self._scale()[1]
        return jnp.where(half > 0, jnp.log(_width(half)) + math.log(2.0), 0.0)

    def sample(self, noise: UInt32[Array, "*B 2"]) -> Float[Array, "*B"]:
        """Return an action within the bounds."""
        keys = jax.random.wrap_key_data(noise.reshape(-1, 2), impl="threefry2x32")
        draw = jax.vmap(jax.random.beta)(keys, self.alpha.reshape(-1), self.beta.reshape(-1))
        centre, half = self._scale()
        return centre + half * (2.0 * draw.reshape(self.alpha.shape) - 1.0)

    def mode(self) -> Float[Array, "*B"]:
        """Return the peak of the density, or its mean if it has none or two (concentrations at most 1)."""
        a, b = jnp.maximum(self.alpha - 1.0, 0.0), jnp.maximum(self.beta - 1.0, 0.0)
        peaked = a + b > 0
        peak = a / jnp.where(peaked, a + b, 1.0)
        centre, half = self._scale()
        share = jnp.where(peaked, peak, self.alpha / (self.alpha + self.beta))
        return centre + half * (2.0 * share - 1.0)

    def log_prob(self, x: Float[Array, "*B"]) -> Float[Array, "*E"]:
        """Return the log-density of `x`. At a bound, and beyond, that of the nearest float inside."""
        centre, half = self._scale()
        eps = float(np.finfo(self.alpha.dtype).eps)
        y = jnp.clip(jnp.where(half > 0, 0.5 + 0.5 * (x - centre) / _width(half), 0.5), eps, 1.0 - eps)
        log_prob = (self.alpha - 1.0) * jnp.log(y) + (self.beta - 1.0) * jnp.log1p(-y)
        return _event_sum(log_prob - betaln(self.alpha, self.beta) - self._log_width(), self.event_ndim)

    def std(self) -> Float[Array, "*B"]:
        """Return the standard deviation of every element: (high - low) √(αβ / (α+β+1)) / (α+β)."""
        total = self.alpha + self.beta
        return 2.0 * self._scale()[1] * jnp.sqrt(self.alpha * self.beta / (total + 1.0)) / total

    def entropy(self) -> Float[Array, "*E"]:
        """Return log B(α, β) - (α-1) ψ(α) - (β-1) ψ(β) + (α+β-2) ψ(α+β) + log(high - low)."""
        a, b = self.alpha, self.beta
        nats = betaln(a, b) - (a - 1.0) * digamma(a) - (b - 1.0) * digamma(b)
        nats = nats + (a + b - 2.0) * digamma(a + b) + self._log_width()
        return _event_sum(nats, self.event_ndim)

    def kl(self, other: Beta) -> Float[Array, "*E"]:
        """Return log B(α', β') - log B(α, β) + (α-α') ψ(α) + (β-β') ψ(β) + (α'-α+β'-β) ψ(α+β).

        Same bounds.
        """
        a, b = self.alpha, self.beta
        da, db = a - other.alpha, b - other.beta
        nats = betaln(other.alpha, other.beta) - betaln(a, b)
        nats = nats + da * digamma(a) + db * digamma(b) - (da + db) * digamma(a + b)
        return _event_sum(nats, self.event_ndim)


Distribution: TypeAlias = Categorical | Bernoulli | Normal | SquashedNormal | Beta
"""Log-densities, entropies and divergences are in nats."""


class NoiseKind(NamedTuple):
    """What must be known about a distribution to draw its noise."""

    distribution: type[Distribution]
    shape: tuple[int, ...]
    """Of its parameters without the batch axes: `(*E, K)` of a `Categorical`, `(*E,)` of the others."""


@_pytree
class Product:
    """Independent distributions by component name; an action is a dict with the same names."""

    parts: Mapping[str, Distribution]

    @staticmethod
    def noise(key: Key, kinds: Mapping[str, NoiseKind], batch: tuple[int, ...] = ()) -> Tree:
        """Return the noise of every component for the batch shape, in a dict.

        The order in which `kinds` lists the components does not matter.
        """
        keys = jax.random.split(key, len(kinds))
        return {
            name: kinds[name].distribution.noise(k, (*batch, *kinds[name].shape))
            for name, k in zip(sorted(kinds), keys, strict=True)
        }

    def sample(self, noise: Mapping[str, Any]) -> Arrays:
        """Return the actions drawn with this noise."""
        return {name: part.sample(noise[name]) for name, part in self.parts.items()}

    def mode(self) -> Arrays:
        """Return the mode of every component."""
        return {name: part.mode() for name, part in self.parts.items()}

    def log_prob(self, x: Mapping[str, Array]) -> Float[Array, "*E"]:
        """Return the log-probability of the joint action: the sum over the components."""
        return self._sum({name: part.log_prob(x[name]) for name, part in self.parts.items()})

    def entropy(self) -> Float[Array, "*E"]:
        """Return the joint entropy: the sum over the components."""
        return self._sum({name: part.entropy() for name, part in self.parts.items()})

    def std(self) -> Float[Array, "*E"] | None:
        """Return the mean standard deviation over the elements of continuous components, if any."""
        parts = [part for part in self.parts.values() if isinstance(part, Normal | SquashedNormal | Beta)]
        each = [(part.std(), part.event_ndim) for part in parts]
        size = sum(math.prod(std.shape[std.ndim - axes :]) for std, axes in each)
        if size == 0:
            return None
        return functools.reduce(operator.add, (_event_sum(std, axes) for std, axes in each)) / size

    def kl(self, other: Product) -> Float[Array, "*E"]:
        """Return the joint divergence: the sum over the components."""
        theirs: Mapping[str, Any] = other.parts
        return self._sum({name: part.kl(theirs[name]) for name, part in self.parts.items()})

    def _sum(self, terms: Mapping[str, Array]) -> Array:
        return functools.reduce(operator.add, (terms[name] for name in sorted(terms)))
