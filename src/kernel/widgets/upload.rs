//! `FileUpload`, the one widget whose value has another shape: three lists side by side in version 7 (`metadata`, `data`, and a
//! `_counter` whose change tells the kernel to look at them), one list of files in version 8 (`value`).
//!
//! The contents of the files are buffers. `data[i]` in the one is `value[i].content` in the other, so that their order stays.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::object::{Object, Path};

/// How many files the widget has taken, ever.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Upload {
    taken: u64,
}

/// A file as version 7 describes it.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct Metadata {
    name: Value,
    r#type: Value,
    size: Value,
    #[serde(rename = "lastModified")]
    last_modified: Value,
}

impl Default for Metadata {
    fn default() -> Self {
        Self {
            name: "".into(),
            r#type: "".into(),
            size: 0.into(),
            last_modified: 0.into(),
        }
    }
}

/// A file as version 8 has it, with a hole where its buffer goes.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct File {
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Box<RawValue>>,
    name: Value,
    r#type: Value,
    size: Value,
    last_modified: Value,
}

impl Default for File {
    fn default() -> Self {
        Metadata::default().with(None)
    }
}

impl Metadata {
    fn with(self, content: Option<Box<RawValue>>) -> File {
        File {
            content,
            name: self.name,
            r#type: self.r#type,
            size: self.size,
            last_modified: self.last_modified,
        }
    }
}

impl Upload {
    pub(super) fn upgrade(&mut self, state: &mut Object) {
        let counter = state.parsed("_counter");
        self.taken = counter.unwrap_or(self.taken);
        let metadata: Vec<Metadata> = state.parsed("metadata").unwrap_or_default();
        if let Some(data) = state.parsed::<Vec<Box<RawValue>>>("data") {
            let mut metadata = metadata.into_iter();
            let files: Vec<File> = data
                .into_iter()
                .map(|content| metadata.next().unwrap_or_default().with(Some(content)))
                .collect();
            state.set("value", &files);
        } else if counter == Some(0) {
            // The usual way to empty the widget from Python.
            state.set_raw("value", empty_list());
        }
        // Without `data` they echo what the front-end itself has sent.
        for name in ["_counter", "metadata", "data"] {
            state.take(name);
        }
    }

    pub(super) fn downgrade(&mut self, state: &mut Object, paths: &mut [Path]) {
        let Some(files) = state.parsed::<Vec<File>>("value") else {
            return;
        };
        self.taken += files.len() as u64;
        let (data, metadata): (Vec<_>, Vec<_>) = files
            .into_iter()
            .map(|file| {
                let metadata = Metadata {
                    name: file.name,
                    r#type: file.r#type,
                    size: file.size,
                    last_modified: file.last_modified,
                };
                (file.content, metadata)
            })
            .unzip();
        state.take("value");
        state.set("_counter", &self.taken);
        state.set("metadata", &metadata);
        state.set("data", &data);
        for path in paths {
            if let [value, index, content] = &path[..]
                && value == "value"
                && index.is_u64()
                && content == "content"
            {
                *path = vec!["data".into(), index.clone()];
            }
        }
    }

    /// Paths into the state, which begin behind `prefix` other keys.
    pub(super) fn upgrade_paths(paths: &mut [Path], prefix: usize) {
        for path in paths {
            if let Some([data, index]) = path.get(prefix..)
                && data == "data"
                && index.is_u64()
            {
                let index = index.clone();
                path.truncate(prefix);
                path.extend(["value".into(), index, "content".into()]);
            }
        }
    }
}

fn empty_list() -> Box<RawValue> {
    super::object::raw(&[(); 0])
}
