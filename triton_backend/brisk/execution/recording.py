"""Recording the calls of torch that a run of kernels makes, and replaying them as one function.

For inputs of given shapes and strides, kernels make the same calls whatever the values, unless
they look at values. The recorder sees every call through torch's function mode, follows which
tensors depend on the inputs' values, and refuses where one of these is looked at, where a result's
shape follows from values, and where torch's random state is used. The replay makes exactly the
recorded calls, so on as many threads its results are those of the kernels to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_Tensor: Any = torch.Tensor

_METADATA = frozenset(
    getter.__get__
    for getter in (
        *(_Tensor.shape, _Tensor.ndim, _Tensor.dtype, _Tensor.device, _Tensor.layout),
        *(_Tensor.is_cpu, _Tensor.is_cuda, _Tensor.is_mkldnn, _Tensor.requires_grad),
        *(_Tensor.itemsize, _Tensor.is_sparse, _Tensor.is_quantized, _Tensor.is_meta),
    )
) | {
    *(_Tensor.size, _Tensor.dim, _Tensor.stride, _Tensor.numel, _Tensor.nelement),
    *(_Tensor.is_contiguous, _Tensor.is_floating_point, _Tensor.is_complex, _Tensor.is_conj),
    *(_Tensor.is_neg, _Tensor.element_size, _Tensor.__len__, _Tensor.is_signed),
    *(torch.is_floating_point, torch.is_complex, torch.numel, torch.is_tensor),
}
"""What follows from shapes, strides and dtypes alone, so it is the same at each replay."""

_LOOKS = frozenset(
    {
        *(_Tensor.item, _Tensor.tolist, _Tensor.__bool__, _Tensor.__int__, _Tensor.__float__),
        _Tensor.__index__,
    }
)
"""What turns a tensor's values into numbers of Python."""

_REFUSED_NAMES = frozenset(
    {
        *("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount"),
        *("repeat_interleave", "_unique2", "nonzero_numpy", "is_nonzero", "histc", "set_"),
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("bernoulli", "bernoulli_", "multinomial", "normal", "normal_", "uniform_", "poisson"),
        *("dropout", "random_", "exponential_", "resize_", "rrelu", "empty_strided", "nms"),
    }
)
"""Results whose shape follows from values, or that are different each time."""


_SHAPES_NAMES = frozenset({"_shape_as_tensor", "zeros_like", "ones_like"})
"""Functions that read the shape of their argument alone."""


class RefusedError(Exception):
    """The run cannot be recorded; the message says why."""


