"""jupyter_kernel_test against the kernel: everything it has on both kernel stacks, and its text without the companion."""

import os
import tempfile

import jupyter_kernel_test
import pytest

from conftest import Emulator

@pytest.fixture(scope="module", autouse=True)
def installed(prefix):
    os.environ["JUPYTER_PATH"] = str(prefix / "share" / "jupyter")
    yield
    del os.environ["JUPYTER_PATH"]


class OnColab:
    """An emulator and an environment for the kernels of one class; unittest's classes take no parameters of pytest."""

    kernel_name = "colab"
    stack = "colab"
    companion = "on"

    @classmethod
    def setUpClass(cls):
        cls.emulator = Emulator(f"kernels={cls.stack}")
        cls.directory = tempfile.TemporaryDirectory()
        variables = {
            "JUPYTER_RUNTIME_DIR": f"{cls.directory.name}/runtime",
            "COLAB_KERNEL_ENDPOINT": cls.emulator.endpoint,
            "COLAB_KERNEL_TOKEN": "conformance",
            "COLAB_KERNEL_STATE_DIR": f"{cls.directory.name}/state",
            "COLAB_KERNEL_COMPANION": cls.companion,
            "COLAB_KERNEL_LOG": "debug",
        }
        cls.before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        for name, value in cls.before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        cls.emulator.stop()
        cls.directory.cleanup()


class Kernel(OnColab):
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
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_page_something = "zip?"
    code_inspect_sample = "zip"
    completion_samples = [
        {"text": "zi", "matches": {"zip"}},
        {"text": "import os; os.path.isdi", "matches": {"isdir"}},
        {"text": "no_such_name_anywhere", "matches": set()},
    ]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n", "%pwd", "!ls", "x?"]
    incomplete_code_samples = ["print('''hello", "def f(x):\n  x*2", "for i in range(3):", "%%timeit\n"]
    invalid_code_samples = ["import = 7q", "raise = 2", "foo bar baz"]
    code_history_pattern = "6?7*"
    supported_history_operations = ("tail", "range", "search")


class Welcome(OnColab):
    support_iopub_welcome = True


class ColabStackTests(Kernel, jupyter_kernel_test.KernelTests):
    pass


class ColabStackWelcomeTests(Welcome, jupyter_kernel_test.IopubWelcomeTests):
    pass


class NewestStackTests(Kernel, jupyter_kernel_test.KernelTests):
    stack = "newest"


class NewestStackWelcomeTests(Welcome, jupyter_kernel_test.IopubWelcomeTests):
    stack = "newest"


class TextTests(Kernel, jupyter_kernel_test.KernelTests):
    companion = "off"
    # What execute_code has no word for.
    test_completion = test_inspect = test_pager = test_clear_output = None


class TextOfTheNewestStackTests(TextTests):
    stack = "newest"


class TextWelcomeTests(Welcome, jupyter_kernel_test.IopubWelcomeTests):
    companion = "off"
