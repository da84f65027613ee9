"""The files a policy is exported to: how each is written, and how it is run to be checked."""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.export import ExportedProgram

from rookery.errors import BadInput, missing_extra
from rookery.export.interface import Interface

Arrays = list[np.ndarray]
Run = Callable[[Sequence[np.ndarray]], Arrays]
"""Inputs in order to outputs in order."""


class Format(Protocol):
    """A kind of file."""

    file: str

    def check(self) -> None:
        """Raise BadInput with the remedy if something that is needed is not there."""
        ...

    def write(self, program: ExportedProgram, interface: Interface, path: Path) -> None:
        """Write the traced step to `path`."""
        ...

    def load(self, path: Path) -> Run:
        """The step in `path`, as its users will run it."""
        ...


class Onnx:
    """For ONNX Runtime and whatever else reads ONNX."""

    file = "policy.onnx"

    def check(self) -> None:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            if importlib.util.find_spec(name) is None:
                raise missing_extra("format onnx", "export")

    def write(self, program: ExportedProgram, interface: Interface, path: Path) -> None:
        with silence():
            written = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=[port.name for port in interface.inputs],
                output_names=[port.name for port in interface.outputs],
            )
            assert written is not None
            written.save(path, external_data=False)

    def load(self, path: Path) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
        names = [port.name for port in session.get_inputs()]

        def run(inputs: Sequence[np.ndarray]) -> Arrays:
            return list(session.run(None, dict(zip(names, inputs, strict=True))))

        return run


class LibTorch:
    """For C++: compiled ahead of time by AOTInductor, loaded by AOTIModelPackageLoader."""

    file = "policy.pt2"
    settings: dict[str, Any] = {  # noqa: RUF012
        # For any processor of the kind: the large operations are LibTorch's own, which look for
        # the machine's instructions when they run.
        "cpp.march": "",
        "cpp.simdlen": 1,
        # They pay only where many models are compiled.
        "aot_inductor.precompile_headers": False,
    }

    def check(self) -> None:
        from torch._inductor.cpp_builder import get_cpp_compiler
        from torch._inductor.exc import InvalidCxxCompiler

        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            raise BadInput(
                "format libtorch needs a C++ compiler: install g++ or name one in CXX, or leave"
                " it out: --format onnx"
            ) from None

    def write(self, program: ExportedProgram, interface: Interface, path: Path) -> None:
        import torch._inductor

        with silence(), own_cache():
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(path), inductor_configs=self.settings
            )

    def load(self, path: Path) -> Run:
        import torch._inductor

        with silence():
            loaded = torch._inductor.aoti_load_package(str(path), run_single_threaded=True)

        def run(inputs: Sequence[np.ndarray]) -> Arrays:
            outputs = loaded.loader.run([torch.from_numpy(x) for x in inputs])
            return [x.numpy() for x in outputs]

        return run


FORMATS: dict[str, Format] = {"onnx": Onnx(), "libtorch": LibTorch()}


@contextmanager
def silence() -> Iterator[None]:
    """Keep to ourselves what exporters tell of their insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def own_cache() -> Iterator[None]:
    """Have the compiler leave its files in a folder that goes again."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    with tempfile.TemporaryDirectory(prefix="rookery-export-") as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before
