"""State and action spaces: components, checks of values, conversion from and to Gymnasium's.

Inside operant an observation or an action is a flat dict of arrays by component name. `Space` knows the
user's structure and converts at the boundary. Environment workers use this package: it never imports JAX.
"""

from operant.spec.spaces.convert import Codec, SpaceCodec, from_gymnasium, to_gymnasium
from operant.spec.spaces.leaf import Leaf
from operant.spec.spaces.masks import beside, mask_name, masks_of, nested
from operant.spec.spaces.space import RESERVED, Space, Spaces, require

__all__ = [
    "RESERVED",
    "Codec",
    "Leaf",
    "Space",
    "SpaceCodec",
    "Spaces",
    "beside",
    "from_gymnasium",
    "mask_name",
    "masks_of",
    "nested",
    "require",
    "to_gymnasium",
]
