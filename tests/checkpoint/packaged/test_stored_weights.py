"""Weights in the precisions of a package, against NumPy and ml_dtypes."""

from __future__ import annotations

import io
import warnings

import ml_dtypes
import numpy as np
import pytest

from towernmt.checkpoint.stored_weights import from_npy, npy, restore, store


@pytest.mark.parametrize("shape", [(40, 16), (3, 8, 12), (1, 5)])
def test_int8_is_within_half_a_step_of_every_value_and_takes_the_closer_scales(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    for axis in (0, -1):        # values whose size depends on the row, or on the column
        sizes = np.exp(random.normal(0, 2, shape[axis])).reshape([-1 if i == axis % len(shape) else 1
                                                                  for i in range(len(shape))])
        value = (random.normal(0, 1, shape) * sizes).astype(np.float32)
        stored = store(value, "int8")
        assert stored.scales is not None and stored.values.dtype == np.int8
        step = np.broadcast_to(stored.scales, shape)
        assert (np.abs(restore(stored) - value) <= step * 0.5001).all()
        reduced_axes = {0: tuple(range(1, len(shape))), -1: tuple(range(len(shape) - 1))}
        errors = {}
        for kept_axis, over in reduced_axes.items():      # by definition, the largest value of each slice is 127 steps
            by_book = np.abs(value.astype(np.float64)).max(axis=over, keepdims=True) / 127
            errors[kept_axis] = np.square(np.rint(value / by_book) * by_book - value).sum()
        error = np.square(restore(stored).astype(np.float64) - value).sum()
        assert error == pytest.approx(min(errors.values()), rel=1e-3)


def test_bfloat16_is_rounded_as_ml_dtypes_rounds_it() -> None:
    value = np.random.default_rng(2).normal(0, 1, [64, 33]).astype(np.float32)
    value[0, :3] = [1.00390625, 1.01171875, 0.0]     # ties, which go to even
    assert np.array_equal(restore(store(value, "bfloat16")), value.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_vectors_and_whole_numbers_are_stored_unchanged() -> None:
    for value in (np.linspace(0, 1, 7, dtype=np.float32), np.arange(6).reshape(2, 3), np.zeros([4, 0], np.float32),
                  np.array(0.5, np.float32)):
        for precision in ("float32", "bfloat16", "int8"):
            restored = restore(store(value, precision))  # type: ignore[arg-type]
            assert restored.dtype == value.dtype and np.array_equal(restored, value)
    assert np.array_equal(restore(store(np.zeros([3, 3], np.float32), "int8")), np.zeros([3, 3]))


def test_arrays_equal_those_that_numpy_reads_and_other_contents_are_refused() -> None:
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    for array in (value, value.T, value[:, 1], np.array(0.5, np.float32)):
        assert np.array_equal(np.load(io.BytesIO(npy(array)), allow_pickle=False), array)
        assert np.array_equal(from_npy(npy(array)), array) and from_npy(npy(array)).shape == array.shape
    pickled, huge = io.BytesIO(), io.BytesIO()
    np.save(pickled, np.array([{"a": 1}], object), allow_pickle=True)
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    for content in (pickled.getvalue(), huge.getvalue(), npy(value)[:-1], npy(value) + b"x", b"PK\x03\x04", b""):
        with warnings.catch_warnings(), pytest.raises(ValueError):
            warnings.simplefilter("ignore")
            from_npy(content)
