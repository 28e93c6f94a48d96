//! The log: a file of our own, because standard output and standard error of a kernel belong to its front-end.
//!
//! Off unless `COLAB_KERNEL_LOG` asks for it. `debug` records raw frames, which is how the first run against a service that is
//! known from its documentation alone tells what it really does. Invariants:
//!
//! * Nothing is written to standard output or standard error from here.
//! * A secret never reaches the file: every line passes [`redact`], which blanks what stands where secrets stand, and the
//!   exact secrets that were registered.
//! * The file belongs to the user (0600, in a 0700 directory), one per process, and is bounded: two halves of [`HALF`] bytes,
//!   and the newest [`KEPT`] processes' files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime as Timestamps;

use crate::config::{Secret, Settings};

/// The size at which a log file is put aside and the one put aside before is dropped.
const HALF: u64 = 10 * 1024 * 1024;

/// How many processes' logs stay in the state directory.
const KEPT: usize = 20;

/// Starts logging if the settings ask for it, and returns the file's path.
///
/// `name` tells the commands apart; `secrets` are texts that must not be written wherever they turn up.
pub fn start(
    settings: &Settings,
    name: &str,
    secrets: Vec<Secret>,
) -> Result<Option<PathBuf>, LogError> {
    let Some(filter) = &settings.log else {
        return Ok(None);
    };
    let directory = &settings.state_dir;
    let fail = |source| LogError {
        directory: directory.clone(),
        source,
    };
    create_private_dir(directory).map_err(fail)?;
    prune(directory, name);
    let path = directory.join(format!("{name}-{}.log", std::process::id()));
    let file = RotatingFile::create(path.clone(), HALF).map_err(fail)?;
    let writer = Mutex::new(Redacting {
        secrets: secrets
            .into_iter()
            .filter(|secret| secret.expose().len() >= SHORTEST_SECRET)
            .collect(),
        inner: file,
    });
    // Fails only if a subscriber is set already, as in a test process; the log is then that one's.
    let _ = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_timer(Timestamps)
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(writer)
        .try_init();
    Ok(Some(path))
}

/// Why the log could not be started.
#[derive(Debug, thiserror::Error)]
#[error("The log cannot be written in {directory}: {source}", directory = directory.display())]
pub struct LogError {
    directory: PathBuf,
    source: io::Error,
}

/// Reads `COLAB_KERNEL_LOG`: a level for our own records, or a filter as `tracing` has them. `None` is no log.
pub fn parse_filter(value: &str) -> Result<Option<String>, &'static str> {
    const ALLOWED: &str = "`off`, `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `colab_kernel=debug,reqwest=info`";
    let value = value.trim();
    match value.to_ascii_lowercase().as_str() {
        "" | "off" | "0" => Ok(None),
        level @ ("error" | "warn" | "info" | "debug" | "trace") => {
            Ok(Some(format!("warn,colab_kernel={level}")))
        }
        // A bare word is a target to `EnvFilter`, so that a misspelt level would quietly log nothing.
        _ if !value.contains('=') => Err(ALLOWED),
        _ => match EnvFilter::try_new(value) {
            Ok(_) => Ok(Some(value.to_owned())),
            Err(_) => Err(ALLOWED),
        },
    }
}

/// Creates a directory that is the user's alone, with its parents.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn create_private_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Removes the oldest processes' logs. A log that cannot be removed is left: logging is no reason for a kernel to fail.
fn prune(directory: &Path, name: &str) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let prefix = format!("{name}-");
    let mut logs: Vec<(SystemTime, PathBuf)> = entries
        .flatten()
        .filter(|entry| {
            let file = entry.file_name();
            let file = file.to_string_lossy();
            file.starts_with(&prefix) && file.ends_with(".log")
        })
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    logs.sort();
    let surplus = logs.len().saturating_sub(2 * KEPT - 1);
    for (_, path) in &logs[..surplus] {
        let _ = fs::remove_file(path);
    }
}

/// A file that is put aside when it is full.
struct RotatingFile {
    path: PathBuf,
    file: File,
    written: u64,
    limit: u64,
}

impl RotatingFile {
    fn create(path: PathBuf, limit: u64) -> io::Result<Self> {
        let file = create_private_file(&path)?;
        let written = file.metadata()?.len();
        Ok(Self {
            path,
            file,
            written,
            limit,
        })
    }

    fn rotate(&mut self) -> io::Result<()> {
        fs::rename(&self.path, self.path.with_extension("old.log"))?;
        self.file = create_private_file(&self.path)?;
        self.written = 0;
        Ok(())
    }
}

impl Write for RotatingFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.written > 0 && self.written + line.len() as u64 > self.limit {
            self.rotate()?;
        }
        self.file.write_all(line)?;
        self.written += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Blanks secrets in what passes through. One record is one write.
