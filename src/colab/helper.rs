//! Python that the kernel itself runs on a session.
//!
//! `execute_code` knows no silent code: what is not a counted cell of the user is wrapped. Invariants:
//!
//! * A helper is one expression over a namespace of its own: it leaves no name in the user's, and it prints nothing.
//! * The user's text goes in as a string literal, never by pasting it into code.

/// What every helper has in its text, so that the kernel's history tells it from the user's cells.
pub const MARKER: &str = "colab_kernel_helper";

/// Code that runs `source` as a front-end's uncounted code: in the user's namespace, without a number of its own, and with its
/// exception as the call's exception.
pub fn uncounted(source: &str) -> String {
    // The inner run shows the exception with the user's own frames; the outer one, by which the call fails, shows nothing.
    const RUN: &str = r#"
def run(source):
    from IPython import get_ipython
    shell = get_ipython()
    if shell is None:
        raise RuntimeError("no IPython shell runs here")
    result = shell.run_cell(source, store_history=False)
    error = result.error_before_exec or result.error_in_exec
    if error is None:
        return
    own = shell.__dict__.get("showtraceback")
    def shown_already(*args, **kwargs):
        if own is None:
            del shell.showtraceback
        else:
            shell.showtraceback = own
    shell.showtraceback = shown_already
    raise error
run(SOURCE)
"#;
    wrapped(RUN, &[("SOURCE", literal(source))])
}

/// Code that prepares a new session: prompts are refused, and the front-end's set-up code runs. What it raises or prints is of
/// no interest.
pub fn preparation(setup: &[String]) -> String {
    const PREPARE: &str = r#"
for source in SOURCES:
    try:
        shell.run_cell(source, silent=True, store_history=False)
    except BaseException:
        pass
"#;
    let sources: Vec<String> = setup.iter().map(|source| literal(source)).collect();
    wrapped(
        &format!("{GUARD}{PATCH}{PREPARE}"),
        &[
            ("SENTENCE", literal(PROMPT_REFUSED)),
            ("PAGE_SENTENCE", literal(PAGE_REFUSED)),
            ("DOWNLOAD", literal(NO_DOWNLOAD)),
            ("MOUNT", literal(NO_MOUNT)),
            ("SOURCES", format!("[{}]", sources.join(", "))),
        ],
    )
}

/// Code that makes prompts fail at once, and what would ask or need the web page.
pub fn guard() -> String {
    wrapped(
        &format!("{GUARD}{PATCH}"),
        &[
            ("SENTENCE", literal(PROMPT_REFUSED)),
            ("PAGE_SENTENCE", literal(PAGE_REFUSED)),
            ("DOWNLOAD", literal(NO_DOWNLOAD)),
            ("MOUNT", literal(NO_MOUNT)),
        ],
    )
}

/// Code that makes helpers of Colab's web page fail at once with what to do, where the page's own answer would not: `files.download`
/// asks nothing, it displays a script for the page (googlecolab/colabtools, `files.py`), and `drive.mount` may refuse by itself.
pub fn without_page() -> String {
    wrapped(
        PATCH,
        &[
            ("DOWNLOAD", literal(NO_DOWNLOAD)),
            ("MOUNT", literal(NO_MOUNT)),
        ],
    )
}

/// Code that does nothing.
pub fn nothing() -> String {
    wrapped("", &[])
}

/// Whether this code may ask for input.
pub fn may_prompt(source: &str) -> bool {
    [
        "input(",
        "getpass",
        "breakpoint(",
        "set_trace",
        "%debug",
        "google.colab",
        "drive.mount(",
        "files.upload(",
        "userdata.get(",
        "authenticate_user(",
        "eval_js(",
    ]
    .iter()
    .any(|word| source.contains(word))
}

/// What the user reads where a prompt would be.
const PROMPT_REFUSED: &str = "this cell asks for input, which cannot be answered over Colab's execute_code; \
set the value in a variable instead";

/// What the user reads where Colab's web page would be asked: by `drive.mount`, `files.upload`, `userdata.get` and the like.
const PAGE_REFUSED: &str = "this cell asks Colab's web page for something (as drive.mount, files.upload and userdata.get do), \
and there is no web page behind Colab's execute_code";

/// What the user reads instead of a download that nobody would receive.
const NO_DOWNLOAD: &str = "colab-kernel: files.download() hands the file to Colab's web page, which is not there when cells run \
from a local editor. The file stays on the runtime: show what is in it in a cell, or send it from a cell to storage of your own \
(with curl, rclone or gsutil)";

