//! Code that front-ends run on their own before the user's first cell, told apart so that none of it starts a machine.
//!
//! A front-end that opens a notebook sends `execute_request`s with `store_history: false` and waits for each. What sets the
//! namespace up is kept for the session to come; what only asks is answered without an answer. The judgement is made on the text
//! alone. When in doubt code is [`EarlyCode::Setup`]: running a probe later does no harm, losing an import would.
//!
//! Seen in Microsoft's Jupyter extension for VS Code (<https://github.com/microsoft/vscode-jupyter>), for kernels whose language
//! is Python:
//! * `src/kernels/kernel.ts`, `determineVersionOfIPyWidgets`: prints the version of ipywidgets, imported as
//!   `_VSCODE_ipywidgets`. The same form, with `_VSCODE_sys`, asks for `sys.executable`.
//! * `src/kernels/kernel.ts`, `gatherInternalStartupCode` and `getUserStartupCommands`: one block that sets `__vsc_ipynb_file__`,
//!   `%config Completer.use_jedi`, matplotlib's theme and hooks, then the user's `jupyter.runStartupCommands`.
//! * `src/standalone/api/kernels/backgroundExecution.ts`, `execCodeInBackgroundThread`: completion, hover and the variable view
//!   run in a thread that answers through a display of the type `application/vnd.vscode.bg.execution.N`.

/// Set-up code larger than this is not kept.
pub const MAX_SETUP: usize = 64 * 1024;

/// Whether uncounted code is VS Code's, by the names that all of its start-up code uses.
pub fn is_vs_code(code: &str) -> bool {
    ["__vsc_ipynb_file__", "_VSCODE_", BACKGROUND_MIME]
        .iter()
        .any(|mark| code.contains(mark))
}

/// What uncounted code before the first session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyCode {
    /// It prepares the namespace: keep it, and run it on every new session.
    Setup,
    /// It only asks what there is: answer ok with nothing.
    Probe,
    /// It answers from a thread through a display that nobody will update: answer ok with nothing.
    BackgroundWrapper,
    /// It would prepare the namespace but is larger than [`MAX_SETUP`]: answer ok, and say in the log that it was dropped.
    TooLarge,
}

/// Tells what uncounted code is for.
pub fn early_code(code: &str) -> EarlyCode {
    if code.contains(BACKGROUND_MIME) {
        return EarlyCode::BackgroundWrapper;
    }
    if code.len() > MAX_SETUP {
        return EarlyCode::TooLarge;
    }
    if is_probe(code) {
        EarlyCode::Probe
    } else {
        EarlyCode::Setup
    }
}

/// Whether this is code that VS Code's Jupyter extension sends on its own.
pub fn is_of_vs_code(code: &str) -> bool {
    [BACKGROUND_MIME, "_VSCODE_", "__vsc_ipynb_file__"]
        .iter()
        .any(|mark| code.contains(mark))
}

const BACKGROUND_MIME: &str = "application/vnd.vscode.bg.execution";

/// Whether every statement imports under a private name, prints a version or the interpreter's path, or tidies up.
fn is_probe(code: &str) -> bool {
    code.lines()
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .all(|statement| {
            statement.is_empty()
                || statement.starts_with('#')
                || statement == "pass"
                || statement == "try:"
                || (statement.starts_with("except") && statement.ends_with(':'))
                || is_private_import(statement)
                || is_private_del(statement)
                || is_question(statement)
        })
}

/// `import module as _name`, or `import sys`, which every IPython namespace can import again.
fn is_private_import(statement: &str) -> bool {
    let Some(import) = statement.strip_prefix("import ") else {
        return false;
    };
    match import.split_once(" as ") {
        Some((module, name)) => is_dotted_name(module.trim()) && is_private_name(name.trim()),
        None => import.trim() == "sys",
    }
}

fn is_private_del(statement: &str) -> bool {
    statement
        .strip_prefix("del ")
        .is_some_and(|names| names.split(',').all(|name| is_private_name(name.trim())))
}

/// A `print` of, or a bare expression for, a version or the interpreter's path.
fn is_question(statement: &str) -> bool {
    let asked = statement
        .strip_prefix("print(")
        .and_then(|rest| rest.strip_suffix(')'))
        // A call inside could do anything.
        .filter(|printed| !printed.contains('('))
        .or_else(|| is_dotted_name(statement).then_some(statement));
    asked.is_some_and(|asked| {
        [".__version__", ".executable", ".version", ".version_info"]
            .iter()
            .any(|attribute| asked.trim_end().ends_with(attribute))
    })
}

