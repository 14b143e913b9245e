"""Apply the settings of a run that make a GPU faster: TF32 and cuDNN benchmarking. They have no effect on a CPU."""

from __future__ import annotations

import torch

from nearfar.config.schema import Config


def set_gpu_switches(config: Config) -> None:
    """Set PyTorch's global flags for this process from the settings `tf32` and `cudnn_benchmark`."""
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.allow_tf32 = config.tf32 != "none"
    torch.backends.cuda.matmul.allow_tf32 = config.tf32 == "all"
