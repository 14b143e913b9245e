"""A pretend CUDA device: find operations that mix devices, or that make the host (the CPU) wait, without a GPU.

Import this module before torch, in a process of its own. A tensor on the device is a `Pretend`: it reports cuda:0 and
holds its values in a CPU tensor, so all values, branches and shapes are those of the CPU. Inside `watched()`, every
operation is intercepted, also in autograd's thread, and

- raises `DeviceMixError`, as CUDA would, if it mixes CPU and CUDA tensors or generators, or if `numpy()` is called;
- is counted as a wait if the host would wait for the GPU: `item`, `nonzero`, boolean indices, copies to the CPU, and
  blocking copies from pageable memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_suffix(".cpp")


def has_compiler() -> bool:
    """Return whether the pretend device can be compiled."""
    return shutil.which("g++") is not None


def load_device() -> None:
    """Compile the device, once per version of torch, and load it before torch looks for CUDA."""
    if "torch" in sys.modules:
        raise RuntimeError("import tests.harness.pretend_cuda before torch")
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch_folder = Path(spec.origin).parent
    digest = hashlib.sha256(SOURCE.read_bytes() + (torch_folder / "version.py").read_bytes()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"nearfar-pretend-cuda-{digest}.so"
    if not library.exists():
        with tempfile.NamedTemporaryFile(suffix=".so", dir=library.parent, delete=False) as draft:
            pass
        flags = ["-std=c++20", "-O0", "-fPIC", "-shared", f"-I{torch_folder}/include", f"-L{torch_folder}/lib"]
        command = ["g++", *flags, "-o", draft.name, str(SOURCE), "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True, timeout=600)
        Path(draft.name).replace(library)
    for path in (torch_folder / "lib" / "libc10.so", torch_folder / "lib" / "libtorch_cpu.so", library):
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


load_device()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tests.harness.cuda_kernels  # noqa: E402, F401

aten = torch.ops.aten
CPU = torch.device("cpu")
GENERATOR = torch.Generator("cuda")
for name, value in {
    "_lazy_init": lambda: None,
    "is_initialized": lambda: True,
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": lambda *_: None,
    "synchronize": lambda *_: None,
    "is_bf16_supported": lambda *_, **__: True,
    "get_device_capability": lambda *_: (8, 0),
    "is_current_stream_capturing": lambda: False,
    "default_generators": (GENERATOR,),
    "get_rng_state": lambda *_: GENERATOR.get_state(),
    "set_rng_state": lambda state, *_: GENERATOR.set_state(state),
    "manual_seed_all": GENERATOR.manual_seed,
}.items():
    setattr(torch.cuda, name, value)
torch.__future__.set_overwrite_module_params_on_conversion(True)  # a Pretend cannot replace the data of a CPU tensor

# operations that make the host wait, and their names in the log
WAITS = {
    **{op: op.__name__ for op in (aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.bincount)},
    **{op: op.__name__ for op in (aten.unique_consecutive, aten.equal, aten.multinomial, aten._linalg_eigh)},
    **{op: op.__name__ for op in (aten._linalg_svd, aten._linalg_check_errors, aten._coalesce)},
    aten._local_scalar_dense: "item",
}
COPIES = (aten.copy_, aten._copy_from, aten._foreach_copy_)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_, aten._unsafe_index)
# operations that accept CPU scalars with CUDA tensors, although they are not tagged as pointwise
WITH_SCALARS = (aten.where, aten.masked_fill, aten.masked_fill_, aten.lerp, aten.lerp_, aten.fill, aten.fill_)


class DeviceMixError(RuntimeError):
    """Raised for an operation that CUDA would refuse."""


class Log:
    """Collect the waits of the host since the last `take`, as (kind, file:line in nearfar)."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, str]] = []

    def add(self, kind: str) -> None:
        self.waits.append((kind, _place()))

    def take(self) -> list[tuple[str, str]]:
        waits, self.waits = self.waits, []
        return waits


LOG = Log()


