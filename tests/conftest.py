"""What every test runs under: one thread, no gradients, and each device this machine has."""

import pytest
import torch

HERE = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pytest_configure(config):
    config.addinivalue_line("markers", "accelerator: runs on a GPU; there only where the machine has one")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)


@pytest.fixture(params=[pytest.param(name, marks=() if name == "cpu" else pytest.mark.accelerator) for name, there in HERE.items() if there])
def device(request) -> str:
    return request.param