struct Redacting<W> {
    secrets: Vec<Secret>,
    inner: W,
}

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = redact(&String::from_utf8_lossy(line), &self.secrets);
        self.inner.write_all(text.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// What stands in the place of a secret.
const BLANK: &str = "[secret]";

/// Shorter texts are not looked for: they would blank ordinary words.
const SHORTEST_SECRET: usize = 8;

/// What a secret follows, lower case: headers, query parameters and JSON members, the latter also inside a JSON string.
const BEFORE_SECRETS: [&str; 10] = [
    "bearer ",
    "proxy-token: ",
    "proxy-token=",
    "secret\": \"",
    "secret\":\"",
    "access_token=",
    "token\":\"",
    "token\": \"",
    "token\\\":\\\"",
    "token\\\": \\\"",
];

/// The text without its secrets.
pub fn redact(text: &str, secrets: &[Secret]) -> String {
    let mut text = text.to_owned();
    for secret in secrets {
        if text.contains(secret.expose()) {
            text = text.replace(secret.expose(), BLANK);
        }
    }
    // Lower-casing ASCII alone keeps every byte at its place.
    let lower = text.to_ascii_lowercase();
    let mut redacted = String::with_capacity(text.len());
    let mut done = 0;
    while let Some(start) = BEFORE_SECRETS
        .iter()
        .filter_map(|marker| {
            lower[done..]
                .match_indices(marker)
                .map(|(at, marker)| (at + done, marker.len()))
                // A progress token is no secret, and which stream text belongs to cannot be told without it.
                .find(|(at, _)| !lower[..*at].ends_with("progress"))
        })
        .map(|(at, length)| at + length)
        .min()
    {
        let end = text[start..]
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\\' | '&' | ',' | '\''))
            .map_or(text.len(), |length| start + length);
        redacted.push_str(&text[done..start]);
        if end > start {
            redacted.push_str(BLANK);
        }
        done = end;
    }
    redacted.push_str(&text[done..]);
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_for_our_own_records() {
        assert_eq!(parse_filter("off"), Ok(None));
        assert_eq!(
            parse_filter("DEBUG"),
            Ok(Some("warn,colab_kernel=debug".to_owned()))
        );
        assert_eq!(
            parse_filter("colab_kernel::jupyter=trace"),
            Ok(Some("colab_kernel::jupyter=trace".to_owned()))
        );
        assert!(parse_filter("verbose").is_err());
        assert!(parse_filter("colab_kernel=loud").is_err());
    }

    #[test]
    fn secrets_are_blanked_wherever_they_stand() {
        for (line, expected) in [
            (
                "authorization: Bearer ya29.abc/def\n",
                "authorization: Bearer [secret]\n",
            ),
            (
                r#"{"connectionInfo":{"token":"eyJ.x.y","expireTime":"2026"}}"#,
                r#"{"connectionInfo":{"token":"[secret]","expireTime":"2026"}}"#,
            ),
            (
                r#"{"text":"{\"token\": \"eyJ.x.y\", \"url\": \"u\"}"}"#,
                r#"{"text":"{\"token\": \"[secret]\", \"url\": \"u\"}"}"#,
            ),
            (
                "X-Colab-Runtime-Proxy-Token: eyJ",
                "X-Colab-Runtime-Proxy-Token: [secret]",
            ),
            (
                "GET /x?colab-runtime-proxy-token=a1&b=2&access_token=q",
                "GET /x?colab-runtime-proxy-token=[secret]&b=2&access_token=[secret]",
            ),
            (
                r#"{"progressToken":"p1","client_secret":"GOCSPX-1"}"#,
                r#"{"progressToken":"p1","client_secret":"[secret]"}"#,
            ),
            ("nothing to hide: ümläut ✓", "nothing to hide: ümläut ✓"),
        ] {
            assert_eq!(redact(line, &[]), expected);
        }
        let key = Secret::new("0123456789abcdef");
        assert_eq!(
            redact("key 0123456789abcdef!", std::slice::from_ref(&key)),
            "key [secret]!"
        );
    }

    #[test]
    fn a_full_file_is_put_aside_and_no_more_than_two_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kernel-1.log");
        let mut file = RotatingFile::create(path.clone(), 10).unwrap();
        for line in ["first\n", "second\n", "third\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "third\n");
        let old = path.with_extension("old.log");
        assert_eq!(fs::read_to_string(old).unwrap(), "second\n");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn the_file_is_the_users_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("a/state");
        create_private_dir(&state).unwrap();
        let path = state.join("kernel-1.log");
        RotatingFile::create(path.clone(), 10).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state), 0o700);
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn old_logs_are_pruned_and_other_files_are_not() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        fs::write(state.join("sessions.json"), "{}").unwrap();
        for pid in 0..100 {
            fs::write(state.join(format!("kernel-{pid}.log")), "").unwrap();
        }
        prune(state, "kernel");
        let left = fs::read_dir(state).unwrap().count();
        assert!(left <= 2 * KEPT, "{left}");
        assert!(state.join("sessions.json").exists());
    }
}
