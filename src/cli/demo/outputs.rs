//! What a cell shows: printed as it arrives, and collected as the outputs of a notebook file.

use std::io::{self, Write};

use serde_json::{Value, json};

use super::notebook::{joined, lines};
use crate::backend::JsonMap;

/// The outputs of one cell, built from its iopub messages.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    collected: Vec<Value>,
    /// The display id of each output that has one.
    ids: Vec<Option<String>>,
    clear_before_next: bool,
}

impl Outputs {
    /// Takes one iopub message. Those that show nothing are passed over.
    pub(super) fn message(&mut self, msg_type: &str, content: &Value) {
        match msg_type {
            "clear_output" if content["wait"] == true => self.clear_before_next = true,
            "clear_output" => {
                self.clear_before_next = false;
                self.clear();
            }
            "stream" | "display_data" | "execute_result" | "error" => {
                if std::mem::take(&mut self.clear_before_next) {
                    self.clear();
                }
                self.add(msg_type, content);
            }
            _ => self.update(msg_type, content),
        }
    }

    /// Takes an update of what has been shown under its display id.
    pub(super) fn update(&mut self, msg_type: &str, content: &Value) {
        let id = content["transient"]["display_id"].as_str();
        if msg_type != "update_display_data" || id.is_none() {
            return;
        }
        let updated = self.collected.iter_mut().zip(&self.ids);
        for (output, _) in updated.filter(|(_, of)| of.as_deref() == id) {
            output["data"] = bundle(&content["data"]);
            output["metadata"] = object(&content["metadata"]).into();
        }
    }

    fn clear(&mut self) {
        self.collected.clear();
        self.ids.clear();
    }

    fn add(&mut self, msg_type: &str, content: &Value) {
        let output = match msg_type {
            "stream" => {
                let text = content["text"].as_str().unwrap_or_default();
                // One stream output in a file, however many messages it came in.
                if let Some(last) = self.collected.last_mut()
                    && last["output_type"] == "stream"
                    && last["name"] == content["name"]
                {
                    last["text"] = lines(&(joined(&last["text"]) + text));
                    return;
                }
                json!({"output_type": "stream", "name": content["name"], "text": lines(text)})
            }
            "error" => json!({
                "output_type": "error",
                "ename": content["ename"],
                "evalue": content["evalue"],
                "traceback": content["traceback"],
            }),
            "execute_result" => json!({
                "output_type": "execute_result",
                "execution_count": content["execution_count"],
                "data": bundle(&content["data"]),
                "metadata": object(&content["metadata"]),
            }),
            _ => json!({
                "output_type": "display_data",
                "data": bundle(&content["data"]),
                "metadata": object(&content["metadata"]),
            }),
        };
        self.collected.push(output);
        let id = content["transient"]["display_id"].as_str();
        self.ids.push(id.map(str::to_owned));
    }

    /// The outputs in nbformat's form.
    pub(super) fn into_nbformat(self) -> Vec<Value> {
        self.collected
    }
}

/// A MIME bundle as files have it: text in lines, JSON and base64 as they are.
fn bundle(data: &Value) -> Value {
    let mut data = object(data);
    for (mime, value) in &mut data {
        let is_text = mime.starts_with("text/") || mime == "image/svg+xml";
        if let (true, Value::String(text)) = (is_text, &value) {
            *value = lines(text);
        }
    }
    Value::Object(data)
}

fn object(value: &Value) -> JsonMap {
    value.as_object().cloned().unwrap_or_default()
}

/// Prints what cells show: text to the letter, a line for what a terminal cannot show.
#[derive(Debug)]
pub(super) struct Printer<W> {
    out: W,
    colour: bool,
    at_line_start: bool,
}

impl<W: Write> Printer<W> {
    /// A printer; without `colour`, escape sequences of tracebacks are left out.
    pub(super) fn new(out: W, colour: bool) -> Self {
        Self {
            out,
            colour,
            at_line_start: true,
        }
    }

