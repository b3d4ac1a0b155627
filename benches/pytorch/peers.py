"""The programs that mpiburn is compared with: PyTorch in each way that may be the fastest, and JAX."""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from programs import PYTORCH

JAX = Path(__file__).resolve().with_name("train_jax.py")

# What is tried on networks of images, and on mlp, where channels have no layout.
IMAGES = ("eager", "fused", "channels-last", "compile")
FEATURES = ("eager", "fused", "compile")


@dataclass(frozen=True)
class Peer:
    """A program, the name of the way in which it runs, and the options that select it."""

    name: str
    program: Path
    options: tuple = ()


def peer_named(name):
    """The peer of that name: jax, or one of PyTorch's ways or several, such as fused+channels-last."""
    return Peer("JAX jit", JAX) if name == "jax" else Peer(f"PyTorch {name}", PYTORCH, ("--how", name))


def custom_peer(programs):
    """The program of --peer, which may have no options of train_ddp.py's ways; None without --peer."""
    return None if programs.pytorch == PYTORCH else Peer(programs.pytorch.name, programs.pytorch)


def versions():
    """The versions of both libraries."""
    return {name: importlib.metadata.version(name) for name in ("torch", "jax")}
