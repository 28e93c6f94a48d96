//! The settings of a kernel, gathered in one place: flags, then the environment, then the config file, then defaults.
//!
//! Every setting has one word: `runtime` is `--runtime` on the command line (not every setting has a flag), `COLAB_KERNEL_RUNTIME` in the
//! environment and `runtime` in the config file. Wherever it comes from, one parser reads it. Invariants:
//!
//! * A bad value is an error that names where it stands and what is allowed there. Nothing is passed over in silence.
//! * The bearer token comes from the environment alone and never shows: not in `Debug`, not in an error.
//! * Loading reads at most one small file and asks no network: it happens before the kernel's ports are bound.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use serde_json::Value;
use url::{Host, Url};

use crate::backend::JsonMap;
use crate::colab::companion::JOURNAL_BYTES;
use crate::colab::runtime::RuntimeChoice;
use crate::kernel::widgets::Mode;

/// Colab's own MCP endpoint.
pub const DEFAULT_ENDPOINT: &str = "https://colaboratory.googleapis.com/mcp";

/// The name of our directories under the user's configuration and state directories.
const DIRECTORY: &str = "colab-kernel";

/// What the config file may hold.
const FILE_KEYS: [&str; 12] = [
    "accelerator",
    "backend",
    "companion",
    "endpoint",
    "forward_env",
    "highmem",
    "journal_mb",
    "log",
    "quota_project",
    "runtime",
    "state_dir",
    "widgets",
];

/// The settings of one kernel process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The MCP endpoint: https, or http on a loopback address.
    pub endpoint: Url,
    /// A ready bearer token.
    pub token: Option<Secret>,
    /// The Google Cloud project that requests are counted against.
    pub quota_project: Option<String>,
    /// The wanted accelerator, a model name such as `T4`.
    pub accelerator: Option<String>,
    /// Whether the high-memory shape is wanted.
    pub highmem: bool,
    /// Which runtime to run on.
    pub runtime: RuntimeChoice,
    /// How cells reach Colab.
    pub backend: BackendKind,
    /// Whether the companion may be used.
    pub companion: bool,
    /// The size of the companion's journal in bytes.
    pub journal_bytes: u64,
    /// Variables of this process's environment that code on Colab gets, by name.
    pub forward_env: Vec<(String, Secret)>,
    /// Whether widgets of ipywidgets 7 are put into the words of 8.
    pub widgets: Mode,
    /// What to log; `None` is nothing. Read by [`crate::logging`].
    pub log: Option<String>,
    /// Where logs are kept. Not created before something is written.
    pub state_dir: PathBuf,
}

/// How cells reach Colab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// The remote MCP server.
    #[default]
    Mcp,
}

/// What was said on the command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    /// `--endpoint`
    pub endpoint: Option<String>,
    /// `--accelerator`
    pub accelerator: Option<String>,
    /// `--highmem`
    pub highmem: bool,
    /// `--runtime`
    pub runtime: Option<String>,
    /// `--backend`
    pub backend: Option<String>,
}

impl Settings {
    /// The settings of this process.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let env = |name: &str| std::env::var_os(name);
        let strategy = etcetera::choose_base_strategy().map_err(|_| ConfigError::NoHome)?;
        let path = strategy.config_dir().join(DIRECTORY).join("config.json");
        let file = read_file(&path)?;
        let state_dir = strategy
            .state_dir()
            .unwrap_or_else(|| strategy.data_dir())
            .join(DIRECTORY);
        Sources {
            flags,
            env: &env,
            path: &path,
            file: &file,
        }
        .resolve(state_dir)
    }
}

/// The places where a setting can be given, the strongest first.
struct Sources<'a> {
    flags: &'a Flags,
    env: &'a dyn Fn(&str) -> Option<OsString>,
    path: &'a Path,
    file: &'a JsonMap,
}

/// A setting as it was given, and where.
struct Given {
    value: String,
    origin: String,
}

