//! Where kernelspecs live, and what one of ours looks like.
//!
//! The places are Jupyter's (`jupyter_core.paths`, `jupyter_client.kernelspec`). Invariants:
//!
//! * A directory that does not carry our mark (`metadata.colab_kernel` in its `kernel.json`) is neither replaced nor removed.
//! * A kernelspec appears whole: it is written elsewhere and renamed into its place.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

/// The files of every kernelspec beside `kernel.json`.
pub(super) const LOGOS: [(&str, &[u8]); 3] = [
    (
        "logo-svg.svg",
        include_bytes!("../../kernelspec/logo-svg.svg"),
    ),
    (
        "logo-32x32.png",
        include_bytes!("../../kernelspec/logo-32x32.png"),
    ),
    (
        "logo-64x64.png",
        include_bytes!("../../kernelspec/logo-64x64.png"),
    ),
];

/// The `kernel.json` that options are written into.
pub(super) const TEMPLATE: &str = include_str!("../../kernelspec/kernel.json");

/// The key in `metadata` that marks a kernelspec as ours.
const MARK: &str = "colab_kernel";

/// In which of Jupyter's places.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(multiple = false)]
pub struct Place {
    /// Your own Jupyter directory (the default)
    #[arg(long)]
    pub user: bool,

    /// The active virtual or conda environment
    #[arg(long)]
    pub sys_prefix: bool,

    /// DIR/share/jupyter
    #[arg(long, value_name = "DIR")]
    pub prefix: Option<PathBuf>,
}

/// What of the process environment decides where the places are.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `HOME`, or `USERPROFILE` on Windows.
    pub home: Option<PathBuf>,
    /// `APPDATA` (Windows)
    pub app_data: Option<PathBuf>,
    /// `XDG_DATA_HOME`
    pub data_home: Option<PathBuf>,
    /// `JUPYTER_DATA_DIR`
    pub jupyter_data: Option<PathBuf>,
    /// `VIRTUAL_ENV`
    pub virtual_env: Option<PathBuf>,
    /// `CONDA_PREFIX`
    pub conda_prefix: Option<PathBuf>,
    /// `PATH`
    pub path: Option<OsString>,
    /// How this program was called: `argv[0]`.
    pub called_as: Option<OsString>,
}

impl Environment {
    /// The environment of this process.
    pub fn from_process() -> Self {
        let path = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            home: path(if cfg!(windows) { "USERPROFILE" } else { "HOME" }),
            app_data: path("APPDATA"),
            data_home: path("XDG_DATA_HOME"),
            jupyter_data: path("JUPYTER_DATA_DIR"),
            virtual_env: path("VIRTUAL_ENV"),
            conda_prefix: path("CONDA_PREFIX"),
            path: std::env::var_os("PATH"),
            called_as: std::env::args_os().next(),
        }
    }

    /// The Jupyter data directory of a place.
    pub(super) fn data_dir(&self, place: &Place) -> anyhow::Result<PathBuf> {
        let directory = if let Some(prefix) = &place.prefix {
            prefix.join("share").join("jupyter")
        } else if place.sys_prefix {
            let Some(prefix) = self.virtual_env.as_ref().or(self.conda_prefix.as_ref()) else {
                bail!(
                    "No virtual or conda environment is active\n\
                     Activate one first, or name its directory with --prefix DIR"
                );
            };
            prefix.join("share").join("jupyter")
        } else {
            self.user_data_dir().context(
                "Your home directory is not known\nSet HOME, or name a directory with --prefix DIR",
            )?
        };
        std::path::absolute(&directory)
            .with_context(|| format!("{} is not a directory's name", directory.display()))
    }

    fn user_data_dir(&self) -> Option<PathBuf> {
        if let Some(directory) = &self.jupyter_data {
            return Some(directory.clone());
        }
        if cfg!(windows) {
            let app_data = self.app_data.as_ref();
            return app_data.map(|directory| directory.join("jupyter"));
        }
        if cfg!(target_os = "macos") {
            let home = self.home.as_ref();
            return home.map(|home| home.join("Library").join("Jupyter"));
        }
        let data_home = match (&self.data_home, &self.home) {
            (Some(directory), _) => directory.clone(),
            (None, Some(home)) => home.join(".local").join("share"),
            (None, None) => return None,
        };
        Some(data_home.join("jupyter"))
    }

    /// The path by which front-ends should start this program: absolute, and the one that stays when the program is upgraded.
    ///
    /// The system's answer to "which file am I" has every symbolic link resolved, and may so name a directory of one version (a
    /// package manager's cellar, a tool's private environment) that the next upgrade deletes. What the user called, by a path or
    /// through `PATH`, is a link that the upgrade turns to the new version. It is taken if it leads to this very file.
    pub(super) fn executable(&self) -> anyhow::Result<PathBuf> {
        let resolved =
            std::env::current_exe().context("The path of this program cannot be found out")?;
        Ok(self.called_path(&resolved).unwrap_or(resolved))
    }

    fn called_path(&self, resolved: &Path) -> Option<PathBuf> {
        let called = Path::new(self.called_as.as_ref()?);
        let canonical = fs::canonicalize(resolved).ok()?;
        let is_this = |path: &Path| fs::canonicalize(path).is_ok_and(|path| path == canonical);
        let candidates: Vec<PathBuf> = if has_separator(called.as_os_str()) {
            vec![std::path::absolute(called).ok()?]
        } else {
            std::env::split_paths(self.path.as_ref()?)
                .filter(|directory| directory.is_absolute())
                .map(|directory| {
                    let path = directory.join(called);
                    match path.extension() {
                        None if cfg!(windows) => path.with_extension("exe"),
                        _ => path,
                    }
                })
                .collect()
        };
        candidates.into_iter().find(|path| is_this(path))
    }
}

