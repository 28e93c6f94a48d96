//! A notebook file (nbformat 4): read, filled with outputs, written again with everything else unchanged.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use crate::backend::JsonMap;

/// The notebook that is run when none is named.
const BUNDLED: &str = include_str!("demo.ipynb");

/// The bundled notebook's name.
const BUNDLED_NAME: &str = "colab-kernel-demo";

/// A notebook in memory.
#[derive(Debug, Clone)]
pub(super) struct Notebook {
    name: String,
    document: Value,
}

/// Why a file is not a notebook that can be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotebookError {
    #[error("The notebook {path} cannot be read", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is not a notebook", path = path.display())]
    NotJson {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{path} is not a notebook of format 4\nConvert it with: jupyter nbconvert --to notebook --nbformat 4", path = path.display())]
    NotFormat4 { path: PathBuf },
}

impl Notebook {
    /// The bundled notebook.
    pub(super) fn bundled() -> Self {
        #[allow(clippy::expect_used)] // A part of the binary; a unit test parses it.
        let document = serde_json::from_str(BUNDLED).expect("the bundled notebook is JSON");
        Self {
            name: BUNDLED_NAME.to_owned(),
            document,
        }
    }

    /// Reads a notebook file.
    pub(super) fn read(path: &Path) -> Result<Self, NotebookError> {
        let text = std::fs::read_to_string(path).map_err(|source| NotebookError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        // Some editors on Windows write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let document: Value =
            serde_json::from_str(text).map_err(|source| NotebookError::NotJson {
                path: path.to_owned(),
                source,
            })?;
        if document["nbformat"] != 4 || !document["cells"].is_array() {
            return Err(NotebookError::NotFormat4 {
                path: path.to_owned(),
            });
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Self {
            name: name.into_owned(),
            document,
        })
    }

    /// Where the executed notebook goes unless the user says otherwise: the current directory.
    pub(super) fn default_output(&self) -> PathBuf {
        if self.name == BUNDLED_NAME {
            PathBuf::from(format!("{BUNDLED_NAME}.ipynb"))
        } else {
            PathBuf::from(format!("{}.executed.ipynb", self.name))
        }
    }

    /// The code cells that are not blank: where each stands, and its source.
    pub(super) fn code_cells(&self) -> Vec<CodeCell> {
        let cells = self.document["cells"].as_array();
        cells
            .into_iter()
            .flatten()
            .enumerate()
            .filter(|(_, cell)| cell["cell_type"] == "code")
            .map(|(index, cell)| CodeCell {
                index,
                source: joined(&cell["source"]),
                may_raise: has_tag(cell, "raises-exception"),
            })
            .filter(|cell| !cell.source.trim().is_empty())
            .collect()
    }

    /// Removes outputs and numbers of an earlier run.
    pub(super) fn clear(&mut self) {
        let Some(cells) = self.document["cells"].as_array_mut() else {
            return;
        };
        for cell in cells.iter_mut().filter(|cell| cell["cell_type"] == "code") {
            cell["execution_count"] = Value::Null;
            cell["outputs"] = json!([]);
        }
    }

    /// Sets what a cell has shown.
    pub(super) fn set_outputs(&mut self, cell: &CodeCell, count: Value, outputs: Vec<Value>) {
        let cell = &mut self.document["cells"][cell.index];
        cell["execution_count"] = count;
        cell["outputs"] = Value::Array(outputs);
    }

    /// Notes the language that the kernel speaks, as nbclient does.
    pub(super) fn set_language(&mut self, language_info: Value) {
        if !self.document["metadata"].is_object() {
            self.document["metadata"] = Value::Object(JsonMap::new());
        }
        self.document["metadata"]["language_info"] = language_info;
    }

    /// Writes the notebook as Jupyter does: one space of indentation and a line feed at the end.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        self.document
            .serialize(&mut serde_json::Serializer::with_formatter(
                &mut text, format,
            ))?;
        text.push(b'\n');
        std::fs::write(path, text)
    }
}

/// Fails where a notebook could not be written: better told before its cells run than after.
pub(super) fn check_writable(path: &Path) -> io::Result<()> {
    if path.exists() {
        File::options().append(true).open(path)?;
        return Ok(());
    }
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    tempfile::tempfile_in(parent.unwrap_or(Path::new(".")))?;
    Ok(())
}

/// A code cell to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CodeCell {
    index: usize,
    /// The source.
    pub(super) source: String,
    /// Whether the cell is tagged `raises-exception`, so that an exception does not end the run.
    pub(super) may_raise: bool,
}