impl Sources<'_> {
    fn resolve(&self, default_state_dir: PathBuf) -> Result<Settings, ConfigError> {
        if let Some(key) = self
            .file
            .keys()
            .find(|key| !FILE_KEYS.contains(&key.as_str()))
        {
            return Err(ConfigError::UnknownKey {
                key: key.clone(),
                path: self.path.to_owned(),
            });
        }
        Ok(Settings {
            endpoint: self
                .read("endpoint", endpoint)?
                .unwrap_or_else(default_endpoint),
            token: self.environment("token")?.map(|given| Secret(given.value)),
            quota_project: self.read("quota_project", text)?,
            accelerator: self.read("accelerator", text)?,
            highmem: self.read("highmem", switch)?.unwrap_or(false),
            runtime: self.read("runtime", runtime)?.unwrap_or_default(),
            backend: self.read("backend", backend)?.unwrap_or_default(),
            companion: self.read("companion", switch)?.unwrap_or(true),
            journal_bytes: self.read("journal_mb", megabytes)?.unwrap_or(JOURNAL_BYTES),
            forward_env: self.forwarded()?,
            widgets: self.read("widgets", widgets)?.unwrap_or_default(),
            log: self
                .read("log", crate::logging::parse_filter)?
                .unwrap_or_default(),
            state_dir: self.read("state_dir", path)?.unwrap_or(default_state_dir),
        })
    }

    /// The variables to forward. One that is not set is passed over: the user may set it later.
    fn forwarded(&self) -> Result<Vec<(String, Secret)>, ConfigError> {
        let names = self.read("forward_env", names)?.unwrap_or_default();
        let mut variables = Vec::with_capacity(names.len());
        for name in names {
            let Some(value) = (self.env)(&name) else {
                continue;
            };
            let value = value.into_string().map_err(|_| ConfigError::NotText {
                origin: name.clone(),
            })?;
            variables.push((name, Secret(value)));
        }
        Ok(variables)
    }

    /// The strongest source's value, read by the setting's parser.
    fn read<T>(
        &self,
        word: &'static str,
        parse: fn(&str) -> Result<T, &'static str>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(given) = self.find(word)? else {
            return Ok(None);
        };
        match parse(&given.value) {
            Ok(value) => Ok(Some(value)),
            Err(allowed) => Err(ConfigError::Bad {
                value: given.value,
                origin: given.origin,
                allowed,
            }),
        }
    }

    fn find(&self, word: &'static str) -> Result<Option<Given>, ConfigError> {
        if let Some(given) = self.flag(word) {
            return Ok(Some(given));
        }
        if let Some(given) = self.environment(word)? {
            return Ok(Some(given));
        }
        self.in_file(word)
    }

    fn flag(&self, word: &str) -> Option<Given> {
        let value = match word {
            "endpoint" => self.flags.endpoint.clone(),
            "accelerator" => self.flags.accelerator.clone(),
            "highmem" => self.flags.highmem.then(|| "on".to_owned()),
            "runtime" => self.flags.runtime.clone(),
            "backend" => self.flags.backend.clone(),
            _ => None,
        }?;
        Some(Given {
            value,
            origin: format!("--{word}"),
        })
    }

    /// An empty variable counts as unset, as is usual for variables that a wrapper passes on.
    fn environment(&self, word: &str) -> Result<Option<Given>, ConfigError> {
        let name = format!("COLAB_KERNEL_{}", word.to_uppercase());
        let Some(value) = (self.env)(&name) else {
            return Ok(None);
        };
        match value.into_string() {
            Ok(value) if value.is_empty() => Ok(None),
            Ok(value) => Ok(Some(Given {
                value,
                origin: name,
            })),
            Err(_) => Err(ConfigError::NotText { origin: name }),
        }
    }

    fn in_file(&self, word: &str) -> Result<Option<Given>, ConfigError> {
        let Some(value) = self.file.get(word) else {
            return Ok(None);
        };
        let origin = format!("\"{word}\" of {}", self.path.display());
        let value = match value {
            Value::Null => return Ok(None),
            Value::String(text) => text.clone(),
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            Value::Number(number) => number.to_string(),
            Value::Array(_) | Value::Object(_) => return Err(ConfigError::NotText { origin }),
        };
        Ok(Some(Given { value, origin }))
    }
}

fn read_file(path: &Path) -> Result<JsonMap, ConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // Also where the directory's place is taken by a file.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(JsonMap::new());
        }
        Err(source) => {
            return Err(ConfigError::Unreadable {
                path: path.to_owned(),
                source,
            });
        }
    };
    serde_json::from_str(&text).map_err(|source| ConfigError::NotJson {
        path: path.to_owned(),
        source,
    })
}

#[allow(clippy::expect_used)] // A constant; a unit test parses it.
fn default_endpoint() -> Url {
    Url::parse(DEFAULT_ENDPOINT).expect("the default endpoint is a URL")
}

