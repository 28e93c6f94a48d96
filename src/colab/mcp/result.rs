//! What the result of a `tools/call` says: the tool's answer, or why there is none.
//!
//! The documented place of an answer is `structuredContent`; older servers put the same JSON into a text part. A tool that failed
//! sets `isError`, but whether code that raised counts as a failed tool is not documented: a result that carries an
//! `executionError` is always a result.

use serde_json::{Map, Value};

use super::errors::{Code, Origin, Status};
use super::normalise;

/// The tool's answer in a `CallToolResult`.
pub(crate) fn outcome(result: Value) -> Result<Value, Status> {
    let Value::Object(mut result) = result else {
        return Ok(result);
    };
    if result.get("resultType").and_then(Value::as_str) == Some("input_required") {
        return Err(Status::new(
            Code::Unimplemented,
            Origin::Protocol,
            "The service asks for input that this client cannot give (resultType input_required)",
        ));
    }
    if result.get("isError").and_then(Value::as_bool) == Some(true) {
        return match carried_result(&result) {
            Some(value) => Ok(value),
            None => Err(normalise::from_tool(&Value::Object(result))),
        };
    }
    if let Some(structured) = result.remove("structuredContent").filter(Value::is_object) {
        return Ok(unwrapped(structured));
    }
    if !result.contains_key("content") {
        // Some gateways answer with the tool's object itself.
        result.remove("_meta");
        result.remove("resultType");
        result.remove("isError");
        return Ok(Value::Object(result));
    }
    let texts = texts(&result);
    let whole = texts.concat();
    // One item holds the answer, or it was cut into several.
    if let Some(value) = texts
        .iter()
        .find_map(|text| json_in(text))
        .or_else(|| json_in(&whole))
    {
        return Ok(unwrapped(value));
    }
    if texts.is_empty() {
        return Ok(Value::Object(Map::new()));
    }
    Ok(Value::String(whole))
}

/// The result of code that raised, in a tool result that is marked as failed.
fn carried_result(result: &Map<String, Value>) -> Option<Value> {
    let structured = result.get("structuredContent").cloned().map(unwrapped);
    structured
        .into_iter()
        .chain(texts(result).into_iter().filter_map(json_in))
        .find(|value| {
            ["executionError", "execution_error"]
                .iter()
                .filter_map(|key| value.get(key))
                .any(Value::is_object)
        })
}

fn texts(result: &Map<String, Value>) -> Vec<&str> {
    result
        .get("content")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("text").and_then(Value::as_str))
        .collect()
}

/// A JSON object or array that makes up a whole text. (A bare `12` stays text.)
fn json_in(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['{', '[']) {
        return None;
    }
    serde_json::from_str(text).ok()
}

/// `{"result": {…}}` is how SDKs wrap an answer whose schema they do not know. (`result` of an execution is a string.)
fn unwrapped(value: Value) -> Value {
    match value {
        Value::Object(mut object)
            if object.len() == 1 && object.get("result").is_some_and(Value::is_object) =>
        {
            object.remove("result").unwrap_or_default()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Value {
        json!({"content": [{"type": "text", "text": text}]})
    }

    #[test]
    fn the_answer_is_found_wherever_it_stands() {
        let runtime = json!({"name": "runtimes/r1"});
        for result in [
            json!({"structuredContent": runtime, "content": [{"type": "text", "text": "ok"}]}),
            json!({"structuredContent": {"result": runtime}, "content": []}),
            json!({"structuredContent": null, "content": [{"type": "image", "data": ""}, {"type": "text", "text": runtime.to_string()}]}),
            text(&runtime.to_string()),
            json!({"content": [{"type": "text", "text": "{\"name\": \"run"}, {"type": "text", "text": "times/r1\"}"}]}),
            json!({"name": "runtimes/r1", "resultType": "complete", "_meta": {}}),
        ] {
            assert_eq!(outcome(result.clone()).unwrap(), runtime, "{result}");
        }
        assert_eq!(outcome(text("12")).unwrap(), json!("12"));
        assert_eq!(outcome(json!({"content": []})).unwrap(), json!({}));
        assert_eq!(
            outcome(
                json!({"structuredContent": {}, "content": [{"type": "text", "text": "{\"a\":1}"}]})
            )
            .unwrap(),
            json!({})
        );
    }

    #[test]
    fn code_that_raised_is_a_result_even_if_marked_as_failed() {
        let raised = json!({"executionId": "e", "executionError": {"name": "ValueError"}});
        let marked = json!({"isError": true, "structuredContent": raised, "content": []});
        assert_eq!(outcome(marked).unwrap(), raised);
        let mut in_text = text(&raised.to_string());
        in_text["isError"] = json!(true);
        assert_eq!(outcome(in_text).unwrap(), raised);
    }

    #[test]
    fn a_failed_tool_is_a_status() {
        let mut failed = text("NOT_FOUND: gone");
        failed["isError"] = json!(true);
        assert_eq!(outcome(failed).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn a_request_for_input_is_a_named_protocol_error() {
        let status =
            outcome(json!({"resultType": "input_required", "inputRequests": {}})).unwrap_err();
        assert_eq!(status.origin, Origin::Protocol);
        assert!(status.message.contains("input_required"));
    }
}
