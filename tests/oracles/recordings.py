"""What stands for CUDA graphs where there is no GPU, and what they would refuse."""

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


class FromTheHost(TorchDispatchMode):
    """Names of operations that copy a number from the host or read one back."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("lift_fresh", "_local_scalar_dense"):
            self.names.append(name)
        return function(*args, **(kwargs or {}))