fn is_private_name(name: &str) -> bool {
    name.starts_with('_') && is_dotted_name(name) && !name.contains('.')
}

fn is_dotted_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_all(expected: EarlyCode, samples: &[&str]) {
        for code in samples {
            assert_eq!(early_code(code), expected, "{code:?}");
        }
    }

    #[test]
    fn version_and_interpreter_questions_are_probes() {
        assert_all(
            EarlyCode::Probe,
            &[
                "try:\n    import ipywidgets as _VSCODE_ipywidgets\n    print(\"a1b2:IPyWidgets:\" + _VSCODE_ipywidgets.__version__)\n    del _VSCODE_ipywidgets\nexcept:\n    pass",
                "import sys as _VSCODE_sys\nprint(_VSCODE_sys.executable); del _VSCODE_sys",
                "import sys\nprint(sys.executable)",
                "import sys; sys.version",
                "import IPython as _ip\r\nprint(_ip.__version__)\r\n",
                "",
                "\n  \n# nothing\n",
            ],
        );
    }

    #[test]
    fn code_that_prepares_the_namespace_is_set_up() {
        assert_all(
            EarlyCode::Setup,
            &[
                "__vsc_ipynb_file__ = \"/home/me/a.ipynb\"\n%config Completer.use_jedi = False",
                "import matplotlib\n%matplotlib inline\n_defaults = dict(matplotlib.rcParams)\ntry:\n    matplotlib.style.use('dark_background')\nexcept:\n    print('Failed to initialize matplotlib')",
                "def _hook():\n    pass\nget_ipython().events.register('pre_run_cell', _hook)",
                "%load_ext autoreload\n%autoreload 2",
                "!pip install -q tqdm",
                "x = 1",
            ],
        );
    }

    #[test]
    fn a_probe_that_would_leave_something_behind_is_set_up() {
        assert_all(
            EarlyCode::Setup,
            &[
                "import pandas as pd\nprint(pd.__version__)",
                "import numpy\nprint(numpy.__version__)",
                "import sys\nsys.executable = 'python'",
                "print(install().__version__)",
                "del x",
                "from sys import executable",
                "print('hello')",
                "import sys as _s\nprint(_s.executable)\nstart_server()",
            ],
        );
    }

    #[test]
    fn threads_that_answer_through_a_display_are_wrappers() {
        let wrapper = |mime: &str| {
            format!(
                "def __run_in_background__():\n    from threading import Thread\n    from IPython.display import display\n    \
                 shown = display({{\"{mime}\": \"\"}}, raw=True, display_id=True)\n    def work():\n        \
                 shown.update({{\"{mime}.result\": get_ipython().kernel.do_complete(\"a.\", 2)}}, raw=True)\n    \
                 Thread(target=work, daemon=True).start()\n\n__run_in_background__()\ndel __run_in_background__"
            )
        };
        for number in [0, 7, 123] {
            let code = wrapper(&format!("application/vnd.vscode.bg.execution.{number}"));
            assert_eq!(early_code(&code), EarlyCode::BackgroundWrapper);
            let long = code + &"\n# padding".repeat(MAX_SETUP);
            assert_eq!(early_code(&long), EarlyCode::BackgroundWrapper);
        }
        assert_eq!(early_code(&wrapper("text/plain")), EarlyCode::Setup);
    }

    #[test]
    fn vs_code_is_known_by_its_start_up_code() {
        for code in [
            "import ipywidgets as _VSCODE_ipywidgets",
            "__vsc_ipynb_file__ = \"/home/me/a.ipynb\"\n%config Completer.use_jedi = False",
            "display({\"application/vnd.vscode.bg.execution.1\": \"\"}, raw=True)",
        ] {
            assert!(is_of_vs_code(code), "{code:?}");
        }
        assert!(!is_of_vs_code("import sys; sys.version"));
    }

    #[test]
    fn set_up_code_is_kept_up_to_its_limit() {
        let fits = format!("x = 1{}", "\n".repeat(MAX_SETUP - 5));
        assert_eq!(fits.len(), MAX_SETUP);
        assert_eq!(early_code(&fits), EarlyCode::Setup);
        assert_eq!(early_code(&(fits + "\n")), EarlyCode::TooLarge);
    }
}
