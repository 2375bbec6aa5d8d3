import resource
from contextlib import contextmanager

import pytest


@pytest.fixture
def limited_files():
    """``with limited_files(size)``: no file may grow beyond ``size`` bytes, as on a full disk."""

    @contextmanager
    def limit(size):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
