//! What the sockets leave in the file system and in the runtime, and its removal.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;
use tokio::sync::oneshot;
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
    /// Ends the wire's thread when it is dropped.
    _thread: Option<oneshot::Sender<()>>,
    _directory: Option<PrivateDirectory>,
}

impl SocketGuard {
    pub(super) fn new(
        thread: Option<oneshot::Sender<()>>,
        directory: Option<PrivateDirectory>,
    ) -> Self {
        Self(Arc::new(Mutex::new(Held {
            _thread: thread,
            _directory: directory,
            ..Held::default()
        })))
    }

    /// Runs a socket's task, on the caller's runtime, for as long as the sockets are open.
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
#[cfg(unix)]
const LOCK: &str = "lock";

/// A directory that only this user can enter, with a file that is locked for as long as this process lives.
#[derive(Debug)]
pub(super) struct PrivateDirectory {
    directory: TempDir,
    _lock: std::fs::File,
}

#[cfg(unix)]
impl PrivateDirectory {
    /// Unix socket paths are at most about 100 bytes long, so where the temporary directory's own path is long `/tmp` takes
    /// its place.
    pub(super) fn create() -> std::io::Result<Self> {
        const LONGEST: usize = 60;
        let usual = std::env::temp_dir();
        if usual.as_os_str().len() > LONGEST {
            return Self::create_in(Path::new("/tmp"));
        }
        Self::create_in(&usual)
    }

    fn create_in(parent: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(std::fs::Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        // It gets its name when it is locked: a lock file without a lock means a killed kernel.
        let unnamed = directory.path().join("unlocked");
        let lock = std::fs::File::create_new(&unnamed)?;
        lock.lock()?;
        std::fs::rename(unnamed, directory.path().join(LOCK))?;
        Ok(Self {
            directory,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes the private directories of kernels that were killed: those beside `own` whose lock nobody holds. Touches nothing but
/// sockets, the lock and the directory they are in.
#[cfg(unix)]
pub(super) fn sweep(own: &Path) {
    use std::os::unix::fs::FileTypeExt;

    let entries = own.parent().and_then(|parent| parent.read_dir().ok());
    for directory in entries.into_iter().flatten().flatten() {
        let ours = directory
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let path = directory.path();
        if !ours || path == own || !directory.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let Ok(lock) = std::fs::File::open(path.join(LOCK)) else {
            continue;
        };
        if lock.try_lock().is_err() {
            continue;
        }
        for file in path.read_dir().into_iter().flatten().flatten() {
            let socket = file.file_type().is_ok_and(|kind| kind.is_socket());
            if socket || file.file_name() == LOCK {
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

        let directory = PrivateDirectory::create().unwrap();
        let path = directory.path().to_owned();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let guard = SocketGuard::new(None, Some(directory));
        guard.clone().close();
        assert!(!path.exists());
    }

    #[test]
    fn directories_of_killed_kernels_are_swept_and_others_are_not() {
        use std::os::unix::net::UnixListener;

        let parent = tempfile::tempdir().unwrap();
        let own = PrivateDirectory::create_in(parent.path()).unwrap();
        let living = PrivateDirectory::create_in(parent.path()).unwrap();
        let make = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let starting = make("colab-kernel-wire-starting");
        let foreign = make("foreign");
        std::fs::write(foreign.join(LOCK), "").unwrap();
        let killed = make("colab-kernel-wire-killed");
        std::fs::write(killed.join(LOCK), "").unwrap();
        drop(UnixListener::bind(killed.join("shell")).unwrap());
        sweep(own.path());
        let left = [own.path(), living.path(), &starting, &foreign, &killed];
        assert_eq!(left.map(Path::exists), [true, true, true, true, false]);
    }
}
