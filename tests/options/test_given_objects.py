"""Objects that no config can describe stand in it by a key while they are given."""

import threading

import pytest
from omegaconf import OmegaConf

from gpx.errors import ConfigError
from gpx.kernels import RBF, Product
from gpx.options.build import build, target_of
from gpx.options.given_objects import given_objects


def test_a_node_builds_copies_that_share_what_the_object_shares():
    kernel = RBF() ** 2
    with given_objects([kernel]) as (node,):
        config = OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create({"kernel": node})))
        first, second = (build(config, "kernel") for _ in range(2))
        assert target_of(config.kernel, "kernel") is Product
    assert first.kernels[0] is first.kernels[1]
    assert len({id(each.kernels[0]) for each in (first, second, kernel)}) == 3


def test_a_key_is_valid_while_the_object_is_given():
    with given_objects([RBF()]) as (node,):
        pass
    with pytest.raises(ConfigError, match="are of another process"):
        build(OmegaConf.create({"kernel": node}), "kernel")


def test_an_object_that_cannot_be_copied_is_one_sentence():
    kernel = RBF()
    kernel.lock = threading.Lock()
    refused = pytest.raises(ConfigError, match="a RBF is trained as a copy, and cannot be copied")
    with refused, given_objects([kernel]):
        pass
