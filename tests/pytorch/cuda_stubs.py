#!/usr/bin/env python3
"""Writes stub libraries with which PyPI's PyTorch can be imported without NVIDIA's math libraries.

PyPI has one x86-64 wheel of PyTorch for Linux, built for CUDA. Its Python module is linked against cuBLAS, cuDNN,
NCCL and others, which take 4 GB on disk. If one is missing, the dynamic linker rejects the module, although a program
that only uses the CPU calls none of them.

This program writes a stub for each missing library into PyTorch's library folder: a shared library of a few KB with
the right name, and with the symbols that PyTorch requires. A stub's function prints a message and aborts if it is
called. Installed libraries are kept, and PyTorch's files are not changed.

Needs a C compiler and readelf. Usage: cuda_stubs.py TORCH_LIB_FOLDER
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Each library, by the prefix of its functions. The order matters, because some prefixes start with another
# one. Left out are libcuda (the driver's library, which must not be hidden), and cuSOLVER and NVRTC, which
# PyTorch loads at first use.
LIBRARIES = {
    "cublasLt": "libcublasLt.so.12",
    "cublas": "libcublas.so.12",
    "cudnn": "libcudnn.so.9",
    "cufft": "libcufft.so.11",
    "cuFile": "libcufile.so.0",
    "curand": "libcurand.so.10",
    "cusparseLt": "libcusparseLt.so.0",
    "cusparse": "libcusparse.so.12",
    "nccl": "libnccl.so.2",
    "nvshmem": "libnvshmem_host.so.3",
}

SOURCE_HEAD = """\
#include <stdio.h>
#include <stdlib.h>
#define STUB(name) void name(void) { \\
    fputs(#name ": not available, this PyTorch was set up for the CPU (tests/pytorch/setup.sh)\\n", stderr); \\
    abort(); }
"""


def library_of(symbol):
    """The file name of the library that `symbol` belongs to; None if it belongs to none of LIBRARIES."""
    return next((file for prefix, file in LIBRARIES.items() if symbol.startswith(prefix)), None)


def wanted_symbols(folder):
    """The symbols that PyTorch's libraries require: {library file: {symbol: version or None}}."""
    wanted = defaultdict(dict)
    for torch_library in sorted(folder.glob("lib*.so")):
        listing = subprocess.run(["readelf", "--dyn-syms", "--wide", torch_library],
                                 check=True, capture_output=True, text=True).stdout
        # "12: 0000000000000000  0 FUNC  GLOBAL DEFAULT  UND cudnnCreate@libcudnn.so.9 (4)"
        for symbol, version in re.findall(r" UND (\w+)(?:@([\w.]+))?", listing):
            if file := library_of(symbol):
                wanted[file][symbol] = version or None
    return wanted


def is_installed(folder, file):
    """True if one of NVIDIA's wheels has installed the library."""
    return any((folder.parent.parent / "nvidia").glob(f"*/lib/{file}"))


def write_stub(folder, file, symbols):
    """Compiles `folder/file`, a library with stubs of `symbols`."""
    versions = defaultdict(list)
    for symbol, version in symbols.items():
        if version:
            versions[version].append(symbol)
    with tempfile.TemporaryDirectory() as build:
        source, script = Path(build, "stub.c"), Path(build, "versions")
        stubs = [f"STUB({symbol})\n" for symbol in sorted(symbols)]
        source.write_text(SOURCE_HEAD + "".join(stubs))
        command = ["cc", "-shared", "-fPIC", "-fno-builtin", "-O1", f"-Wl,-soname,{file}", "-o", folder / file, source]
        # If PyTorch requires a symbol with a version, the stub must have the version. Otherwise the linker
        # warns at every start.
        if versions:
            groups = (f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items())
            script.write_text("".join(groups))
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1], "libtorch_cpu.so").exists():
        sys.exit("usage: cuda_stubs.py FOLDER_OF_libtorch_cpu.so")
    folder = Path(sys.argv[1])
    wanted = wanted_symbols(folder)
    for file in LIBRARIES.values():
        if not is_installed(folder, file):
            write_stub(folder, file, wanted[file])


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"cuda_stubs: {error}")