// The parsers. Each takes the text of one setting and answers with the value, or with what is allowed.

fn text(value: &str) -> Result<String, &'static str> {
    match value.trim() {
        "" => Err("a name"),
        trimmed => Ok(trimmed.to_owned()),
    }
}

fn switch(value: &str) -> Result<bool, &'static str> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" | "auto" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err("`on` or `off`"),
    }
}

fn megabytes(value: &str) -> Result<u64, &'static str> {
    match value.trim().parse::<u64>() {
        Ok(megabytes @ 1..=65536) => Ok(megabytes * 1024 * 1024),
        _ => Err("a whole number from 1 to 65536"),
    }
}

fn names(value: &str) -> Result<Vec<String>, &'static str> {
    let names = value
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    names
        .map(|name| match name.contains(['=', '\0']) {
            true => {
                Err("names of environment variables, separated by commas (without their values)")
            }
            false => Ok(name.to_owned()),
        })
        .collect()
}

fn widgets(value: &str) -> Result<Mode, &'static str> {
    value.trim().parse().map_err(|_| "`auto`, `on` or `off`")
}

fn backend(value: &str) -> Result<BackendKind, &'static str> {
    match value {
        "mcp" => Ok(BackendKind::Mcp),
        "tab" => Err("`mcp`; the browser-tab backend is not part of this version"),
        _ => Err("`mcp`"),
    }
}

fn runtime(value: &str) -> Result<RuntimeChoice, &'static str> {
    match value.trim() {
        "" | "runtimes/" => Err("a runtime's name, or `new`"),
        "new" => Ok(RuntimeChoice::New),
        name => Ok(RuntimeChoice::Named(name.to_owned())),
    }
}

/// A bearer token goes with every request, so plain http is for this machine alone.
fn endpoint(value: &str) -> Result<Url, &'static str> {
    const ALLOWED: &str = "an https:// URL, or an http:// URL on a loopback address";
    let url = Url::parse(value.trim()).map_err(|_| ALLOWED)?;
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => return Err(ALLOWED),
    };
    match url.scheme() {
        "https" => Ok(url),
        "http" if loopback => Ok(url),
        _ => Err(ALLOWED),
    }
}

fn path(value: &str) -> Result<PathBuf, &'static str> {
    let path = PathBuf::from(value);
    if path.is_absolute() {
        Ok(path)
    } else {
        // A kernel starts in the notebook's directory: a relative path would be another place for every notebook.
        Err("an absolute path")
    }
}

