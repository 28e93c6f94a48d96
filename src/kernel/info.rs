//! `kernel_info_reply`.
//!
//! `language_info` has ipykernel's values, because nbconvert picks its exporter by them.

use serde_json::{Value, json};

/// The version of the messaging spec that is spoken.
pub const PROTOCOL_VERSION: &str = "5.5";

/// Python on Colab's current image. The reply is given before any session exists, and nothing that `execute_code` returns tells
/// the version; asking for it would take a run that counts.
const PYTHON: &str = "3.13.15";

/// The content of `kernel_info_reply`.
pub fn kernel_info() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "status": "ok",
        "protocol_version": PROTOCOL_VERSION,
        "implementation": "colab-kernel",
        "implementation_version": version,
        "language_info": {
            "name": "python",
            "version": PYTHON,
            "mimetype": "text/x-python",
            "codemirror_mode": {"name": "ipython", "version": 3},
            "pygments_lexer": "ipython3",
            "nbconvert_exporter": "python",
            "file_extension": ".py",
        },
        "banner": format!("colab-kernel {version}: Python {PYTHON} on Google Colab"),
        "help_links": [
            {"text": "Google Colab", "url": "https://colab.research.google.com/"},
            {"text": "Python Reference", "url": "https://docs.python.org/3/"},
            {"text": "IPython Reference", "url": "https://ipython.org/documentation.html"},
        ],
        "debugger": false,
        "supported_features": ["iopub_welcome"],
    })
}