/// What the user reads where `drive.mount` refuses.
const NO_MOUNT: &str = "colab-kernel: drive.mount() needs Colab's web page, which is not there when cells run from a local editor. \
Reach Drive from a cell with rclone or the Drive API and credentials of your own, or keep files on the runtime under /content";

/// `google.colab` waits for the web page's answers in one function, some of them for ever. ipykernel puts `raw_input` and `getpass` of the kernel object in place at every request; elsewhere the builtins are what is
/// called.
const GUARD: &str = r#"
def refuse(sentence):
    try:
        from IPython.core.error import StdinNotImplementedError as Refused
    except ImportError:
        Refused = RuntimeError
    def refused(*args, **kwargs):
        raise Refused(sentence)
    return refused
def guard(sentence):
    import builtins, getpass
    refused = refuse(sentence)
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.raw_input = refused
        kernel.getpass = refused
    builtins.input = refused
    getpass.getpass = refused
def guard_page(sentence):
    try:
        from google.colab import _message
    except Exception:
        return
    _message.read_reply_from_input = refuse(sentence)
try:
    from IPython import get_ipython
    shell = get_ipython()
except ImportError:
    shell = None
guard(SENTENCE)
guard_page(PAGE_SENTENCE)
"#;

/// What is loaded is patched, what is not when it is imported; nothing is imported for it. A second run changes nothing.
const PATCH: &str = r#"
import sys
def patch_files(module):
    def download(filename):
        raise NotImplementedError(DOWNLOAD)
    module.download = download
def patch_drive(module):
    native = module.mount
    if hasattr(native, "colab_kernel"):
        return
    def mount(*args, **kwargs):
        try:
            return native(*args, **kwargs)
        except NotImplementedError:
            raise NotImplementedError(MOUNT) from None
    mount.colab_kernel = True
    module.mount = mount
patches = {"google.colab.files": patch_files, "google.colab.drive": patch_drive}
def patch(module):
    try:
        patches[module.__name__](module)
    except Exception:
        pass
class ColabKernelFinder:
    def find_spec(self, name, path=None, target=None):
        if name not in patches:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec:
                break
        else:
            return None
        try:
            native = spec.loader.exec_module
            def exec_module(module):
                native(module)
                patch(module)
            spec.loader.exec_module = exec_module
        except Exception:
            pass
        return spec
for name in patches:
    if name in sys.modules:
        patch(sys.modules[name])
if not any(type(finder).__name__ == ColabKernelFinder.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, ColabKernelFinder())
"#;