/// Text that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps this text from being shown.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text itself, for what keeps it from now on.
    pub fn into_inner(self) -> String {
        self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why the settings could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value that the setting cannot have.
    #[error("Bad value \"{value}\" in {origin}\nAllowed: {allowed}")]
    Bad {
        /// What stands there.
        value: String,
        /// Where it stands.
        origin: String,
        /// What may stand there.
        allowed: &'static str,
    },
    /// A value that is not text.
    #[error("The value of {origin} is not plain text")]
    NotText {
        /// Where it stands.
        origin: String,
    },
    /// A key that is no setting.
    #[error("\"{key}\" of {path} is not a setting\nThe settings are {known}", path = path.display(), known = FILE_KEYS.join(", "))]
    UnknownKey {
        /// The key.
        key: String,
        /// The config file.
        path: PathBuf,
    },
    /// The config file is there and cannot be read.
    #[error("The config file {path} cannot be read: {source}", path = path.display())]
    Unreadable {
        /// The config file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The config file is not a JSON object.
    #[error("The config file {path} is not a JSON object: {source}", path = path.display())]
    NotJson {
        /// The config file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
    /// The user's home directory is not known.
    #[error("The home directory is not known\nSet HOME")]
    NoHome,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(flags: &Flags, env: &[(&str, &str)], file: &str) -> Result<Settings, ConfigError> {
        let lookup = |name: &str| {
            env.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        let file = serde_json::from_str(file).unwrap();
        Sources {
            flags,
            env: &lookup,
            path: Path::new("/c/config.json"),
            file: &file,
        }
        .resolve(PathBuf::from("/s"))
    }

    fn from_env(env: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        resolve(&Flags::default(), env, "{}")
    }

    #[test]
    fn forwarded_variables_are_read_by_name_and_not_shown() {
        let settings = from_env(&[
            ("COLAB_KERNEL_FORWARD_ENV", "HF_TOKEN, MISSING,"),
            ("HF_TOKEN", "s3cret"),
        ])
        .unwrap();
        let names: Vec<&str> = settings
            .forward_env
            .iter()
            .map(|(name, _)| &**name)
            .collect();
        assert_eq!(names, ["HF_TOKEN"]);
        assert!(!format!("{settings:?}").contains("s3cret"));
        assert!(from_env(&[("COLAB_KERNEL_FORWARD_ENV", "A=b")]).is_err());
        assert!(from_env(&[("COLAB_KERNEL_JOURNAL_MB", "0")]).is_err());
    }

    #[test]
    fn defaults_are_the_real_service_and_nothing_else() {
        let settings = from_env(&[]).unwrap();
        assert_eq!(
            settings,
            Settings {
                endpoint: Url::parse(DEFAULT_ENDPOINT).unwrap(),
                token: None,
                quota_project: None,
                accelerator: None,
                highmem: false,
                runtime: RuntimeChoice::Any,
                backend: BackendKind::Mcp,
                companion: true,
                journal_bytes: 64 * 1024 * 1024,
                forward_env: Vec::new(),
                widgets: Mode::Auto,
                log: None,
                state_dir: PathBuf::from("/s"),
            }
        );
    }

    #[test]
    fn flags_beat_the_environment_and_the_environment_beats_the_file() {
        let file = r#"{"accelerator": "A100", "runtime": "in-file", "highmem": true}"#;
        let env = [
            ("COLAB_KERNEL_ACCELERATOR", "L4"),
            ("COLAB_KERNEL_RUNTIME", "in-env"),
        ];
        let flags = Flags {
            accelerator: Some("T4".to_owned()),
            ..Flags::default()
        };
        let settings = resolve(&flags, &env, file).unwrap();
        assert_eq!(settings.accelerator.as_deref(), Some("T4"));
        assert_eq!(settings.runtime, RuntimeChoice::Named("in-env".to_owned()));
        assert!(settings.highmem);
    }

    #[test]
    fn an_empty_variable_is_unset() {
        let settings = from_env(&[("COLAB_KERNEL_TOKEN", ""), ("COLAB_KERNEL_ENDPOINT", "")]);
        assert_eq!(settings.unwrap(), from_env(&[]).unwrap());
    }

    #[test]
    fn a_bad_value_names_its_place_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("COLAB_KERNEL_BACKEND", "tab", "not part of this version"),
            ("COLAB_KERNEL_BACKEND", "websocket", "`mcp`"),
            ("COLAB_KERNEL_ENDPOINT", "colab", "an https:// URL"),
            (
                "COLAB_KERNEL_ENDPOINT",
                "http://example.com/mcp",
                "loopback",
            ),
            ("COLAB_KERNEL_ENDPOINT", "file:///mcp", "an https:// URL"),
            ("COLAB_KERNEL_COMPANION", "maybe", "`on` or `off`"),
            ("COLAB_KERNEL_LOG", "verbose", "`debug`"),
            ("COLAB_KERNEL_STATE_DIR", "state", "an absolute path"),
        ] {
            let message = from_env(&[(name, value)]).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
            assert!(message.contains(value), "{message}");
            assert!(message.contains(allowed), "{message}");
        }
    }

    #[test]
    fn the_file_is_named_when_it_is_wrong() {
        for file in [
            r#"{"backend": "tab"}"#,
            r#"{"acelerator": "T4"}"#,
            r#"{"endpoint": ["a"]}"#,
            // A token lives an hour: it has no place in a file.
            r#"{"token": "t"}"#,
        ] {
            let message = resolve(&Flags::default(), &[], file)
                .unwrap_err()
                .to_string();
            assert!(message.contains("/c/config.json"), "{message}");
        }
    }

    #[test]
    fn http_is_for_this_machine_alone() {
        for url in [
            "http://127.0.0.1:8976/mcp",
            "http://localhost:1/mcp",
            "http://[::1]:1/mcp",
            "https://example.com/mcp",
        ] {
            assert!(endpoint(url).is_ok(), "{url}");
        }
        assert!(endpoint("http://localhost.example.com/mcp").is_err());
    }

    #[test]
    fn the_token_does_not_show() {
        let settings = from_env(&[("COLAB_KERNEL_TOKEN", "ya29.secret")]).unwrap();
        assert_eq!(settings.token.as_ref().unwrap().expose(), "ya29.secret");
        assert!(!format!("{settings:?}").contains("secret"));
    }
}
