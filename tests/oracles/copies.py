"""Pickles and copies, which joblib, scikit-learn and multiprocessing make of everything public."""

import copy
import pickle

import torch

from gpx.constraints import natural_parameters


def copies(module):
    """A pickle of a copy and a copy of a pickle, with the parameters and state of ``module``."""
    for again in (
        pickle.loads(pickle.dumps(copy.deepcopy(module))),
        copy.deepcopy(pickle.loads(pickle.dumps(module))),
    ):
        assert type(module).__name__ == type(again).__name__
        mine, theirs = (
            [(name, p.requires_grad) for name, p in one.named_parameters()]
            for one in (module, again)
        )
        assert mine == theirs  # optimisers go by the order of parameters
        assert module.state_dict().keys() == again.state_dict().keys()
        mine, theirs = natural_parameters(module), natural_parameters(again)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        yield again
