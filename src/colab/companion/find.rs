//! Which kernel of the runtime is our session's.
//!
//! Invariant: a kernel is ours only where our own session id occurs, or where our own code says so from inside. "The newest" or
//! "the only one" may be a stranger's.

use super::super::helper;
use super::rest::JupyterSession;

/// What stands before the file's name in the probe's line.
const MARK: &str = "colab-kernel connection file: ";

/// The kernel of the session that bears this id (`ck-…`), as a whole word, in its id, name or path. `None` as well where two
/// kernels do.
pub fn kernel_of(sessions: &[JupyterSession], session_id: &str) -> Option<String> {
    let mut kernels = sessions
        .iter()
        .filter(|session| {
            [&session.id, &session.name, &session.path]
                .into_iter()
                .any(|text| has_word(text, session_id))
        })
        .map(|session| session.kernel_id.as_str())
        .filter(|kernel| !kernel.is_empty());
    let kernel = kernels.next()?;
    kernels
        .all(|other| other == kernel)
        .then(|| kernel.to_owned())
}

/// Code that prints the name of the kernel's connection file, which Jupyter Servers name after the kernel's id.
pub fn probe() -> String {
    const PROBE: &str = r#"
def file():
    try:
        from ipykernel.connect import get_connection_file
        return get_connection_file()
    except Exception:
        import sys
        return next((word for word in sys.argv if word.endswith(".json")), "")
print(MARK + file().replace("\\", "/").rsplit("/", 1)[-1])
"#;
    let mark = serde_json::Value::from(MARK).to_string();
    helper::wrapped(PROBE, &[("MARK", mark)])
}

/// The kernel's id in what the probe printed, whatever else was printed. `None` as well where it names two.
pub fn probed(stdout: &str) -> Option<String> {
    let mut ids = stdout.split(MARK).skip(1).filter_map(|rest| {
        let name = rest.strip_prefix("kernel-")?;
        let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))?;
        let (id, rest) = name.split_at(end);
        (rest.starts_with(".json") && !id.is_empty()).then_some(id)
    });
    let id = ids.next()?;
    ids.all(|other| other == id).then(|| id.to_owned())
}

/// Whether `word` stands in `text` and is not part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let continues =
        |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '_'));
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            !continues(text[..at].chars().next_back())
                && !continues(text[at + word.len()..].chars().next())
        })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn session(id: &str, name: &str, path: &str, kernel_id: &str) -> JupyterSession {
        JupyterSession {
            id: id.into(),
            name: name.into(),
            path: path.into(),
            kernel_id: kernel_id.into(),
        }
    }

    #[test]
    fn our_id_is_found_in_id_name_and_path() {
        for ours in [
            session("ck-ab12", "", "", "k"),
            session("x", "ck-ab12", "", "k"),
            session("x", "runtimes/r/sessions/ck-ab12", "", "k"),
            session("x", "", "/content/ck-ab12.ipynb", "k"),
            session("x", "ck-ab12 and ck-ab12", "ck-ab123 [ck-ab12]", "k"),
        ] {
            let all = [session("y", "other", "a.ipynb", "z"), ours.clone()];
            assert_eq!(kernel_of(&all, "ck-ab12").as_deref(), Some("k"), "{ours:?}");
        }
    }

    #[test]
    fn a_part_of_another_id_is_not_ours() {
        for other in [
            session("ck-ab123", "", "", "k"),
            session("xck-ab12", "", "", "k"),
            session("ck-ab12-2", "ck-ab12_", "a-ck-ab12.ipynb", "k"),
            session("y", "n", "p", "k"),
            session("ck-ab12", "", "", ""),
        ] {
            let all = [other];
            assert_eq!(kernel_of(&all, "ck-ab12"), None, "{all:?}");
        }
        assert_eq!(kernel_of(&[session("", "", "", "k")], ""), None);
        assert_eq!(kernel_of(&[], "ck-ab12"), None);
    }

    #[test]
    fn of_two_kernels_none_is_taken() {
        let a = session("ck-ab12", "", "", "k");
        let b = session("y", "ck-ab12", "", "l");
        assert_eq!(kernel_of(&[a.clone(), b], "ck-ab12"), None);
        let again = session("y", "ck-ab12", "", "k");
        assert_eq!(kernel_of(&[a, again], "ck-ab12").as_deref(), Some("k"));
    }

    #[test]
    fn the_probes_line_is_read_whatever_stands_around_it() {
        let line = format!("{MARK}kernel-1b2c-3d.json\n");
        for text in [
            line.clone(),
            format!("noise{line}more"),
            format!("{line}{line}"),
            format!("{MARK}\n{line}"),
        ] {
            assert_eq!(probed(&text).as_deref(), Some("1b2c-3d"), "{text}");
        }
        for text in [
            String::new(),
            MARK.into(),
            format!("{MARK}kernel-1"),
            format!("{MARK}kernel-.json"),
            format!("{MARK}kernel-../x.json"),
            format!("{MARK}/tmp/other.json"),
            format!("{line}{MARK}kernel-2.json"),
            "kernel-1b2c.json".into(),
        ] {
            assert_eq!(probed(&text), None, "{text}");
        }
    }

    #[test]
    fn the_probe_is_one_line_known_as_ours_and_leaves_no_name() {
        let probe = probe();
        assert!(!probe.contains('\n') && probe.contains("colab_kernel_helper"));
        // The answer of a kernel without ipykernel: the argument of its own process.
        let script =
            format!("before = set(dir())\n{probe}\nassert set(dir()) == before | {{'before'}}\n");
        let output = Command::new("python3")
            .args(["-S", "-c", &script, "-f", "/run/jupyter/kernel-1-2.json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert_eq!(probed(&stdout).as_deref(), Some("1-2"), "{stdout}");
        assert_eq!(stdout.lines().count(), 1);
    }
}
