"""A pretend accelerator: what a GPU would refuse, wait for or be sent, found on a machine without one.

Tensors claim to be on `pretend:0` and compute on the CPU, with the same bits. The device refuses to be mixed with the CPU, and it
keeps account of what costs time on a real one: operations by name, and synchronisations by the line that causes them.

    with pretend.accelerator() as seen:
        agent = config.build(spaces, objective, pretend.DEVICE)
        agent.update(replay)
    seen.synchronisations, seen.operations

What waits for a device, here as there:

- reading a number or a tensor of it, and operations whose result has a size that only the device knows;
- a copy from the host, unless it is out of pinned memory and `non_blocking`;
- a copy to the host, unless it is `non_blocking`. Such a copy holds nonsense until somebody has waited for an event that was
  recorded after it, so that whoever reads too early computes something else than the CPU.

Random numbers come from generators of the CPU, of which some claim to be the device's. Streams, the kernels' own rounding and the
limits of a real device's memory are not covered. Modes of torch are for one thread: another thread may handle CPU tensors alone.
"""

import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import maskrl

PACKAGE = Path(maskrl.__file__).parent


class _Backend(_DummyBackendModule):
    """What torch asks the module of a backend."""

    free = 0  # bytes that it says are free

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def synchronize(self, device: Any = None) -> None:
        """Nothing is under way: every operation has been computed."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return self.free, self.free


backend = _Backend()
_setup_privateuseone_for_python_backend("pretend", backend_module=backend)
DEVICE = torch.device("pretend:0")


@dataclass
class Seen:
    """What a device was asked to do."""

    synchronisations: Counter[str] = field(default_factory=Counter)  # by file:line
    operations: Counter[str] = field(default_factory=Counter)  # by name, of those that read a tensor of the device
    launches: Counter[str] = field(
        default_factory=Counter
    )  # of these, all but views, for which a device has nothing to do
    crossings: Counter[str] = field(default_factory=Counter)  # by file:line, copies either way, and the host's numbers

    def clear(self) -> None:
        for counts in vars(self).values():
            counts.clear()


_seen = Seen()
_on_their_way: list[tuple[Tensor, Tensor]] = []  # copies to the host: where to, and what
_pinned: set[int] = set()  # addresses


@contextmanager
def accelerator() -> Iterator[Seen]:
    """Within, the device is there."""
    global _seen
    _seen = Seen()
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(
        True
    )  # else Module.to would want the storage of its parameters
    try:
        with ExitStack() as stack:
            for owner, name, value in (
                (_foreach_utils, "_foreach_supported_types", [*_foreach_utils._foreach_supported_types, OnDevice]),
                (torch, "tensor", _tensor),
                (torch, "Generator", Generator),
                (torch, "Event", Event),
                (Tensor, "pin_memory", _pin_memory),
                (Tensor, "is_pinned", _is_pinned),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            stack.enter_context(_Mode())
            yield _seen
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)
        _on_their_way.clear()


def on_host(value: Any) -> Any:
    """Nested values with every tensor as the CPU has it, for comparisons: looking is free of charge."""
    return _map(_undisguise, value)


# ── Tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class OnDevice(Tensor):
    """A tensor of the CPU in disguise."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "OnDevice":
        disguise: OnDevice = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            raw.shape,
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=DEVICE,
        )
        disguise.raw = raw
        return disguise

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"OnDevice({tuple(self.shape)}, {self.dtype})"

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copy = OnDevice(self.raw.clone(memory_format=torch.preserve_format))
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copy, self.requires_grad) if is_parameter else copy
        copied: Tensor = memo[id(self)]
        return copied

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Factories and copies to the device have no tensor of it among their arguments, so a mode must see them."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_device(kwargs.get("device")) or _of_device((args, kwargs)):
            return _run(operation, args, kwargs)
        return operation(*args, **kwargs)


# Their results have sizes, or are answers, that the host waits for.
_WAITING = {
    f"aten::{name}" for name in ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim")
}
_COPIES = {"aten::_to_copy", "aten::copy_"}


