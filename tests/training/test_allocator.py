import platform
import subprocess
import sys

import pytest

PROBE = """
import resource, torch
from gpx.training.allocator import keep_freed_memory

def faults():
    torch.zeros(1 << 26, dtype=torch.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(1 << 26, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults())
assert keep_freed_memory()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_repeated_temporaries_fault_their_pages_in_once():
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    default, kept = map(int, done.stdout.split())
    assert kept * 3 < default
