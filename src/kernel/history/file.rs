//! `history.jsonl`: one JSON object a line, shared by all kernels of the user.
//!
//! `{"session": 7}` marks the start of a process, `{"session": 7, "line": 1, "input": "…"}` is an input. Every access holds the
//! lock of `history.lock` beside it and opens the file anew, so that it can be replaced by a shorter one. Lines that cannot be
//! read (a crash in the middle of a write, another version) are passed over.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use fs4::FileExt;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Entry, Loaded, MAX_BYTES, MAX_ENTRIES};

/// The file is cut to its last entries when it is larger.
const MAX_FILE: u64 = 2 * MAX_BYTES as u64;
/// Larger inputs are not written.
const MAX_INPUT: usize = 256 * 1024;

/// The thread that owns the file.
#[derive(Debug)]
pub(super) struct Writer {
    orders: mpsc::Sender<Order>,
}

#[derive(Debug)]
enum Order {
    Append { line: i64, input: String },
    Flush(oneshot::Sender<()>),
}

#[derive(Debug, Serialize, Deserialize)]
struct Row<'a> {
    session: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<std::borrow::Cow<'a, str>>,
}

impl Writer {
    /// Starts the thread: it reads the file, tells what it found, and then writes what it is told.
    pub(super) fn start(state_dir: &Path, loaded: oneshot::Sender<Loaded>) -> Option<Self> {
        let (orders, inbox) = mpsc::channel();
        let store = Store {
            directory: state_dir.to_owned(),
        };
        let thread = std::thread::Builder::new().name("history".to_owned());
        let started = thread.spawn(move || {
            let session = match store.load() {
                Ok(found) => {
                    let session = found.session;
                    // The kernel may have ended already.
                    let _ = loaded.send(found);
                    session
                }
                Err(error) => {
                    tracing::info!("the history is kept in memory only: {error}");
                    return;
                }
            };
            store.serve(session, &inbox);
        });
        started.is_ok().then_some(Self { orders })
    }

    /// Hands an input to the thread. Ignored when the thread has given up.
    pub(super) fn append(&self, line: i64, input: &str) {
        if input.len() <= MAX_INPUT {
            let input = input.to_owned();
            let _ = self.orders.send(Order::Append { line, input });
        }
    }

    /// Waits until everything handed over before is written.
    pub(super) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        if self.orders.send(Order::Flush(done)).is_ok() {
            let _ = written.await;
        }
    }
}

struct Store {
    directory: PathBuf,
}

impl Store {
    /// Reads the last entries and takes the next session number, in one hold of the lock.
    fn load(&self) -> io::Result<Loaded> {
        create_private_dir(&self.directory)?;
        let _lock = self.lock()?;
        let (rows, size) = self.read()?;
        let session = rows
            .iter()
            .map(|row| row.session)
            .max()
            .unwrap_or(0)
            .saturating_add(1)
            .max(1);
        let mut entries: Vec<Entry> = rows
            .into_iter()
            .filter_map(|row| {
                Some(Entry {
                    session: row.session,
                    line: row.line?,
                    input: row.input?.into_owned(),
                    output: None,
                })
            })
            .collect();
        entries.drain(..entries.len().saturating_sub(MAX_ENTRIES));
        if size > MAX_FILE {
            self.shorten(&entries)?;
        }
        // Kernels that run side by side write in turns.
        entries.sort_by_key(|entry| entry.session);
        self.write(&line_of(&Row {
            session,
            line: None,
            input: None,
        })?)?;
        Ok(Loaded { session, entries })
    }

    fn serve(&self, session: i64, inbox: &mpsc::Receiver<Order>) {
        while let Ok(first) = inbox.recv() {
            let mut batch = Vec::new();
            let mut waiting = Vec::new();
            for order in std::iter::once(first).chain(inbox.try_iter()) {
                match order {
                    Order::Append { line, input } => {
                        let row = Row {
                            session,
                            line: Some(line),
                            input: Some(input.into()),
                        };
                        batch.extend(line_of(&row).unwrap_or_default());
                    }
                    Order::Flush(done) => waiting.push(done),
                }
            }
            if !batch.is_empty()
                && let Err(error) = self.lock().and_then(|_lock| self.write(&batch))
            {
                tracing::info!("the history could not be written: {error}");
            }
            for done in waiting {
                let _ = done.send(());
            }
        }
    }

    /// Held until the file is dropped.
    fn lock(&self) -> io::Result<File> {
        let file = private(OpenOptions::new().create(true).write(true).truncate(false))
            .open(self.directory.join("history.lock"))?;
        FileExt::lock(&file)?;
        Ok(file)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("history.jsonl")
    }

    /// The rows at the end of the file, and the file's size.
    fn read(&self) -> io::Result<(Vec<Row<'static>>, u64)> {
        let mut file = match File::open(self.path()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), 0)),
            Err(error) => return Err(error),
        };
        let size = file.metadata()?.len();
        let start = size.saturating_sub(MAX_BYTES as u64);
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES as u64).read_to_end(&mut bytes)?;
        let rows = bytes
            .split(|byte| *byte == b'\n')
            .skip(usize::from(start > 0)) // Cut in the middle.
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        Ok((rows, size))
    }

    /// Replaces the file by one with these entries.
    fn shorten(&self, entries: &[Entry]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.directory)?; // Made with mode 0600.
        let mut kept = Vec::new();
        for entry in entries {
            kept.extend(line_of(&Row {
                session: entry.session,
                line: Some(entry.line),
                input: Some(entry.input.as_str().into()),
            })?);
        }
        file.write_all(&kept)?;
        file.persist(self.path()).map_err(|error| error.error)?;
        Ok(())
    }

    fn write(&self, lines: &[u8]) -> io::Result<()> {
        let mut file =
            private(OpenOptions::new().create(true).append(true).read(true)).open(self.path())?;
        let mut text = Vec::with_capacity(lines.len() + 1);
        if !ends_a_line(&mut file)? {
            text.push(b'\n');
        }
        text.extend_from_slice(lines);
        file.write_all(&text)
    }
}

/// Whether the file is empty or its last line whole.
fn ends_a_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn line_of(row: &Row) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(row)?;
    line.push(b'\n');
    Ok(line)
}

/// Files that only the user may read.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

fn create_private_dir(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(directory)
}