impl CodeCell {
    /// One line that stands for the source.
    pub(super) fn title(&self) -> String {
        const WIDTH: usize = 72;
        let mut lines = self.source.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default().trim();
        let mut title: String = first.chars().take(WIDTH).collect();
        if lines.next().is_some() || title.len() < first.len() {
            title.push_str(" …");
        }
        title
    }
}

/// Text as nbformat has it: a string or a list of strings.
pub(super) fn joined(text: &Value) -> String {
    match text {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

/// Text as Jupyter writes it into files: a list of lines.
pub(super) fn lines(text: &str) -> Value {
    text.split_inclusive('\n').collect::<Vec<_>>().into()
}

fn has_tag(cell: &Value, tag: &str) -> bool {
    let tags = cell["metadata"]["tags"].as_array();
    tags.into_iter().flatten().any(|candidate| candidate == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_notebook_is_whole() {
        let notebook = Notebook::bundled();
        assert_eq!(notebook.document["nbformat"], 4);
        assert!(notebook.code_cells().len() >= 5);
        let kernelspec = &notebook.document["metadata"]["kernelspec"];
        assert_eq!(kernelspec["name"], "colab");
        assert_eq!(
            notebook.default_output().to_str(),
            Some("colab-kernel-demo.ipynb")
        );
    }

    #[test]
    fn what_is_not_output_is_written_back_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.b.ipynb");
        let document = json!({
            "cells": [
                {"cell_type": "markdown", "metadata": {"x": 1}, "source": ["# A\n", "b"], "attachments": {}},
                {"cell_type": "code", "id": "c1", "metadata": {"tags": ["raises-exception"]}, "source": "1/0", "outputs": [{"old": 1}], "execution_count": 7},
                {"cell_type": "code", "id": "c2", "metadata": {}, "source": ["  \n"], "outputs": [{"old": 1}], "execution_count": 8},
            ],
            "metadata": {"unknown": {"deep": [1, 2.5, "ü"]}},
            "nbformat": 4,
            "nbformat_minor": 5,
            "extra": null,
        });
        std::fs::write(&path, document.to_string()).unwrap();

        let mut notebook = Notebook::read(&path).unwrap();
        let cells = notebook.code_cells();
        assert_eq!(cells.len(), 1);
        assert!(cells[0].may_raise);
        notebook.clear();
        notebook.set_outputs(&cells[0], json!(1), vec![json!({"new": 1})]);
        let output = directory.path().join(notebook.default_output());
        notebook.write(&output).unwrap();

        assert_eq!(output.file_name().unwrap(), "a.b.executed.ipynb");
        let text = std::fs::read_to_string(&output).unwrap();
        assert!(text.starts_with("{\n \"cells\"") && text.ends_with("}\n"));
        let mut expected = document;
        expected["cells"][1]["outputs"] = json!([{"new": 1}]);
        expected["cells"][1]["execution_count"] = json!(1);
        expected["cells"][2]["outputs"] = json!([]);
        expected["cells"][2]["execution_count"] = Value::Null;
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn what_is_no_notebook_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.ipynb");
        let message = Notebook::read(&path).unwrap_err().to_string();
        assert!(message.contains("x.ipynb cannot be read"), "{message}");
        for text in [
            "",
            "print(1)",
            "[]",
            "{}",
            r#"{"nbformat": 3, "worksheets": []}"#,
        ] {
            std::fs::write(&path, text).unwrap();
            let message = Notebook::read(&path).unwrap_err().to_string();
            assert!(message.contains("x.ipynb is not a notebook"), "{message}");
        }
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_told_and_nothing_is_left_where_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.ipynb");
        check_writable(&path).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        std::fs::write(&path, "kept").unwrap();
        check_writable(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        check_writable(directory.path()).unwrap_err();
        check_writable(&directory.path().join("none/x.ipynb")).unwrap_err();
        check_writable(Path::new("x.ipynb")).unwrap();
    }

    #[test]
    fn a_title_is_the_first_line_that_is_not_blank() {
        let title = |source: &str| {
            CodeCell {
                index: 0,
                source: source.to_owned(),
                may_raise: false,
            }
            .title()
        };
        assert_eq!(title("x = 1\n"), "x = 1");
        assert_eq!(title("\n  import os\nos.getcwd()"), "import os …");
        assert_eq!(title(&"ü".repeat(100)), format!("{} …", "ü".repeat(72)));
    }
}