def _run(operation: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Do on the CPU what the device was asked to do."""
    name, here = operation._schema.name, _of_device((args, kwargs))
    if name == "aten::_fused_sdp_choice":
        return 0  # attention by plain products
    if here:
        _seen.operations[name] += 1
        if not _is_view(operation):
            _seen.launches[name] += 1
        if name in _WAITING or _chooses_by_mask(name, args):
            _synchronise()
        if name not in _COPIES:
            _refuse_strangers(name, (args, kwargs))
    if name == "aten::_to_copy":
        return _to_copy(operation, args[0], dict(kwargs))
    if name == "aten::copy_":
        return _copy(operation, *args, **kwargs)
    asked = kwargs.get("device")
    plain = on_host(dict(kwargs)) | ({"device": torch.device("cpu")} if _is_device(asked) else {})
    result = operation(*on_host(args), **plain)
    known = {id(value.raw): value for value in here}  # operations in place return what they were given

    def disguise(value: Any) -> Any:
        if id(value) in known or not isinstance(value, Tensor):
            return known.get(id(value), value)
        return OnDevice(value)

    return _map(disguise, result)


def _to_copy(operation: Any, source: Tensor, options: dict[str, Any]) -> Tensor:
    target = options.pop("device", None)
    waits = not options.pop("non_blocking", False)
    options.pop("pin_memory", None)
    from_device, to_device = isinstance(source, OnDevice), target is None or _is_device(target)
    if from_device != to_device:
        _seen.crossings[_line()] += 1
    value: Tensor = operation(_undisguise(source), **options)
    if from_device and to_device:
        return OnDevice(value)
    if to_device:
        if waits or not source.is_pinned():
            _synchronise()
        return OnDevice(value)
    if waits:
        _synchronise()
        return value
    arrival = torch.full_like(value, 77)
    _on_their_way.append((arrival, value))
    return arrival


def _copy(operation: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    from_device, to_device = isinstance(source, OnDevice), isinstance(target, OnDevice)
    if from_device != to_device:
        _seen.crossings[_line()] += 1
    if from_device and not to_device and non_blocking and target.is_pinned():
        _on_their_way.append((target, source.raw.clone()))
        target.fill_(77)
        return target
    if from_device != to_device and not (to_device and non_blocking and source.is_pinned()):
        _synchronise()
    operation(_undisguise(target), _undisguise(source))
    return target


def _refuse_strangers(name: str, arguments: Any) -> None:
    others = [leaf for leaf in _leaves(arguments) if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice)]
    strangers = [other for other in others if other.dim()]
    if others:
        _seen.crossings[_line()] += 1
    generators = [leaf for leaf in _leaves(arguments) if isinstance(leaf, torch._C.Generator)]
    foreign = [generator for generator in generators if generator._cdata not in Generator.of_device]
    if strangers or foreign:
        what = f"tensors of shape {[tuple(stranger.shape) for stranger in strangers]}, {len(foreign)} generators"
        raise RuntimeError(f"{_line()}: {name} mixes {DEVICE} with {what} of the CPU")


def _is_view(operation: Any) -> bool:
    """Whether its result is another look at the memory of an argument, or memory that nobody has written to."""
    returned = operation._schema.returns
    looks = bool(returned) and returned[0].alias_info is not None and not returned[0].alias_info.is_write
    return looks or operation._schema.name in (
        "aten::new_empty",
        "aten::empty_like",
        "aten::new_empty_strided",
        "aten::_unsafe_view",
    )


def _chooses_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether it looks for the places where a mask is True. To fill all of them with one value, nobody has to know where."""
    if name not in ("aten::index", "aten::index_put_", "aten::index_put"):
        return False
    masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
    return bool(masks) and (name == "aten::index" or args[2].numel() > 1)


def _synchronise() -> None:
    """The host waits until the device has done all that it was asked for."""
    _seen.synchronisations[_line()] += 1
    _deliver(_on_their_way)


def _deliver(copies: list[tuple[Tensor, Tensor]]) -> None:
    for target, value in list(copies):
        with torch.utils._python_dispatch._disable_current_modes():
            target.copy_(value)
    for copy in list(copies):
        _on_their_way[:] = [other for other in _on_their_way if other is not copy]


def _leaves(value: Any) -> Iterator[Any]:
    """As torch's `tree_leaves`, at a fraction of the time, of which there are a million calls in a short run."""
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)([_map(function, inner) for inner in value])
    if isinstance(value, dict):
        return {name: _map(function, inner) for name, inner in value.items()}
    return function(value)


