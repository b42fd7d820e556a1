"""Copy tensors between the host and an accelerator without making either wait. On a CPU nothing is copied."""

import torch
from torch import Tensor

# Devices whose tensors are on the host or have no data.
HOSTS = ("cpu", "meta")


def pinned(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor in pinned memory, so that its copy to an accelerator does not block the host; unchanged for a CPU."""
    stays = tensor.device.type not in HOSTS or torch.device(device).type in HOSTS
    return tensor if stays else tensor.pin_memory()


def sent(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy the tensor to the device without waiting."""
    return pinned(tensor, device).to(device, non_blocking=True)


class Arriving:
    """The current value of a tensor, being copied to the host."""

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.Event | None = None
        self._value = tensor.detach().to("cpu", non_blocking=True)
        if tensor.device.type not in HOSTS:
            self._event = torch.Event(tensor.device)
            self._event.record()

    @property
    def is_here(self) -> bool:
        return self._event is None or self._event.query()

    def value(self) -> Tensor:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._value
