//! The Python that runs the Jupyter servers: a private environment made once, or one that the user names.

use std::path::PathBuf;

/// Which Python runs the Jupyter servers and their kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonChoice {
    /// A private virtual environment, made once.
    Managed {
        /// Where it is kept (`None`: `COLAB_KERNEL_CACHE_DIR`, else the user's cache directory).
        cache_dir: Option<PathBuf>,
    },
    /// An interpreter that has jupyter_server and ipykernel.
    Path(PathBuf),
}

impl Default for PythonChoice {
    fn default() -> Self {
        Self::Managed { cache_dir: None }
    }
}

/// Why there is no usable Python.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// No Python 3 was found.
    #[error("Python 3 was not found. Install it, or name an interpreter that has jupyter_server and ipykernel with --python")]
    Missing,
}