def _undisguise(value: Any) -> Any:
    return value.raw if isinstance(value, OnDevice) else value


def _of_device(value: Any) -> list[OnDevice]:
    return [leaf for leaf in _leaves(value) if isinstance(leaf, OnDevice)]


def _is_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == "pretend"


def _line() -> str:
    for frame in reversed(traceback.extract_stack()):
        if (file := Path(frame.filename)).is_relative_to(PACKAGE):  # not any folder called maskrl: a clone may be one
            return f"{file.relative_to(PACKAGE).as_posix()}:{frame.lineno}"
    return "outside"


# ── What torch has beside tensors ─────────────────────────────────────────────────────────────────────────────────────

_make = torch.tensor


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    made = _make(data, **options) if _is_device(device) else _make(data, device=device, **options)
    return made.to(device) if _is_device(device) else made


def _pin_memory(self: Tensor, device: Any = None) -> Tensor:
    if self.is_pinned():
        return self
    copy = self.clone()
    _pinned.add(copy.data_ptr())
    weakref.finalize(copy, _pinned.discard, copy.data_ptr())
    return copy


def _is_pinned(self: Tensor, device: Any = None) -> bool:
    return not isinstance(self, OnDevice) and self.untyped_storage().data_ptr() in _pinned


class Generator(torch.Generator):
    """A generator of the CPU that may claim to be the device's."""

    of_device: ClassVar[set[int]] = set()  # by address: operations see the generator, but not its Python class

    def __new__(cls, device: Any = "cpu") -> "Generator":
        made: Generator = super().__new__(cls, "cpu" if _is_device(device) else device)
        if _is_device(device):
            cls.of_device.add(made._cdata)
        else:
            cls.of_device.discard(made._cdata)  # of one that is gone
        return made

    @property
    def device(self) -> torch.device:
        return DEVICE if self._cdata in self.of_device else torch.device("cpu")


class Event:
    """A mark in the device's queue. It is passed when somebody asks for the second time, or waits."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        self._copies, self._asked = list[tuple[Tensor, Tensor]](), 0

    def record(self, stream: Any = None) -> None:
        self._copies, self._asked = list(_on_their_way), 0

    def query(self) -> bool:
        self._asked += 1
        if self._asked > 1:
            _deliver(self._copies)
        return self._asked > 1

    def synchronize(self) -> None:
        if any(copy is other for copy in self._copies for other in _on_their_way):  # else it was passed before
            _seen.synchronisations[_line()] += 1
        _deliver(self._copies)


# ── Autocast ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Autocast:
    """Products and convolutions in bfloat16, as the CPU's own autocast does them; without its cache of weights."""

    operations: ClassVar[tuple[str, ...]] = (
        *("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv2d", "scaled_dot_product_attention"),
    )

    def __init__(self) -> None:
        key = "AutocastPrivateUse1"
        self._others = torch.library.Library("_", "IMPL", key)
        self._others.fallback(torch.library.fallthrough_kernel)
        self._library = torch.library.Library("aten", "IMPL", key)
        for name in self.operations:
            self._library.impl(name, self._lowered(getattr(torch.ops.aten, name).default))

    @staticmethod
    def _lowered(operation: Any) -> Callable[..., Any]:
        def low(value: Any) -> Any:
            lowers = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(torch.bfloat16) if lowers else value

        def run(*args: Any, **kwargs: Any) -> Any:
            key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
            with torch._C._ExcludeDispatchKeyGuard(key):
                return operation(*_map(low, args), **_map(low, kwargs))

        return run


_autocast = _Autocast()