    /// Prints a line of our own, on a line of its own.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        if !self.at_line_start {
            writeln!(self.out)?;
        }
        writeln!(self.out, "{text}")?;
        self.at_line_start = true;
        self.out.flush()
    }

    /// Prints one iopub message. Those that show nothing are passed over.
    pub(super) fn message(&mut self, msg_type: &str, content: &Value) -> io::Result<()> {
        match msg_type {
            "stream" => self.text(content["text"].as_str().unwrap_or_default()),
            "display_data" | "execute_result" => self.bundle(&object(&content["data"])),
            "error" => {
                let traceback = content["traceback"].as_array();
                let mut text: Vec<String> = traceback
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect();
                if text.is_empty() {
                    let part = |key: &str| content[key].as_str().unwrap_or_default().to_owned();
                    text.push(format!("{}: {}", part("ename"), part("evalue")));
                }
                let text = text.join("\n");
                if self.colour {
                    self.line(&text)
                } else {
                    self.line(&without_escapes(&text))
                }
            }
            _ => Ok(()),
        }
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.at_line_start = text.ends_with('\n');
        self.out.flush()
    }

    /// The plain form, if it says something, and a line for each other form.
    fn bundle(&mut self, data: &JsonMap) -> io::Result<()> {
        let is_picture = data.keys().any(|mime| mime.starts_with("image/"));
        // A picture's plain form is no more than `<Figure size 640x480 with 1 Axes>`.
        if let (false, Some(text)) = (is_picture, data.get("text/plain")) {
            self.line(&joined(text))?;
        }
        for (mime, value) in data.iter().filter(|(mime, _)| *mime != "text/plain") {
            self.line(&format!("[{mime}, {}]", size(mime, value)))?;
        }
        Ok(())
    }
}

/// How much a value of this type is, for people.
fn size(mime: &str, value: &Value) -> String {
    let length = match value {
        Value::String(_) | Value::Array(_) if value.is_string() || mime.starts_with("text/") => {
            let text = joined(value);
            let is_base64 = mime.starts_with("image/") && mime != "image/svg+xml";
            if is_base64 {
                text.trim_end().trim_end_matches('=').len() * 3 / 4
            } else {
                text.len()
            }
        }
        _ => value.to_string().len(),
    };
    match length {
        0..1000 => format!("{length} bytes"),
        1000..1_000_000 => format!("{} KB", (length + 500) / 1000),
        _ => format!("{:.1} MB", length as f64 / 1e6),
    }
}

