"""What several tests of trainers start."""

import pytest


@pytest.fixture
def transfer_queue():
    """Start verl's TransferQueue, which the v1 trainer keeps its batches in."""
    queue = pytest.importorskip("transfer_queue", reason="needs TransferQueue")
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=32, include_dashboard=False, log_to_driver=False)  # its storage asks for CPUs that it leaves idle
    queue.init()
    yield queue
    queue.close()
    ray.shutdown()
