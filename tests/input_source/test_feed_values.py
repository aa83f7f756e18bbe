"""Values for feed tensors: converted values and refused values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from towernmt.core.errors import FeederError
from towernmt.core.tf_compat import tf, tf1
from towernmt.input_source.feed_values import feed_dict

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
FLOATS = ["float16", "float32", "float64"]


@pytest.fixture(autouse=True)
def fresh_graph(graph):
    yield graph


def fed(value, dtype, shape=None, name="x"):
    tensor = tf1.placeholder(dtype, shape, name)
    return feed_dict(tensor, value)[tensor]


@pytest.mark.parametrize("value, dtype, expected", [
    (np.array([0.1, -2.5]), "float32", np.array([0.1, -2.5], np.float32)),
    (np.array([0.1, 3.0]), "bfloat16", np.array([0.1, 3.0], ml_dtypes.bfloat16)),
    (np.array([0.5], ml_dtypes.bfloat16), "float32", np.array([0.5], np.float32)),
    (np.array([np.inf, -np.inf, np.nan]), "float32", np.array([np.inf, -np.inf, np.nan], np.float32)),
    (np.array([1, 2**31 - 1], np.int64), "int32", np.array([1, 2**31 - 1], np.int32)),
    (np.array([7], np.uint64), "int32", np.array([7], np.int32)),
    (np.array([3, 0], np.uint8), "float32", np.array([3, 0], np.float32)),
    (np.array([2.0, -5.0]), "int32", np.array([2, -5], np.int32)),
    (np.array([0, 1]), "bool", np.array([False, True])),
    (np.array([True]), "float32", np.array([1], np.float32)),
    (np.array([1e-60]), "float32", np.array([0], np.float32)),
    ([np.int16(3)], "int32", np.array([3], np.int32)), ([], "int32", np.array([], np.int32)), (1.5, "float32", 1.5),
    (["ä", b"b\0"], "string", np.array(["ä", b"b\0"], object)), (np.array(["ab"]), "string", np.array(["ab"], object)),
])
def test_a_value_that_loses_nothing_but_precision_is_converted(value, dtype, expected):
    converted = fed(value, dtype)
    assert converted.dtype == tf.as_dtype(dtype).as_numpy_dtype
    assert np.array_equal(converted, expected, equal_nan=dtype != "string")


@pytest.mark.parametrize("value, dtype, message", [
    (np.array([1.5, 2.5]), "int32", "dtype float64 and holds 1.5, which is not a whole number; expected int32"),
    ([1.5], "int32", "holds 1.5, which is not a whole number"),
    (np.array([2**31], np.int64), "int32", "holds 2147483648, which int32 cannot hold"),
    (np.array([-1]), "uint8", "holds -1, which uint8 cannot hold"),
    (np.array([2**63], np.uint64), "int64", "holds 9223372036854775808, which int64 cannot hold"),
    (np.array([-1]), "uint64", "holds -1, which uint64 cannot hold"),
    ([2**40], "int32", "holds 1099511627776, which int32 cannot hold"),
    ([2**70], "int64", "holds 1180591620717411303424, which int64 cannot hold"),
    ([2**70], "float32", "which float32 cannot hold"),
    (np.array([1e300]), "float32", r"holds 1e\+300, which float32 cannot hold"),
    (np.array([70000.0], np.float32), "float16", "holds 70000.0, which float16 cannot hold"),
    (np.array([np.nan]), "int32", "holds nan, which int32 cannot hold"),
    (np.array([3e9]), "int32", "holds 3000000000.0, which int32 cannot hold"),
    (np.array([2**24 + 1]), "float32", "holds 16777217, which float32 cannot hold"),
    (np.array([2]), "bool", "holds 2, which bool cannot hold"),
    (np.array([1e300 + 1j]), "complex64", "which complex64 cannot hold"),
    (np.array([1j]), "float32", "dtype complex128; expected float32"),
    (["a"], "int32", "dtype <U1; expected int32"), (["1"], "float32", "dtype <U1; expected float32"),
    (None, "float32", "dtype object; expected float32"),
    (np.array(["2026-01-01"], "datetime64[D]"), "int64", "dtype datetime64"),
    ([3], "string", "dtype object; expected string"), (np.array([3]), "string", "dtype int64; expected string"),
    ([["a", None]], "string", "dtype object; expected string"),
    ([[1], [2, 3]], "int32", "not an array"), ((n for n in (1, 2)), "int32", "a generator"),
])
def test_a_value_that_would_change_is_refused(value, dtype, message):
    with pytest.raises(FeederError, match=f"'x'.*{message}"):
        fed(value, dtype)


@pytest.mark.parametrize("value, shape", [(5, [None]), ([[1, 2], [3, 4]], [None]), ([1, 2], [3])])
def test_a_wrong_shape_is_refused(value, shape):
    with pytest.raises(FeederError, match="'x' has the shape .*; expected"):
        fed(value, "int32", shape)


@given(st.data(), st.sampled_from(INTEGERS + FLOATS), st.sampled_from(INTEGERS + FLOATS))
def test_whole_numbers_arrive_unchanged_or_are_refused(data, dtype, fed_dtype):
    array = data.draw(arrays.arrays(dtype, 3))
    try:
        with tf.Graph().as_default():
            converted = fed(array, fed_dtype)
    except FeederError:
        # Python's numbers are the reference: a value that the dtype cannot hold, exactly or, for floats, in range.
        assert any(not held(item, fed_dtype, dtype) for item in array.tolist())
    else:
        assert all(held(item, fed_dtype, dtype) for item in array.tolist())
        if fed_dtype in INTEGERS:
            assert [int(item) for item in array.tolist()] == [int(item) for item in converted.tolist()]


def held(value, fed_dtype: str, dtype: str) -> bool:
    """Return whether a dtype can hold a Python number: an integer exactly, a float up to its precision."""
    if fed_dtype in FLOATS:
        with np.errstate(all="ignore"):
            cast = float(np.dtype(fed_dtype).type(value))
        return cast == value if dtype in INTEGERS else np.isfinite(cast) or not np.isfinite(value)
    if not np.isfinite(value) or value != int(value):
        return False
    low, high = (0, 1) if fed_dtype == "bool" else (np.iinfo(fed_dtype).min, np.iinfo(fed_dtype).max)
    return low <= int(value) <= high


@pytest.mark.parametrize("values, message", [
    ([1], r"Expected 2 values \(a, b\); got 1"), ([1, 2, 3], r"2 values \(a, b\); got 3"),
    (1, "a list or a dict with a value for each of a, b; got int"),
    (np.zeros([2, 3]), r"for each of a, b; got one array of shape \[2, 3\]"),
    ({"a": 1}, "keys a, b; got one without b"),
    ({"a": 1, "b": 2, "c": 3}, "keys a, b; got one with the unexpected c"),
    ({"a": 1, "c": 3}, "got one without b and with the unexpected c"), (None, "got NoneType"),
])
def test_a_wrong_number_of_values_names_those_that_are_expected(values, message):
    tensors = [tf1.placeholder(tf.int32, [], name) for name in "ab"]
    with pytest.raises(FeederError, match=message):
        feed_dict(tensors, values)


@pytest.mark.parametrize("keys", ["names", "tensors", "tensor names"])
def test_a_dict_is_put_into_the_order_of_the_tensors(keys):
    tensors = [tf1.placeholder(tf.int32, [], name) for name in ("scope/a", "scope/b")]
    names = {"names": ["first", "second"], "tensors": tensors, "tensor names": ["scope/a:0", "scope/b:0"]}[keys]
    values = {names[1]: 2, names[0]: 1}
    assert feed_dict(tensors, values, ["first", "second"]) == dict(zip(tensors, [1, 2], strict=True))
