"""The checks that many functions share."""

from __future__ import annotations

import numpy as np
import pytest

from operant.errors import SpecError, whole


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), 3.0, np.float32(3)])
def test_whole_numbers_become_ints(value):
    found = whole("count", value)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize(
    "value", [0, -1, 2.5, 0.0, True, np.True_, "3", None, np.float32(1.5), float("inf"), float("nan")]
)
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(SpecError, match=r"^count must be a whole number of at least 1\. Received: count="):
        whole("count", value)


def test_none_and_remedies():
    assert whole("count", None, optional=True) is None
    with pytest.raises(SpecError, match=r"at least 2, or None\. Received: count=1\. Leave it out\."):
        whole("count", 1, 2, optional=True, remedy="Leave it out.")
