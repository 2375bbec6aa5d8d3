"""What stands for CUDA graphs where there is no GPU, and what they would refuse."""

import weakref

from claimed_cuda import copies
from torch.utils._python_dispatch import TorchDispatchMode


class Recorder:
    """Stands for CUDA graphs; counts recordings and replays."""

    def __init__(self):
        self.recordings = self.replays = 0

    def __call__(self, body):
        self.recordings += 1

        def replay():
            self.replays += 1
            body()

        return replay


class _Replay:
    def __init__(self, body):
        self.body = body

    def __call__(self):
        self.body()


class Watched(Recorder):
    """A recorder that holds none of its recordings and knows how many of them are alive."""

    def __init__(self):
        super().__init__()
        self._made = []

    def __call__(self, body):
        replay = _Replay(super().__call__(body))
        self._made.append(weakref.ref(replay))
        return replay

    @property
    def alive(self):
        return sum(replay() is not None for replay in self._made)


class FromTheHost(TorchDispatchMode):
    """Names of operations that copy a number from the host or read one back; lines of other copies.

    Attributes:
        names: complete when the block ends.
    """

    def __init__(self):
        super().__init__()
        self.names = []
        self._before = []

    def __enter__(self):
        self._before.append(copies().copy())
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.names += (copies() - self._before.pop()).elements()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("lift_fresh", "_local_scalar_dense"):
            self.names.append(name)
        return function(*args, **(kwargs or {}))


class Capture(Recorder):
    """A recorder that refuses what a capture refuses: waits and copies from the host.

    The body runs once when it is recorded, and what it changes in ``arrays()`` is put back.
    ``launches`` (of ``launches.py``) counts a replay as one.
    """

    def __init__(self, waits, arrays=list, launches=None):
        super().__init__()
        self.waits, self.arrays, self.launches = waits, arrays, launches

    def __call__(self, body):
        arrays = self.arrays()
        before, waited = [a.clone() for a in arrays], self.waits.total()
        try:
            with FromTheHost() as seen:
                body()
        finally:
            for array, values in zip(arrays, before, strict=True):
                array.copy_(values)
        if self.waits.total() > waited or seen.names:
            raise RuntimeError("operation not permitted when stream is capturing")
        replay = super().__call__(body)

        def counted():
            if self.launches is None:
                return replay()
            counts = self.launches.counts.copy()
            replay()
            self.launches.counts.clear()
            self.launches.counts.update(counts)
            self.launches.counts["graph"] += 1

        return counted