fn has_separator(name: &OsStr) -> bool {
    name.to_string_lossy().contains(std::path::is_separator)
}

/// Checks a kernel's name, and gives it as Jupyter spells it: lower case.
pub(super) fn checked_name(name: &str) -> anyhow::Result<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(allowed) || name.chars().all(|c| c == '.') {
        bail!(
            "\"{name}\" cannot be a kernel's name\n\
             Use letters, digits, dots, dashes and underscores, such as --name colab-t4"
        );
    }
    let name = name.to_ascii_lowercase();
    let rest = name.strip_prefix("python");
    if rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.')) {
        // `isDefaultKernelSpec` of the Jupyter extension.
        bail!(
            "A kernel named \"{name}\" would be hidden by VS Code\n\
             Choose another name, such as --name colab"
        );
    }
    Ok(name)
}

/// What stands where a kernelspec should.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Ours,
    /// Not ours, and why.
    Foreign(String),
}

/// Looks at a kernelspec's directory.
pub(super) fn inspect(directory: &Path) -> anyhow::Result<Found> {
    let failed = || format!("{} cannot be read", directory.display());
    match fs::symlink_metadata(directory) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error).with_context(failed),
    }
    if !directory.is_dir() {
        return Ok(Found::Foreign("it is not a directory".to_owned()));
    }
    let text = match fs::read(directory.join("kernel.json")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let empty = fs::read_dir(directory)
                .with_context(failed)?
                .next()
                .is_none();
            return Ok(if empty {
                Found::Ours
            } else {
                Found::Foreign("it has files, but no kernel.json".to_owned())
            });
        }
        Err(error) => return Err(error).with_context(failed),
    };
    let Ok(json) = serde_json::from_slice::<Value>(&text) else {
        return Ok(Found::Foreign("its kernel.json is not JSON".to_owned()));
    };
    if json
        .get("metadata")
        .and_then(|metadata| metadata.get(MARK))
        .is_some()
    {
        return Ok(Found::Ours);
    }
    Ok(Found::Foreign(
        match json.get("display_name").and_then(Value::as_str) {
            Some(name) => format!("it holds the kernel \"{name}\""),
            None => "it holds another kernel".to_owned(),
        },
    ))
}

/// Moves a kernelspec's directory out of the way into this one. A link is moved, not what it leads to.
pub(super) fn set_aside(directory: &Path, into: &Path) -> anyhow::Result<PathBuf> {
    let aside = into.join("old");
    fs::rename(directory, &aside)
        .with_context(|| format!("{} cannot be moved", directory.display()))?;
    Ok(aside)
}

/// A directory beside `kernels`, where Jupyter does not look, that goes away when it is dropped.
pub(super) fn scratch(data_dir: &Path) -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix(".colab-kernel-")
        .tempdir_in(data_dir)
        .with_context(|| format!("{} cannot be written to", data_dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_jupyter_and_vs_code_take() {
        for (name, spelt) in [
            ("colab", "colab"),
            ("Colab-T4", "colab-t4"),
            ("a.b_c-1", "a.b_c-1"),
            ("pythonic", "pythonic"),
            ("colab-python3", "colab-python3"),
        ] {
            assert_eq!(checked_name(name).unwrap(), spelt);
        }
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "a b",
            "é",
            "../x",
            "python",
            "python3",
            "Python3.12",
        ] {
            let error = checked_name(name).unwrap_err().to_string();
            assert!(error.contains(&name.to_ascii_lowercase()), "{error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_users_place_is_jupyters() {
        let mut environment = Environment {
            home: Some("/home/me".into()),
            ..Environment::default()
        };
        let user = |environment: &Environment| environment.data_dir(&Place::default()).unwrap();
        assert_eq!(
            user(&environment),
            Path::new("/home/me/.local/share/jupyter")
        );
        environment.data_home = Some("/data".into());
        assert_eq!(user(&environment), Path::new("/data/jupyter"));
        environment.jupyter_data = Some("/jupyter".into());
        assert_eq!(user(&environment), Path::new("/jupyter"));
    }

    #[test]
    fn a_place_that_is_not_known_is_an_error_that_says_what_to_do() {
        let sys_prefix = Place {
            sys_prefix: true,
            ..Place::default()
        };
        for place in [Place::default(), sys_prefix] {
            let error = Environment::default().data_dir(&place).unwrap_err();
            assert!(format!("{error:#}").contains("--prefix DIR"));
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_link_that_was_called_is_kept_if_it_leads_here() {
        let directory = tempfile::tempdir().unwrap();
        let versioned = directory.path().join("1.2.3");
        fs::write(&versioned, "").unwrap();
        let link = directory.path().join("colab-kernel");
        std::os::unix::fs::symlink(&versioned, &link).unwrap();
        let called = |called_as: &Path, path: &Path| Environment {
            called_as: Some(called_as.into()),
            path: Some(path.into()),
            ..Environment::default()
        };
        let nowhere = Path::new("/nowhere");

        let by_path = called(&link, nowhere);
        assert_eq!(by_path.called_path(&versioned).unwrap(), link);
        let by_name = called(Path::new("colab-kernel"), directory.path());
        assert_eq!(by_name.called_path(&versioned).unwrap(), link);

        let other = directory.path().join("other");
        fs::write(&other, "").unwrap();
        assert_eq!(by_path.called_path(&other), None);
        assert_eq!(
            called(Path::new("colab-kernel"), nowhere).called_path(&versioned),
            None
        );
        assert_eq!(Environment::default().called_path(&versioned), None);
    }
}
