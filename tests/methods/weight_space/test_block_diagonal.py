"""Block-diagonal family and its packed covariance roots."""

import pytest
import torch

from gpx.errors import ConfigError
from gpx.methods.weight_space.block_diagonal import BlockDiagonalWeights, CellCovariance
from gpx.methods.weight_space.cells import Cells


def lower(size):
    return torch.randn(size, size, generator=torch.Generator().manual_seed(size)).double().tril()


def test_roots_come_back_and_cost_half_a_square():
    covariance = CellCovariance("float64")
    for cell, size in ((3, 7), (0, 4), (1, 1)):
        covariance.store(cell, lower(size))
        assert covariance.roots[cell].shape == (size * (size + 1) // 2,)
        assert torch.equal(covariance.root(cell, torch.float64), lower(size))
    assert covariance.root(2, torch.float64) is None


def test_storage_keeps_its_digits_whatever_the_model_is_cast_to():
    for storage, error in (("float16", 1e-3), ("float32", 1e-7)):
        covariance = CellCovariance(storage)
        covariance.store(0, lower(6))
        covariance.double()
        found = covariance.root(0, torch.float64)
        assert covariance.roots[0].dtype == getattr(torch, storage)
        assert (found - lower(6)).abs().max() < error * lower(6).abs().max()


def test_roots_saved_in_float16_go_on_in_float32():
    """A state of one storage is loaded by a model of another one, and the other way round."""
    saved, covariance = CellCovariance("float16"), CellCovariance("float32")
    saved.store(0, lower(6))
    covariance.load_state_dict(saved.state_dict())
    torch.testing.assert_close(covariance.root(0, torch.float64), lower(6), rtol=1e-3, atol=1e-6)
    covariance.store(0, lower(6))
    covariance.store(1, lower(4))
    found = covariance.share().state_dict()
    saved.load_state_dict(found)
    torch.testing.assert_close(saved.root(1, torch.float64), lower(4), rtol=1e-6, atol=0)


def test_shared_roots_are_not_affected_by_later_solves_and_are_saved_once(tmp_path):
    covariance = CellCovariance("float64")
    covariance.store(0, lower(50))
    other = covariance.share()
    torch.save({"a": covariance.state_dict(), "b": other.state_dict()}, tmp_path / "both.pt")
    assert (tmp_path / "both.pt").stat().st_size < 1.5 * 50 * 51 / 2 * 8
    covariance.store(0, torch.zeros(50, 50).double())
    assert torch.equal(other.root(0, torch.float64), lower(50))
    restored = CellCovariance("float64")
    restored.load_state_dict(torch.load(tmp_path / "both.pt", weights_only=True)["b"])
    assert torch.equal(restored.root(0, torch.float64), lower(50))


def test_columns_are_diagonal_until_their_cell_is_solved():
    cells = Cells(num_blocks=4, block_size=6, parts=2, blocks_per_group=2)
    family = BlockDiagonalWeights(cells)
    assert family.is_diagonal_column(torch.arange(4)).all()
    family.covariance.store(1, lower(6))  # sines of blocks 0 and 1
    want = torch.ones(4, 6, dtype=torch.bool)
    want[:2, 3:] = False
    assert torch.equal(family.is_diagonal_column(torch.tensor([2, 0])), want[[2, 0]])
    assert [family.is_solved(cell) for cell in range(4)] == [False, True, False, False]
    family.solved_only = True
    assert not family.is_diagonal_column(torch.arange(4)).any()


def test_a_covariance_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"GiB; lower block_columns"):
        BlockDiagonalWeights(Cells(10_000, 1000, 1, 1000))
    # packed roots of 10^7 columns in cells of 1,000: 10^7 * 1,001 / 2 numbers
    for storage, gib in (("float16", 9), ("float64", 37)):
        with pytest.raises(ConfigError, match=f"takes {gib} GiB") as error:
            BlockDiagonalWeights(Cells(10_000, 1000, 1, 1), storage)
        assert "10,000,000 columns" in str(error.value)
    with pytest.raises(ConfigError, match="covariance_storage=int8"):
        CellCovariance("int8")
