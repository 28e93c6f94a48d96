//! `kernel_info_reply`, and the Python version that it tells.
//!
//! The reply is given before any session exists, so the version is the one that the last session had; it is remembered in
//! the state directory. `language_info` has ipykernel's values, because nbconvert picks its exporter by them.

use std::path::PathBuf;

use serde_json::{Value, json};

/// The version of the messaging spec that is spoken.
pub const PROTOCOL_VERSION: &str = "5.5";

/// Python on Colab's current image, told until a session has been seen.
const DEFAULT_PYTHON: &str = "3.13.15";

/// The remote Python's version, remembered across processes.
#[derive(Debug, Clone)]
pub struct PythonVersion {
    file: Option<PathBuf>,
}

impl PythonVersion {
    /// Remembered in this directory (`None`: not at all).
    pub fn new(state_dir: Option<PathBuf>) -> Self {
        Self {
            file: state_dir.map(|dir| dir.join("python-version")),
        }
    }

    /// The version that the last session had.
    pub fn last_seen(&self) -> String {
        self.file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .map(|text| text.trim().to_owned())
            .filter(|text| is_version(text))
            .unwrap_or_else(|| DEFAULT_PYTHON.to_owned())
    }
}

fn is_version(text: &str) -> bool {
    text.len() <= 16
        && text.split('.').count() >= 2
        && text
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

/// The content of `kernel_info_reply`.
pub fn kernel_info(python: &str) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "status": "ok",
        "protocol_version": PROTOCOL_VERSION,
        "implementation": "colab-kernel",
        "implementation_version": version,
        "language_info": {
            "name": "python",
            "version": python,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        },
        "banner": format!("colab-kernel {version}: Python {python} on Google Colab"),
        "help_links": [
            {"text": "Google Colab", "url": "https://colab.research.google.com/"},
            {"text": "Python Reference", "url": "https://docs.python.org/3/"},
            {"text": "IPython Reference", "url": "https://ipython.org/documentation.html"},
        ],
        "debugger": false,
        "supported_features": ["iopub_welcome"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_version_is_told_until_one_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let version = PythonVersion::new(Some(dir.path().into()));
        assert_eq!(version.last_seen(), DEFAULT_PYTHON);
        std::fs::write(dir.path().join("python-version"), "3.12.4\n").unwrap();
        assert_eq!(version.last_seen(), "3.12.4");
        std::fs::write(dir.path().join("python-version"), "<garbage>").unwrap();
        assert_eq!(version.last_seen(), DEFAULT_PYTHON);
    }
}
