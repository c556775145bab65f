"""The two formats of an exported policy, each written into an open file and read back to be checked."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offpolicy.errors import ConfigError, SaveError
from offpolicy.export.env_policy import BATCH, EnvPolicy

Array = NDArray[Any]  # Any: inputs are float32, outputs have the environment's dtype
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]  # inputs by name to outputs by name

EXTRA = ("onnx", "onnxscript", "onnxruntime")
EXAMPLE_ROWS = 2  # of the traced call: torch.export takes a batch of 1 for a constant


def require_onnx() -> None:
    """Raises `ConfigError` where one of the optional packages is missing."""
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"--onnx: needs {', '.join(missing)}: pip install 'offpolicy[export]'")


def check_names(option: str, module: EnvPolicy) -> None:
    """Raises `ConfigError` where an input would have the name of an output, which ONNX does not allow."""
    for name in module.input_names:
        if name in module.output_names:
            raise ConfigError(
                f"{option}: the observation has a key {name!r}, which is the name of an output; write --torch"
                f" {name}.pt2, which has no names, or train with a wrapper (env.wrappers) that renames the key"
            )


def write_onnx(module: EnvPolicy, file: IO[bytes]) -> Runner:
    """Writes the policy as ONNX and returns what onnxruntime makes of the bytes, on one thread. Raises `SaveError`."""
    import onnxruntime

    with _quiet():
        program: Any = torch.onnx.export(  # Any: `ONNXProgram | None`, None only for the old exporter
            traced(module), input_names=module.input_names, output_names=module.output_names, dynamo=True,
            optimize=True, verbose=False,
        )  # fmt: skip
    model = program.model_proto
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:  # the only free one, of a name like s77
                dim.dim_param = BATCH
    content: bytes = model.SerializeToString()
    file.write(content)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes, which have no public base
        raise SaveError(f"onnxruntime refuses the file: {error!s:.300}") from error
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def write_torch(module: EnvPolicy, file: IO[bytes]) -> Runner:
    """Writes the policy as a program of torch.export and returns the program that the written bytes hold."""
    memory = io.BytesIO()
    with _quiet():
        torch.export.save(traced(module), memory)
        file.write(memory.getvalue())
        memory.seek(0)
        loaded = torch.export.load(memory).module()
    names, inputs_of = module.output_names, module.input_names

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found: tuple[Tensor, ...] = loaded(
            *(torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in inputs_of)
        )
        return {name: tensor.numpy() for name, tensor in zip(names, found, strict=True)}

    return run


def traced(module: EnvPolicy) -> torch.export.ExportedProgram:
    """Returns the module as a graph whose first dimension is free."""
    batch = torch.export.Dim(BATCH, min=1)
    example = module.example(EXAMPLE_ROWS)
    with torch.no_grad(), _quiet():
        return torch.export.export(module, example, dynamic_shapes=(tuple({0: batch} for _ in example),), strict=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the exporters' notes about packages that are not installed, and about themselves, from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
