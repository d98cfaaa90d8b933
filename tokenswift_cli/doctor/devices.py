"""What torch can compute on."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from tokenswift_cli.config import ModelConfig
from tokenswift_cli.errors import ModelError


@dataclass(frozen=True)
class Accelerator:
    """A device beside the CPU.

    Attributes:
        name: for ``--device``.
        description: its maker's name for it.
        memory_bytes, free_bytes: None if it does not tell.
    """

    name: str
    description: str
    memory_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True)
class Devices:
    """Where models can run.

    Attributes:
        threads: CPU threads that a run would use.
        accelerators: in the order of their numbers.
        cuda_build: version of CUDA that torch was built for; None if for none.
        chosen: the device that a run would use; None if the one asked for is not there.
        problem: why not, as sentences; else None.
        warnings: what torch complained of while it looked.
    """

    threads: int
    accelerators: tuple[Accelerator, ...]
    cuda_build: str | None
    chosen: str | None
    problem: str | None
    warnings: tuple[str, ...] = ()

    @property
    def chosen_type(self) -> str:
        """``cpu``, ``cuda`` or ``mps``."""
        return (self.chosen or "cpu").partition(":")[0]


def find_devices(config: ModelConfig) -> Devices:
    """Ask torch. ``config``: the device and threads wanted."""
    import torch

    from tokenswift_cli.models.device import choose_device

    chosen: str | None = None
    problem: str | None = None
    # A driver that is too old is told of in a warning only.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerators = _accelerators()
        try:
            chosen = str(choose_device(config.device))
        except ModelError as error:
            problem = str(error)
    return Devices(
        threads=config.threads or torch.get_num_threads(),
        accelerators=accelerators,
        cuda_build=torch.version.cuda,
        chosen=chosen,
        problem=problem,
        warnings=tuple(dict.fromkeys(str(warning.message).strip() for warning in caught)),
    )


def _accelerators() -> tuple[Accelerator, ...]:
    import torch

    found = []
    if torch.cuda.is_available():
        found += [_cuda(index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(Accelerator("mps", "Apple GPU"))
    return tuple(found)


def _cuda(index: int) -> Accelerator:
    import torch

    name = f"cuda:{index}"
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError:  # in use by somebody who wants it alone, or broken
        return Accelerator(name, torch.cuda.get_device_name(index))
    return Accelerator(name, torch.cuda.get_device_name(index), int(total), int(free))
