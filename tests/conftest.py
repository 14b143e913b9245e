import pytest
import torch

# the modules behind tests/test_golden.py show their values when an assertion fails, as tests do
pytest.register_assert_rewrite(
    *(f"golden_{part}" for part in ("bspml", "cases", "dro", "identities", "metrics", "profs", "proxy"))
)

# One thread: the batches are tiny, and sums come out in the same order on every machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
