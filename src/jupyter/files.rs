//! What the sockets leave in the file system and in the runtime, and its removal.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;
use tokio::task::JoinSet;

/// A socket file that we made. Removed when this is dropped, unless another process has put its own in the place.
#[derive(Debug)]
pub(super) struct OwnedFile {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

impl OwnedFile {
    #[cfg_attr(not(unix), allow(dead_code))]
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let id = file_id(&path);
        Self { path, id }
    }
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        if self.id.is_some() && file_id(&self.path) == self.id {
            // Nothing is left to do about a file that cannot be removed.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;

    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn file_id(_path: &Path) -> Option<(u64, u64)> {
    None
}

/// Keeps the sockets open. They are closed, and their files removed, when [`Self::close`] is called or when the last inbox,
/// outbox and publisher of the process are gone. Call it where the process ends without dropping them.
#[derive(Debug, Clone)]
pub struct SocketGuard(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    tasks: JoinSet<()>,
    files: Vec<OwnedFile>,
    _directory: Option<TempDir>,
}

impl SocketGuard {
    pub(super) fn new(directory: Option<TempDir>) -> Self {
        Self(Arc::new(Mutex::new(Held {
            _directory: directory,
            ..Held::default()
        })))
    }

    /// Runs a socket's task for as long as the sockets are open.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.held().tasks.spawn(task);
    }

    pub(super) fn keep(&self, file: Option<OwnedFile>) {
        self.held().files.extend(file);
    }

    /// Closes all sockets and removes their files. What has not been flushed is lost.
    pub fn close(&self) {
        drop(std::mem::take(&mut *self.held()));
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(unix)]
const PREFIX: &str = "colab-kernel-wire-";

/// A directory that only this user can enter. Unix socket paths are at most about 100 bytes long, so where the temporary
/// directory's own path is long `/tmp` takes its place.
#[cfg(unix)]
pub(super) fn private_directory() -> std::io::Result<TempDir> {
    use std::os::unix::fs::PermissionsExt;

    const LONGEST: usize = 60;
    let mut parent = std::env::temp_dir();
    if parent.as_os_str().len() > LONGEST {
        parent = PathBuf::from("/tmp");
    }
    tempfile::Builder::new()
        .prefix(PREFIX)
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

/// Removes the private directories of kernels that were killed: those beside `own` in which nobody listens at `socket`. Touches
/// nothing but sockets and the directory they are in.
#[cfg(unix)]
pub(super) fn sweep(own: &Path, socket: &str) {
    use std::io::ErrorKind;
    use std::os::unix::fs::FileTypeExt;
    use std::os::unix::net::UnixStream;

    let entries = own.parent().and_then(|parent| parent.read_dir().ok());
    for directory in entries.into_iter().flatten().flatten() {
        let ours = directory
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let path = directory.path();
        let dead = || {
            UnixStream::connect(path.join(socket))
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        };
        if !ours || !directory.file_type().is_ok_and(|kind| kind.is_dir()) || !dead() {
            continue;
        }
        for file in path.read_dir().into_iter().flatten().flatten() {
            if file.file_type().is_ok_and(|kind| kind.is_socket()) {
                let _ = std::fs::remove_file(file.path());
            }
        }
        let _ = std::fs::remove_dir(&path);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_removed_unless_another_took_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        std::fs::write(&path, "").unwrap();
        drop(OwnedFile::new(&path));
        assert!(!path.exists());

        std::fs::write(&path, "").unwrap();
        let file = OwnedFile::new(&path);
        let other = directory.path().join("other");
        std::fs::write(&other, "").unwrap();
        std::fs::rename(&other, &path).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn the_private_directory_is_private_and_goes_with_the_guard() {
        use std::os::unix::fs::PermissionsExt;

        let directory = private_directory().unwrap();
        let path = directory.path().to_owned();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let guard = SocketGuard::new(Some(directory));
        guard.clone().close();
        assert!(!path.exists());
    }

    #[test]
    fn directories_of_killed_kernels_are_swept_and_others_are_not() {
        use std::os::unix::net::UnixListener;

        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let own = make("colab-kernel-wire-own");
        let living = make("colab-kernel-wire-living");
        let _listener = UnixListener::bind(living.join("shell")).unwrap();
        let starting = make("colab-kernel-wire-starting");
        let dead = make("colab-kernel-wire-dead");
        drop(UnixListener::bind(dead.join("shell")).unwrap());
        let foreign = make("foreign");
        drop(UnixListener::bind(foreign.join("shell")).unwrap());
        sweep(&own, "shell");
        let left = [&own, &living, &starting, &dead, &foreign].map(|path| path.exists());
        assert_eq!(left, [true, true, true, false, true]);
    }
}