class Recorder(TorchFunctionMode):
    """While entered, writes down what the calling thread asks of torch.

    ``constants`` are the tensors that calls read and no call made: to be compared between two
    recordings, because what was made behind the recorder's back is another one each time.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.bound: list[Any] = []
        self.constants: list[torch.Tensor] = []
        self._names = {id(value): f"i{place}" for place, value in enumerate(inputs)}
        self._inputs = len(inputs)
        self._dependent = set(self._names)
        self._kept: list[Any] = list(inputs)  # so that no id is given to another tensor
        self._is_mixed = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "").removesuffix(".default")
        tensors = list(_tensors((args, tuple(kwargs.values()))))
        depends = any(id(tensor) in self._dependent for tensor in tensors)
        depends = depends and name not in _SHAPES_NAMES
        if func in _LOOKS:
            if depends or self._is_mixed:
                raise RefusedError(f"{name} of a value that depends on the inputs")
            return func(*args, **kwargs)
        if name in _REFUSED_NAMES or _selects_by_mask(name, args):
            raise RefusedError(f"{name} of torch")
        if depends and "out" in kwargs:
            self._is_mixed = True
        text = self._call(func, args, kwargs)
        result = func(*args, **kwargs)
        self._take(name, text, result, args, depends)
        return result

    def finish(self, outputs: Sequence[Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The replay: takes the inputs in order, returns what ``outputs`` were in this run."""
        if not all(isinstance(value, torch.Tensor) for value in outputs):
            raise RefusedError("an output is no tensor")
        given = "".join(f"i{place}, " for place in range(self._inputs))
        returned = "".join(f"{self._text(value)}, " for value in outputs)
        names = ", ".join(f"c{place}" for place in range(len(self.bound)))
        lines = _with_deletions(self.lines, returned)
        body = "\n        ".join([*lines, f"return ({returned})"])
        source = f"def bind({names}):\n    def replay({given}):\n        {body}\n    return replay"
        namespace: dict[str, Any] = {}
        exec(compile(source, "<recorded segment>", "exec"), namespace)
        replay: Callable[..., tuple[torch.Tensor, ...]] = namespace["bind"](*self.bound)
        return replay

    def _call(self, func: Any, args: Sequence[Any], kwargs: Any) -> str:
        arguments = [self._text(argument) for argument in args]
        arguments += [f"{key}={self._text(value)}" for key, value in kwargs.items()]
        return f"{self._bind(func)}({', '.join(arguments)})"

    def _take(self, name: str, text: str, result: Any, args: Any, depends: bool) -> None:
        """Write the call down with its results."""
        if result is None and name == "__setitem__":
            self.lines.append(text)
            self._is_mixed |= depends
            return
        if name.endswith("_") and depends and id(args[0]) not in self._dependent:
            self._is_mixed = True  # a view of what was written may be looked at later
        variable = f"v{len(self.lines)}"
        self.lines.append(f"{variable} = {text}")
        values = {variable: result}
        if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
            values = {f"{variable}[{place}]": value for place, value in enumerate(result)}
        for where, value in values.items():
            if not isinstance(value, torch.Tensor):
                raise RefusedError(f"{name} gives {type(value).__name__}")
            self._kept.append(value)
            self._names.setdefault(id(value), where)
            if depends:
                self._dependent.add(id(value))

    def _text(self, value: Any) -> str:
        """The argument as an expression of the replay."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._names:
                self.constants.append(value)
                self._kept.append(value)
                self._names[id(value)] = self._bind(value)
            return self._names[id(value)]
        if value is None or value is Ellipsis or isinstance(value, (bool, int)):
            return repr(value)
        if isinstance(value, slice):
            parts = (self._text(part) for part in (value.start, value.stop, value.step))
            return f"slice({', '.join(parts)})"
        if type(value) in (tuple, list, torch.Size):
            items = "".join(f"{self._text(item)}, " for item in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if isinstance(value, (float, complex, str, torch.dtype, torch.device)):
            return self._bind(value)
        if isinstance(value, (torch.memory_format, torch.layout)):
            return self._bind(value)
        raise RefusedError(f"an argument of type {type(value).__name__}")

    def _bind(self, value: Any) -> str:
        self.bound.append(value)
        return f"c{len(self.bound) - 1}"


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """All tensors among nested arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, slice):
        yield from _tensors((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _selects_by_mask(name: str, args: Sequence[Any]) -> bool:
    """Whether elements are picked by a mask, or ``where`` lists the places of a condition."""
    if name == "where":
        return len(args) == 1
    if name not in ("__getitem__", "index"):
        return False
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1:]))


def _with_deletions(lines: Sequence[str], returned: str) -> list[str]:
    """The lines, each variable deleted after the last one that reads it."""
    last: dict[str, int] = {}
    words = [_variables(line) for line in lines]
    for place, found in enumerate(words):
        last.update(dict.fromkeys(found, place))
    for name in _variables(returned):
        last.pop(name, None)
    deletions: dict[int, list[str]] = {}
    for name, place in last.items():
        deletions.setdefault(place, []).append(name)
    return [
        f"{line}; del {', '.join(deletions[place])}" if place in deletions else line
        for place, line in enumerate(lines)
    ]


def _variables(text: str) -> set[str]:
    """The values named in a line of the replay, inputs and constants left out."""
    for mark in "()[],=":
        text = text.replace(mark, " ")
    return {word for word in text.split() if word[0] == "v" and word[1:].isdigit()}