def _place() -> str:
    """Return the innermost line of nearfar on the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if "/nearfar/" in frame.f_code.co_filename and "/harness/" not in frame.f_code.co_filename:
            return f"{frame.f_code.co_filename.rpartition('/nearfar/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "torch"


class Pretend(Tensor):
    """A tensor on the pretend device. `held` has its values."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretend:
        strided: dict[str, Any] = {}
        if held.layout == torch.strided:
            strided = {"strides": held.stride(), "storage_offset": held.storage_offset()}
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), dtype=held.dtype, layout=held.layout, device=torch.device("cuda:0"), **strided
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return dispatch(func, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"cuda {self.held!r}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made: Any = Pretend(self.held.clone()).requires_grad_(self.requires_grad)
        made._is_param = getattr(self, "_is_param", False)
        memo[id(self)] = made
        return made

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else repr(self)

    def tolist(self) -> Any:
        LOG.add("tolist")
        return self.held.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise DeviceMixError("numpy() of a cuda tensor")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()


def to_cuda(x: Tensor) -> Tensor:
    """Return a tensor with these values on the pretend device, without counting a copy."""
    return Pretend(x.detach().clone()).requires_grad_(x.requires_grad)


@cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@cache
def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


def _type(device: Any) -> str | None:
    return None if device is None else torch.device(device).type


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute an operation as the pretend device does: check devices, count waits, and compute on the CPU."""
    if func.namespace == "nearfar":  # look inside nearfar's own operators
        with Watch():  # type: ignore[no-untyped-call]
            return torch._library.custom_ops.OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
    if _is_composite(func):
        with Watch():  # type: ignore[no-untyped-call]
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    on_cuda: list[Pretend] = []
    on_cpu: list[Tensor] = []

    def unwrap(x: Any) -> Any:
        if isinstance(x, Pretend):
            on_cuda.append(x)
            return x.held
        if isinstance(x, Tensor):
            on_cpu.append(x)
        return CPU if isinstance(x, torch.device) and x.type == "cuda" else x

    inner_args, inner_kwargs = map_tree(unwrap, args), map_tree(unwrap, kwargs)
    if func.namespace == "c10d":
        _check_backend([*on_cuda, *on_cpu])
    if on_cuda and on_cpu:
        _check_devices(func, args, on_cpu)
    if (kind := _wait_of(func.overloadpacket, args, kwargs, on_cuda)) is not None:
        LOG.add(kind)
    device = _type(kwargs.get("device"))
    is_result_on_cuda = bool(on_cuda) if device is None else device == "cuda"
    inner_kwargs.pop("pin_memory", None)
    if func.name() == "c10d::_allgather_base_":  # nccl compares only the number of elements, gloo also the shapes
        inner_args = tuple(x.view(-1) if isinstance(x, Tensor) else x for x in inner_args)
    if _takes_generator(func):
        with _generator(func, kwargs.get("generator"), inner_kwargs, is_result_on_cuda):
            result = _run(func, inner_args, inner_kwargs)
    else:
        result = _run(func, inner_args, inner_kwargs)
    if not is_result_on_cuda:
        return result
    same = {id(x.held): x for x in on_cuda}  # in-place operations return their argument

    def wrap(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, Pretend):
            return x
        return same[id(x)] if id(x) in same else Pretend(x)

    return map_tree(wrap, result)


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the leaves of tuples, lists and dicts. PyTorch's tree_map takes several times as long."""
    kind = type(tree)
    if kind is tuple:
        return tuple([map_tree(function, x) for x in tree])
    if kind is list:
        return [map_tree(function, x) for x in tree]
    if kind is dict:
        return {key: map_tree(function, x) for key, x in tree.items()}
    return function(tree)


def _check_backend(tensors: list[Tensor]) -> None:
    """Raise an error for a collective operation on a device for which the process group has no backend."""
    for device in {x.device.type for x in tensors}:
        torch.distributed.group.WORLD._get_backend(torch.device(device))  # type: ignore[union-attr]


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:  # some CPU kernels lack float16
        if "not implemented for 'Half'" not in str(error):
            raise
    args, kwargs = map_tree(
        lambda x: x.float() if isinstance(x, Tensor) and x.dtype == torch.float16 else x, (args, kwargs)
    )
    result = func(*args, **kwargs)
    return map_tree(lambda x: x.half() if isinstance(x, Tensor) and x.dtype == torch.float32 else x, result)


@contextmanager
def _generator(func: Any, given: torch.Generator | None, inner: dict[str, Any], is_on_cuda: bool) -> Iterator[None]:
    """Draw with a CPU copy of the CUDA generator. Raise DeviceMixError for a generator of the wrong device."""
    if given is not None and (given.device.type == "cuda") != is_on_cuda:
        raise DeviceMixError(f"{func} with a {given.device.type} generator")
    source, twin = (given or GENERATOR) if is_on_cuda else given, torch.Generator()
    if not is_on_cuda or source is None:
        yield
        return
    twin.set_state(source.get_state())
    inner["generator"] = twin
    yield
    source.set_state(twin.get_state())


def _check_devices(func: Any, args: tuple[Any, ...], on_cpu: list[Tensor]) -> None:
    packet = func.overloadpacket
    if packet in COPIES:
        return
    if packet in INDEXING and isinstance(args[0], Pretend):  # a CPU tensor may be an index or a scalar value
        if len(args) > 2 and not isinstance(args[2], Pretend) and args[2].ndim:
            raise DeviceMixError(f"{func} of a cuda tensor with cpu values")
        LOG.add("copy of an index")
        return
    takes_scalars = torch.Tag.pointwise in func.tags or packet in WITH_SCALARS or "foreach" in str(func)
    if not takes_scalars or any(x.ndim for x in on_cpu):
        raise DeviceMixError(f"{func} of cuda and cpu tensors of shape {[list(x.shape) for x in on_cpu]}")


def _wait_of(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_cuda: list[Pretend]) -> str | None:
    """Return the kind of wait of an operation, or None if the host does not wait."""
    if packet is aten._to_copy and not kwargs.get("non_blocking"):
        source, target = "cuda" if on_cuda else "cpu", _type(kwargs.get("device"))
        return f"copy to {target}" if target not in (None, source) else None
    if packet in COPIES and not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking"):
        targets, sources = (x if isinstance(x, list | tuple) else [x] for x in args[:2])
        crosses = any(isinstance(a, Pretend) != isinstance(b, Pretend) for a, b in zip(targets, sources, strict=True))
        return "copy_ between devices" if crosses else None
    if not on_cuda:
        return None
    if packet in INDEXING and any(x.dtype in (torch.bool, torch.uint8) for x in args[1] if isinstance(x, Tensor)):
        return "boolean index"
    if packet is aten.repeat_interleave and kwargs.get("output_size") is None:
        return "repeat_interleave"
    if any(isinstance(x, Pretend) and x.held.is_sparse for x in on_cuda) and "mm" in packet.__name__:
        return "sparse product"
    return WAITS.get(packet)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that sends every operation through `dispatch`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the check would take time at every operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


@contextmanager
def watched() -> Iterator[None]:
    """Within a `with` block, allow tensors on the pretend device and check all operations."""
    torch._C._set_only_lift_cpu_tensors(True)
    LOG.take()
    try:
        with Watch():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
