"""jupyter_kernel_test against the kernel, on the shared emulator."""

import os

import jupyter_kernel_test
import pytest


@pytest.fixture(scope="module", autouse=True)
def environment(emulator, prefix, tmp_path_factory):
    directory = tmp_path_factory.mktemp("conformance")
    variables = {
        "JUPYTER_PATH": str(prefix / "share" / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(directory / "runtime"),
        "COLAB_KERNEL_ENDPOINT": emulator.endpoint,
        "COLAB_KERNEL_TOKEN": "conformance",
        "COLAB_KERNEL_STATE_DIR": str(directory / "state"),
        "COLAB_KERNEL_LOG": "debug",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


class ColabKernelTests(jupyter_kernel_test.KernelTests):
    """Every method but those that need the companion: completion, inspection, the pager, clear_output."""

    kernel_name = "colab"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    code_generate_error = "raise ValueError('as asked')"
    code_execute_result = [
        {"code": "6*7", "result": "42"},
        {"code": "'a' * 3", "result": "'aaa'"},
        {"code": "[1, 2]", "result": "[1, 2]"},
    ]
    code_display_data = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))", "mime": "text/latex"},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n", "%pwd", "!ls", "x?"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2", "for i in range(3):", "%%timeit\n"]
    invalid_code_samples = ["import = 7q", "raise = 2", "foo bar baz"]
    code_history_pattern = "6?7*"
    supported_history_operations = ("tail", "range", "search")


class ColabWelcomeTests(jupyter_kernel_test.IopubWelcomeTests):
    kernel_name = "colab"
    support_iopub_welcome = True
