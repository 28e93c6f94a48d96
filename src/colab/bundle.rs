//! Rich outputs as the runtime writes them to files: nbformat output bundles.

use serde_json::Value;

use crate::backend::{Event, JsonMap};

/// The MIME type that every output has as its plainest form.
const TEXT: &str = "text/plain";

/// One rich output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bundle {
    /// The MIME bundle.
    pub data: JsonMap,
    /// Its metadata.
    pub metadata: JsonMap,
    /// Whether the file says that this is the value of the last expression.
    pub is_result: bool,
}

impl Bundle {
    /// Reads a file's content: a whole output (also as the only one of a list), its `data` and `metadata` alone, or a bare MIME bundle.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(content)
            .map_err(|error| format!("the file is not JSON: {error}"))?;
        let value = match value {
            Value::Array(mut outputs) if outputs.len() == 1 => outputs.remove(0),
            other => other,
        };
        let Value::Object(mut map) = value else {
            return Err("the file does not hold an output".to_owned());
        };
        let is_result = map.get("output_type").and_then(Value::as_str) == Some("execute_result");
        let metadata = match map.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => JsonMap::new(),
        };
        let mut data = match map.remove("data") {
            Some(Value::Object(data)) => data,
            _ if map.keys().any(|key| key.contains('/')) => map,
            _ => return Err("the file does not hold an output".to_owned()),
        };
        data.retain(|key, _| key.contains('/'));
        for (key, value) in &mut data {
            join_lines(key, value);
        }
        Ok(Self {
            data,
            metadata,
            is_result,
        })
    }

    /// Whether this is what the last expression's text stands for.
    fn is_result_of(&self, text: &str) -> bool {
        !text.is_empty()
            && self
                .data
                .get(TEXT)
                .and_then(Value::as_str)
                .is_some_and(|own| own == text || own.trim_end() == text.trim_end())
    }
}

/// nbformat writes long text as a list of lines; messages carry it whole.
fn join_lines(mime: &str, value: &mut Value) {
    let mime = mime.split(';').next().unwrap_or_default().trim();
    if mime.ends_with("json") {
        return;
    }
    if let Value::Array(lines) = value
        && let Some(whole) = lines.iter().map(Value::as_str).collect::<Option<String>>()
    {
        *value = Value::String(whole);
    }
}

/// The events of a cell's rich outputs and of its last expression, in their order: where the last bundle is that expression's
/// value, both are one. `count`: the cell's number, where the service tells it.
pub fn outputs(mut bundles: Vec<Bundle>, result: &str, count: Option<u32>) -> Vec<Event> {
    let own = bundles.pop_if(|last| last.is_result || last.is_result_of(result));
    let mut events: Vec<Event> = bundles
        .into_iter()
        .map(|bundle| Event::DisplayData {
            data: bundle.data,
            metadata: bundle.metadata,
            transient: JsonMap::new(),
        })
        .collect();
    let value = match own {
        Some(bundle) => Some((bundle.data, bundle.metadata)),
        None if result.is_empty() => None,
        None => {
            let mut data = JsonMap::new();
            data.insert(TEXT.to_owned(), result.into());
            Some((data, JsonMap::new()))
        }
    };
    events.extend(value.map(|(data, metadata)| Event::ExecuteResult {
        data,
        metadata,
        execution_count: count,
    }));
    events
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bundle(value: Value) -> Bundle {
        Bundle::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_forms_of_a_file_are_read_alike() {
        let data = json!({"text/plain": ["a\n", "b"], "image/png": "AA"});
        let forms = [
            json!({"output_type": "display_data", "data": data, "metadata": {}}),
            json!([{"output_type": "display_data", "data": data}]),
            json!({"data": data}),
            data,
        ];
        for form in forms {
            let bundle = bundle(form);
            assert_eq!(
                Value::Object(bundle.data),
                json!({"text/plain": "a\nb", "image/png": "AA"})
            );
        }
    }

    #[test]
    fn json_types_keep_their_lists() {
        let bundle = bundle(json!({"data": {
            "application/json": ["a", "b"],
            "application/vnd.x+json": ["a"],
            "text/html": ["<b>", "</b>"],
        }}));
        assert_eq!(bundle.data["application/json"], json!(["a", "b"]));
        assert_eq!(bundle.data["application/vnd.x+json"], json!(["a"]));
        assert_eq!(bundle.data["text/html"], json!("<b></b>"));
    }

    #[test]
    fn what_is_no_output_is_refused() {
        for content in ["", "[]", "{}", "{\"a\": 1}", "<html>"] {
            assert!(Bundle::parse(content.as_bytes()).is_err(), "{content}");
        }
    }

    #[test]
    fn a_table_as_last_line_is_one_output() {
        let table = bundle(json!({"data": {"text/plain": "   a\n0  1", "text/html": "<table>"}}));
        let figure = bundle(json!({"data": {"text/plain": "<Figure>", "image/png": "AA"}}));
        let events = outputs(vec![figure.clone(), table.clone()], "   a\n0  1", None);
        assert_eq!(events.len(), 2);
        assert!(matches!(&events[0], Event::DisplayData { data, .. } if *data == figure.data));
        assert!(matches!(&events[1], Event::ExecuteResult { data, .. } if *data == table.data));
    }

    #[test]
    fn a_figure_and_a_value_are_two() {
        let figure = bundle(json!({"data": {"text/plain": "<Figure>", "image/png": "AA"}}));
        let events = outputs(vec![figure], "[<Line2D>]", None);
        assert!(matches!(&events[0], Event::DisplayData { .. }));
        assert!(
            matches!(&events[1], Event::ExecuteResult { data, .. } if data["text/plain"] == "[<Line2D>]")
        );
        assert!(outputs(Vec::new(), "", None).is_empty());
    }
}
