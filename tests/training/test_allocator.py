import platform
import subprocess
import sys

import pytest

PROBE = """
import resource, sys, torch
from gpx.training.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.zeros(1 << 26, dtype=torch.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(1 << 26, dtype=torch.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_repeated_temporaries_fault_their_pages_in_once():
    def faults(mode):
        command = [sys.executable, "-c", PROBE, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("keep") * 3 < faults("default")
