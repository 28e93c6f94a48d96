"""The emulator's own kernels, run directly: what the kernel is held against.

The emulator makes an environment for each of its stacks (`--quirk kernels=colab` and `kernels=newest`). The same kernel class on
the same interpreter, laid out as the emulator lays out a runtime, differs from the emulator's kernel in nothing: what is compared
is the way to it. On the stack `newest` the class is ipykernel's, on `colab` the one with Colab's differences.
"""

import json
import os
from pathlib import Path

STACKS = ["colab", "newest"]

EMULATOR = Path(__file__).parents[2] / "src" / "emulator"

# What the emulator keeps from its kernels, since it may mean another Python or the user's terminal.
FOREIGN = ("COLAB_", "IPYTHON", "IPY_", "JPY_", "JUPYTER", "MPL", "PYTHON", "XDG_", "COLUMNS", "LINES", "VIRTUAL_ENV")


def interpreter(stack):
    """The interpreter of the emulator's environment; there is one once an emulator of that stack has started."""
    cache = Path(os.environ.get("COLAB_KERNEL_CACHE_DIR") or Path.home() / ".cache" / "colab-kernel")
    wanted = (EMULATOR / f"requirements-{stack}.txt").read_text()
    for home in sorted(cache.glob(f"emulator-{stack}-*")):
        # A cache may hold environments of other lists.
        if (home / "complete").exists() and (home / "requirements.txt").read_text() == wanted:
            return home / "venv" / "bin" / "python"
    raise AssertionError(f"{cache} has no environment of the stack {stack}; an emulator of this version makes one")


def install(stack, directory, name="reference"):
    """A kernelspec for that interpreter, its directories beside it; returns the directory of kernelspecs and the environment."""
    python = interpreter(stack)
    root = directory / "root"
    for path in ("content", "root", "tmp"):
        (root / path).mkdir(parents=True, exist_ok=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    env |= {
        "HOME": str(root / "root"),
        "IPYTHONDIR": str(directory / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MPLCONFIGDIR": str(python.parents[2] / "matplotlib"),
        "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "TMPDIR": str(root / "tmp"),
    }
    kernel = {"colab": [str(EMULATOR / "kernel.py")], "newest": ["-m", "ipykernel_launcher"]}[stack]
    spec = {
        "argv": [str(python), *kernel, "-f", "{connection_file}"],
        "display_name": f"ipykernel ({stack})",
        "language": "python",
        # For front-ends that start it with their own environment.
        "env": {key: env[key] for key in ("HOME", "IPYTHONDIR", "MPLBACKEND", "MPLCONFIGDIR", "PATH", "TMPDIR")},
    }
    kernels = directory / "share" / "jupyter" / "kernels"
    (kernels / name).mkdir(parents=True)
    (kernels / name / "kernel.json").write_text(json.dumps(spec))
    return kernels, env
