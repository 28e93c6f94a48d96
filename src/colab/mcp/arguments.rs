//! Fitting a call's arguments to what the server's schema names, and the headers that mirror some of them.
//!
//! Callers use the documented names. Invariants: a name that the schema does not know is not sent; nothing is renamed but between
//! camel and snake case, and the source argument of `execute_code`, whose name is not documented.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::backend::JsonMap;

/// The argument whose documented name is a guess.
const SOURCE: &str = "code";
/// Other names that it may have, the likeliest first.
const SOURCE_NAMES: [&str; 12] = [
    "source",
    "sourcecode",
    "python",
    "pythoncode",
    "script",
    "snippet",
    "cell",
    "codecell",
    "content",
    "text",
    "program",
    "input",
];
/// String arguments of `execute_code` that are certainly not the source.
const NEVER_SOURCE: [&str; 6] = [
    "runtime",
    "session",
    "executionid",
    "name",
    "parent",
    "language",
];

/// The arguments under the names of the schema. Without a schema, or with one that names nothing, they stay as they are.
pub(crate) fn fit(arguments: JsonMap, schema: Option<&Value>) -> JsonMap {
    let properties = schema.map(properties).unwrap_or_default();
    if properties.is_empty() {
        return arguments;
    }
    let required = schema.map(required).unwrap_or_default();
    let mut fitted = JsonMap::new();
    let mut source = None;
    for (name, value) in arguments {
        match properties
            .iter()
            .find(|(known, _)| *known == name)
            .or_else(|| {
                properties
                    .iter()
                    .find(|(known, _)| folded(known) == folded(&name))
            }) {
            Some((known, _)) => {
                fitted.insert((*known).to_owned(), value);
            }
            None if name == SOURCE => source = Some(value),
            None => tracing::debug!(argument = %name, "not in the server's schema: not sent"),
        }
    }
    if let Some(value) = source {
        let name = source_name(&properties, &required, &fitted).unwrap_or(SOURCE);
        fitted.insert(name.to_owned(), value);
    }
    fitted
}

/// The property of a schema under this name, in camel or snake case.
pub(crate) fn property<'a>(schema: &'a Value, name: &str) -> Option<(&'a str, &'a Value)> {
    properties(schema)
        .into_iter()
        .find(|(known, _)| folded(known) == folded(name))
}

/// The names that a schema requires.
pub(crate) fn required(schema: &Value) -> Vec<&str> {
    schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// A schema's `$ref` followed, where it points into the schema itself.
pub(crate) fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let target = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| reference.strip_prefix('#'))
        .and_then(|pointer| root.pointer(pointer));
    target.unwrap_or(schema)
}

/// The properties of an object's schema, also those of its alternatives ("exactly one of runtime and session").
fn properties(schema: &Value) -> Vec<(&str, &Value)> {
    let mut found: Vec<(&str, &Value)> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    for key in ["allOf", "anyOf", "oneOf"] {
        let alternatives = schema.get(key).and_then(Value::as_array);
        for alternative in alternatives.into_iter().flatten() {
            for (name, value) in properties(alternative) {
                if !found.iter().any(|(known, _)| *known == name) {
                    found.push((name, value));
                }
            }
        }
    }
    found
}

/// Which free string property is the source: one with a likely name, else the only required one, else the only one.
fn source_name<'a>(
    properties: &[(&'a str, &Value)],
    required: &[&str],
    fitted: &JsonMap,
) -> Option<&'a str> {
    let free: Vec<&str> = properties
        .iter()
        .filter(|(name, schema)| {
            !fitted.contains_key(*name)
                && !NEVER_SOURCE.contains(&folded(name).as_str())
                && accepts_string(schema)
        })
        .map(|(name, _)| *name)
        .collect();
    let likely = SOURCE_NAMES
        .iter()
        .find_map(|likely| free.iter().find(|name| folded(name) == *likely));
    let needed: Vec<&&str> = free.iter().filter(|name| required.contains(name)).collect();
    match (&needed[..], &free[..], likely) {
        ([only], ..) => Some(only),
        (_, _, Some(likely)) => Some(likely),
        (_, [only], None) => Some(only),
        _ => None,
    }
}

fn accepts_string(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(kind)) => kind == "string",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
        _ => true,
    }
}

/// A name without what camel and snake case differ in.
fn folded(name: &str) -> String {
    name.chars()
        .filter(|c| *c != '_')
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

/// An argument that the server wants mirrored in a header (MCP 2026-07-28, Streamable HTTP, "Custom Headers").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MirroredArgument {
    header: HeaderName,
    path: Vec<String>,
}

/// The mirrored arguments of a tool, or why its definition has to be rejected.
pub(crate) fn mirrored(schema: &Value) -> Result<Vec<MirroredArgument>, String> {
    let mut found = Vec::new();
    collect_mirrored(schema, &mut Vec::new(), &mut found)?;
    let annotated = count_annotations(schema);
    if annotated != found.len() {
        return Err("x-mcp-header stands where it cannot be reached by property names".to_owned());
    }
    Ok(found)
}