/// The text without ANSI escape sequences (CSI alone: tracebacks hold no others).
fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("\x1b[") {
        plain.push_str(&rest[..start]);
        let sequence = &rest[start + 2..];
        let end = sequence.find(|c: char| ('@'..='~').contains(&c));
        rest = end.map_or("", |end| &sequence[end + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_changes_what_was_shown_under_its_id() {
        let display = |id: &str, text: &str| json!({"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": id}});
        let mut outputs = Outputs::default();
        outputs.message("display_data", &display("gone", "0"));
        outputs.message("clear_output", &json!({"wait": false}));
        for (id, text) in [("a", "1"), ("b", "2"), ("a", "3")] {
            outputs.message("display_data", &display(id, text));
        }
        outputs.message("update_display_data", &display("a", "new"));
        outputs.message("update_display_data", &display("gone", "new"));
        let texts: Vec<Value> = outputs
            .into_nbformat()
            .into_iter()
            .map(|output| output["data"]["text/plain"][0].clone())
            .collect();
        assert_eq!(texts, ["new", "2", "new"]);
    }

    fn collect(messages: &[(&str, Value)]) -> Vec<Value> {
        let mut outputs = Outputs::default();
        for (msg_type, content) in messages {
            outputs.message(msg_type, content);
        }
        outputs.into_nbformat()
    }

    fn print(messages: &[(&str, Value)]) -> String {
        let mut text = Vec::new();
        let mut printer = Printer::new(&mut text, false);
        for (msg_type, content) in messages {
            printer.message(msg_type, content).unwrap();
        }
        printer.line("end").unwrap();
        String::from_utf8(text).unwrap()
    }

    fn stream(name: &str, text: &str) -> (&'static str, Value) {
        ("stream", json!({"name": name, "text": text}))
    }

    #[test]
    fn text_of_one_stream_becomes_one_output() {
        let outputs = collect(&[
            stream("stdout", "a\nb"),
            stream("stdout", "c\n"),
            stream("stderr", "x"),
            stream("stdout", "d"),
        ]);
        assert_eq!(
            outputs,
            [
                json!({"output_type": "stream", "name": "stdout", "text": ["a\n", "bc\n"]}),
                json!({"output_type": "stream", "name": "stderr", "text": ["x"]}),
                json!({"output_type": "stream", "name": "stdout", "text": ["d"]}),
            ]
        );
    }

    #[test]
    fn a_notice_that_is_cleared_is_not_in_the_notebook() {
        let clear = |wait: bool| ("clear_output", json!({"wait": wait}));
        assert_eq!(
            collect(&[
                stream("stderr", "Looking for a runtime\n"),
                clear(true),
                stream("stderr", "Creating a runtime\n"),
                clear(false),
                stream("stdout", "hello"),
            ]),
            [json!({"output_type": "stream", "name": "stdout", "text": ["hello"]})]
        );
        // Waiting to clear is not clearing.
        assert_eq!(collect(&[stream("stdout", "kept"), clear(true)]).len(), 1);
    }

    #[test]
    fn bundles_keep_their_types() {
        let data = json!({
            "text/html": "<b>\n</b>",
            "image/png": "aGVsbG8=\n",
            "application/json": {"a": 1},
        });
        let content = json!({"data": data, "metadata": {"m": 1}, "execution_count": 3});
        let expected = json!({
            "text/html": ["<b>\n", "</b>"],
            "image/png": "aGVsbG8=\n",
            "application/json": {"a": 1},
        });
        assert_eq!(
            collect(&[
                ("execute_result", content.clone()),
                ("display_data", content)
            ]),
            [
                json!({"output_type": "execute_result", "execution_count": 3, "data": expected, "metadata": {"m": 1}}),
                json!({"output_type": "display_data", "data": expected, "metadata": {"m": 1}}),
            ]
        );
    }

    #[test]
    fn text_is_printed_to_the_letter() {
        assert_eq!(
            print(&[stream("stdout", "50 %\r"), stream("stdout", "\x1b[1m100 %")]),
            "50 %\r\x1b[1m100 %\nend\n"
        );
    }

    #[test]
    fn rich_outputs_are_a_line_each() {
        let table = json!({"data": {"text/html": "<table>", "text/plain": "   a\n0  1"}});
        let plot = json!({"data": {"text/plain": "<Figure>", "image/png": "A".repeat(16_000)}});
        assert_eq!(
            print(&[
                stream("stdout", "no line feed"),
                ("execute_result", table),
                ("display_data", plot),
            ]),
            "no line feed\n   a\n0  1\n[text/html, 7 bytes]\n[image/png, 12 KB]\nend\n"
        );
    }

    #[test]
    fn errors_show_their_traceback() {
        let error = json!({
            "ename": "ValueError",
            "evalue": "no",
            "traceback": ["\x1b[0;31m----\x1b[0m", "\x1b[1;32mValueError\x1b[0m: no"],
        });
        assert_eq!(print(&[("error", error)]), "----\nValueError: no\nend\n");
        let bare = json!({"ename": "ColabUnreachable", "evalue": "gone", "traceback": []});
        assert_eq!(print(&[("error", bare)]), "ColabUnreachable: gone\nend\n");
    }
}
