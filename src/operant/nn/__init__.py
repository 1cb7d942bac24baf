"""Networks: specifications, building, and calling them as pure functions. The only part that names Keras.

Importing this package does not load Keras; the first `build` does.
"""

from operant.nn.build import Head, build
from operant.nn.model import Model, Variables
from operant.nn.network import is_image
from operant.nn.policy import Policy

__all__ = ["Head", "Model", "Policy", "Variables", "build", "is_image"]
