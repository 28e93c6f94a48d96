//! What Colab's documentation leaves open, as settings.

/// What Colab's documentation leaves open. The default is the most likely reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quirks {}

impl Quirks {
    /// Sets one quirk from `NAME=VALUE`.
    pub fn set(&mut self, setting: &str) -> Result<(), QuirkError> {
        Err(QuirkError(setting.to_owned()))
    }

    /// The table of quirks, for `--help`.
    pub fn help() -> String {
        String::new()
    }

    /// The defaults with one quirk set from `NAME=VALUE`.
    pub fn parse(setting: &str) -> Result<Self, QuirkError> {
        let mut quirks = Self::default();
        quirks.set(setting)?;
        Ok(quirks)
    }
}

/// A setting that names no quirk or no value of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QuirkError(String);
