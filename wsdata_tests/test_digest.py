import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsdata.digest import canonical_json, digest, short_digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_canonical_json_is_json_of_the_same_value(value):
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(), st.integers(), min_size=2))
def test_order_of_keys_does_not_matter(value):
    backwards = dict(reversed(value.items()))
    assert digest(value) == digest(backwards)


def test_known_digest():
    # printf '{"a":[1,2.5,null,"\\u00e9"]}' with a real e-acute, through sha256sum.
    import hashlib

    assert canonical_json({"a": (1, 2.5, None, "\u00e9")}) == '{"a":[1,2.5,null,"\u00e9"]}'
    expected = hashlib.sha256('{"a":[1,2.5,null,"\u00e9"]}'.encode()).hexdigest()
    assert digest({"a": [1, 2.5, None, "\u00e9"]}) == expected
    assert short_digest({"a": [1, 2.5, None, "\u00e9"]}) == expected[:16]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"x": [1.0, float("-inf")]}])
def test_numbers_without_a_canonical_form_are_refused(value):
    with pytest.raises(ValueError, match="no canonical form"):
        digest(value)


@pytest.mark.parametrize("value", [b"x", {1: 2}, {1, 2}, object()])
def test_other_types_are_refused(value):
    with pytest.raises(TypeError):
        digest(value)


def test_negative_zero_is_zero():
    assert digest(-0.0) == digest(0.0)