fn collect_mirrored(
    schema: &Value,
    path: &mut Vec<String>,
    found: &mut Vec<MirroredArgument>,
) -> Result<(), String> {
    let members = schema.get("properties").and_then(Value::as_object);
    for (name, property) in members.into_iter().flatten() {
        path.push(name.clone());
        if let Some(annotation) = property.get("x-mcp-header") {
            let label = annotation.as_str().unwrap_or_default();
            let header = HeaderName::from_bytes(format!("mcp-param-{label}").as_bytes())
                .ok()
                .filter(|_| !label.is_empty())
                .ok_or_else(|| format!("x-mcp-header {annotation} is no header name"))?;
            if found.iter().any(|other| other.header == header) {
                return Err(format!("x-mcp-header {label} occurs twice"));
            }
            if !matches!(
                property.get("type").and_then(Value::as_str),
                Some("string" | "integer" | "boolean")
            ) {
                return Err(format!(
                    "x-mcp-header {label} is on a property that is neither string, integer nor boolean"
                ));
            }
            found.push(MirroredArgument {
                header,
                path: path.clone(),
            });
        }
        collect_mirrored(property, path, found)?;
        path.pop();
    }
    Ok(())
}

/// How many schemas carry the annotation, wherever they stand. (A property that is *named* `x-mcp-header` is none.)
fn count_annotations(value: &Value) -> usize {
    match value {
        Value::Object(object) => object
            .iter()
            .map(|(key, member)| match (key.as_str(), member) {
                ("x-mcp-header", Value::String(_)) => 1,
                _ => count_annotations(member),
            })
            .sum(),
        Value::Array(items) => items.iter().map(count_annotations).sum(),
        _ => 0,
    }
}

/// Adds the headers of a call.
pub(crate) fn mirror(arguments: &JsonMap, mirrored: &[MirroredArgument], headers: &mut HeaderMap) {
    for argument in mirrored {
        let mut value = arguments.get(&argument.path[0]);
        for name in &argument.path[1..] {
            value = value.and_then(|value| value.get(name));
        }
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            _ => continue,
        };
        headers.insert(argument.header.clone(), header_value(&text));
    }
}

/// A text as a header value, encoded where it is not safe as it is ("Value Encoding").
pub(crate) fn header_value(text: &str) -> HeaderValue {
    let is_safe = !text.is_empty()
        && text.trim_matches([' ', '\t']) == text
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    let encoded = if is_safe || text.is_empty() {
        text.to_owned()
    } else {
        format!("=?base64?{}?=", STANDARD.encode(text))
    };
    HeaderValue::from_str(&encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> JsonMap {
        value.as_object().unwrap().clone()
    }

    fn fitted(arguments: Value, schema: Value) -> Value {
        Value::Object(fit(map(arguments), Some(&schema)))
    }

    fn cell() -> Value {
        json!({"session": "s", "executionId": "e", "code": "1"})
    }

    #[test]
    fn documented_names_stay_without_a_schema() {
        assert_eq!(Value::Object(fit(map(cell()), None)), cell());
        assert_eq!(fitted(cell(), json!({"type": "object"})), cell());
    }

    #[test]
    fn names_take_the_case_of_the_schema_and_extras_are_dropped() {
        let schema = json!({"properties": {"code": {}, "session": {}, "execution_id": {}}});
        assert_eq!(
            fitted(cell(), schema),
            json!({"code": "1", "session": "s", "execution_id": "e"})
        );
        let schema = json!({"properties": {"name": {}}});
        assert_eq!(
            fitted(json!({"name": "n", "allowMissing": true}), schema),
            json!({"name": "n"})
        );
    }

    #[test]
    fn the_source_is_found_under_another_name() {
        let string = json!({"type": "string"});
        for (properties, required, name) in [
            (
                json!({"source": string, "runtime": string}),
                json!(["source"]),
                "source",
            ),
            (
                json!({"pythonSource": string, "runtime": string, "session": string}),
                json!([]),
                "pythonSource",
            ),
            (
                json!({"statement": string, "comment": string}),
                json!(["statement"]),
                "statement",
            ),
            (
                json!({"source_code": string, "comment": string}),
                json!([]),
                "source_code",
            ),
            (
                json!({"deadline": {"type": "integer"}, "body": string}),
                json!([]),
                "body",
            ),
        ] {
            let schema = json!({"properties": properties, "required": required});
            assert_eq!(
                fitted(json!({"code": "1"}), schema.clone()),
                json!({name: "1"}),
                "{schema}"
            );
        }
        let alternatives = json!({"oneOf": [{"properties": {"session": {}, "source": {}}}, {"properties": {"runtime": {}}}]});
        assert_eq!(
            fitted(json!({"session": "s", "code": "1"}), alternatives),
            json!({"session": "s", "source": "1"})
        );
    }

    #[test]
    fn mirrored_arguments_become_headers() {
        let schema = json!({"properties": {
            "session": {"type": "string", "x-mcp-header": "Session"},
            "options": {"type": "object", "properties": {"fast": {"type": "boolean", "x-mcp-header": "Fast"}}},
            "absent": {"type": "integer", "x-mcp-header": "Absent"}}});
        let mut headers = HeaderMap::new();
        mirror(
            &map(json!({"session": "Grüße", "options": {"fast": true}})),
            &mirrored(&schema).unwrap(),
            &mut headers,
        );
        assert_eq!(headers.len(), 2);
        assert_eq!(headers["Mcp-Param-Session"], "=?base64?R3LDvMOfZQ==?=");
        assert_eq!(headers["mcp-param-fast"], "true");
    }

    #[test]
    fn bad_annotations_reject_the_tool() {
        for bad in [
            json!({"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": ""}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "a b"}}}),
            json!({"properties": {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}}}),
            json!({"properties": {"a": {"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}}}),
        ] {
            assert!(mirrored(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn header_values_are_encoded_as_the_specification_shows() {
        for (text, value) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(header_value(text), value);
        }
    }
}