/// One expression that runs `code` in a namespace with these names.
pub(super) fn wrapped(code: &str, names: &[(&str, String)]) -> String {
    let mut namespace = format!(r#""__name__": "{MARKER}""#);
    for (name, value) in names {
        namespace.push_str(&format!(r#", "{name}": {value}"#));
    }
    format!("exec({}, {{{namespace}}})", literal(code))
}

/// A Python string literal of this text. JSON's escapes are Python's, and serde_json writes everything else as it is.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_helper_is_one_line_whatever_it_carries() {
        for code in [
            uncounted("a = 1\nprint(\"\\n\")\n"),
            preparation(&["x\ny".into(), "'''z'''".into()]),
            guard(),
            without_page(),
        ] {
            assert!(!code.contains('\n'), "{code}");
            assert!(code.starts_with("exec(") && code.ends_with(')'), "{code}");
        }
    }

    #[test]
    fn prompts_are_recognised() {
        for code in [
            "x = input('?')",
            "from getpass import getpass",
            "breakpoint()",
            "from google.colab import drive",
            "drive.mount('/content/drive')",
        ] {
            assert!(may_prompt(code), "{code}");
        }
        assert!(!may_prompt("print(inputs)"));
    }

    /// Runs Python where it is installed; `None` without it or without IPython.
    fn python(script: &str) -> Option<String> {
        let output = Command::new("python3")
            .args(["-c", &format!("import IPython\n{script}")])
            .env("IPYTHONDIR", std::env::temp_dir().join("ck-helper-test"))
            .output()
            .ok()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        if stderr.contains("No module named 'IPython'") {
            return None;
        }
        assert!(output.status.success(), "{stderr}");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A script that runs these cells in one shell and prints what each raised, then the names the user has.
    fn session(cells: &[String]) -> String {
        let cells: Vec<String> = cells.iter().map(|cell| literal(cell)).collect();
        format!(
            r#"
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.history_manager.enabled = False
before = set(shell.user_ns)
for cell in [{}]:
    shell.showtraceback = lambda *a, **k: None
    result = shell.run_cell(cell, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    print("raised", type(error).__name__, str(error)[:20])
print(sorted(name for name in set(shell.user_ns) - before if not name.startswith("_")))
"#,
            cells.join(", ")
        )
    }

    #[test]
    fn helpers_leave_no_names_and_print_nothing() {
        let cells = [
            preparation(&["x = 1".into(), "1/0".into(), "def (".into()]),
            guard(),
            uncounted("y = x + 1\nz = '\\u00e9𝄞\\n'"),
        ];
        let Some(output) = python(&session(&cells)) else {
            return;
        };
        let lines: Vec<&str> = output
            .lines()
            .filter(|line| line.starts_with("raised") || line.starts_with('['))
            .collect();
        assert_eq!(
            lines,
            [
                "raised NoneType None",
                "raised NoneType None",
                "raised NoneType None",
                "['x', 'y', 'z']"
            ],
            "{output}"
        );
    }

    #[test]
    fn asking_the_web_page_fails_at_once() {
        const PAGE: &str = r#"
import sys, types
google, colab, message = (types.ModuleType(n) for n in ("google", "google.colab", "google.colab._message"))
def read_reply_from_input(message_id, timeout_sec=None):
    raise SystemError("waits for ever")
message.read_reply_from_input = read_reply_from_input
google.colab, colab._message = colab, message
sys.modules.update({m.__name__: m for m in (google, colab, message)})
"#;
        let cells = [
            PAGE.to_owned(),
            guard(),
            "message.read_reply_from_input('1')".to_owned(),
        ];
        let Some(output) = python(&session(&cells)) else {
            return;
        };
        assert!(
            output.contains("raised StdinNotImplementedError this cell asks Colab"),
            "{output}"
        );
    }

    #[test]
    fn downloads_fail_whether_loaded_before_or_later_and_nothing_is_imported_for_it() {
        const PACKAGE: &str = r#"
import os, sys, tempfile
package = os.path.join(tempfile.mkdtemp(), "google", "colab")
os.makedirs(package)
for name, code in [("../__init__", ""), ("__init__", ""), ("files", "def download(filename): pass"),
                   ("drive", "def mount(mountpoint): raise NotImplementedError('not here')")]:
    open(os.path.join(package, name + ".py"), "w").write(code + "\n")
sys.modules.pop("google", None)
sys.path.insert(0, os.path.dirname(os.path.dirname(package)))
"#;
        for (first, names) in [
            ("pass", "['drive', 'files', 'name', 'package']"),
            (
                "import google.colab.files",
                "['drive', 'files', 'google', 'name', 'package']",
            ),
        ] {
            let cells = [
                PACKAGE.to_owned() + "del os, sys, tempfile, code",
                first.to_owned(),
                without_page(),
                "import sys; assert ('google.colab' in sys.modules) == ('google' in globals()); del sys".to_owned(),
                "from google.colab import drive, files".to_owned(),
                "files.download('x')".to_owned(),
                "drive.mount('/content/drive')".to_owned(),
            ];
            let Some(output) = python(&session(&cells)) else {
                return;
            };
            let (raised, last): (Vec<&str>, Vec<&str>) =
                output.lines().partition(|line| line.starts_with("raised "));
            assert_eq!(raised[..5], ["raised NoneType None"; 5], "{output}");
            assert_eq!(
                raised[5..],
                [
                    "raised NotImplementedError colab-kernel: files.",
                    "raised NotImplementedError colab-kernel: drive.",
                ],
                "{output}"
            );
            assert_eq!(last.last(), Some(&names), "{output}");
        }
    }

    #[test]
    fn the_exception_of_uncounted_code_is_that_of_the_call() {
        let cells = [
            uncounted("raise KeyError('k')"),
            uncounted("def ("),
            guard(),
            "input()".to_owned(),
            "import getpass; getpass.getpass()".to_owned(),
        ];
        let Some(output) = python(&session(&cells)) else {
            return;
        };
        let raised: Vec<&str> = output
            .lines()
            .filter_map(|line| line.strip_prefix("raised "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(
            raised,
            [
                "KeyError",
                "SyntaxError",
                "NoneType",
                "StdinNotImplementedError",
                "StdinNotImplementedError"
            ],
            "{output}"
        );
    }
}
