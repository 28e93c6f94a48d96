//! What `create_runtime` is asked, and what its answer means: neither is documented.
//!
//! Invariant: the same request id makes the same request, so that an attempt that is repeated cannot make a second machine where
//! the server takes one of the two ids.

use serde_json::{Map, Value, json};

use super::calls::inner;
use super::{Runtime, SpecKey, parse};
use crate::backend::JsonMap;
use crate::colab::mcp::arguments::{property, required, resolved};
use crate::colab::mcp::errors::Status;
use crate::colab::mcp::normalise;

/// The arguments of `create_runtime`, and the id that the runtime was asked to have.
#[derive(Debug, PartialEq)]
pub(super) struct Creation {
    pub(super) arguments: JsonMap,
    pub(super) runtime_id: Option<String>,
}

/// Builds the arguments as the schema wants them; without one, nested as in the REST twin.
pub(super) fn creation(spec: &SpecKey, request_id: &str, schema: Option<&Value>) -> Creation {
    let mut key = Map::new();
    for (name, value) in [
        ("variant", &spec.variant),
        ("accelerator", &spec.accelerator),
        ("shape", &spec.shape),
    ] {
        if !value.is_empty() {
            key.insert(name.to_owned(), json!(value));
        }
    }
    let mut arguments = JsonMap::new();
    let mut runtime_id = None;
    let Some(schema) =
        schema.filter(|schema| schema.get("properties").is_some_and(Value::is_object))
    else {
        arguments.insert("runtime".to_owned(), json!({"runtimeSpec": key}));
        return Creation {
            arguments,
            runtime_id,
        };
    };
    if let Some((name, runtime)) = property(schema, "runtime") {
        let inside = property(resolved(schema, runtime), "runtimeSpec")
            .map_or("runtimeSpec", |(name, _)| name);
        arguments.insert(name.to_owned(), json!({inside: key}));
    } else if let Some((name, _)) = ["runtimeSpec", "spec", "key"]
        .iter()
        .find_map(|name| property(schema, name))
    {
        arguments.insert(name.to_owned(), Value::Object(key));
    } else {
        arguments.append(&mut key);
    }
    let request = property(schema, "requestId").map(|(name, _)| name);
    if let Some(name) = request {
        arguments.insert(name.to_owned(), json!(request_id));
    }
    if let Some((name, _)) = property(schema, "runtimeId")
        && (request.is_none() || required(schema).contains(&name))
    {
        let id = runtime_id_for(request_id);
        arguments.insert(name.to_owned(), json!(id));
        runtime_id = Some(id);
    }
    Creation {
        arguments,
        runtime_id,
    }
}

/// An RFC 1034 label that goes with a request id.
fn runtime_id_for(request_id: &str) -> String {
    let hex = request_id
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(32);
    format!("ck-{}", hex.collect::<String>().to_ascii_lowercase())
}

/// What the answer to a creation says.
#[derive(Debug)]
pub(super) enum Created {
    Runtime(Box<Runtime>),
    /// An operation that goes on, or an answer that says nothing.
    Pending(Option<String>),
}

impl Created {
    pub(super) fn read(answer: Value) -> Result<Self, Status> {
        if let Some(error) = answer.get("error").filter(|error| error.is_object()) {
            return Err(normalise::from_google(error));
        }
        let name = answer
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let is_operation = answer.get("done").is_some()
            || answer.get("response").is_some()
            || name.starts_with("operations/")
            || name.contains("/operations/");
        if is_operation {
            let operation = (!name.is_empty()).then_some(name);
            return Ok(
                match answer
                    .get("response")
                    .map(|response| inner(response.clone(), "runtime"))
                {
                    Some(response) if response.get("name").is_some() => {
                        Self::Runtime(parse(response)?)
                    }
                    // Done without a response: the list has to tell.
                    _ if answer.get("done").and_then(Value::as_bool) == Some(true) => {
                        Self::Pending(None)
                    }
                    _ => Self::Pending(operation),
                },
            );
        }
        let runtime = inner(answer, "runtime");
        if runtime
            .get("name")
            .and_then(Value::as_str)
            .is_some_and(|name| !name.is_empty())
        {
            return Ok(Self::Runtime(parse(runtime)?));
        }
        Ok(Self::Pending(None))
    }
}

/// The runtime that was not there before; of several, one of the kind that was asked for.
pub(super) fn newcomer(now: Vec<Runtime>, spec: &SpecKey, before: &[Runtime]) -> Option<Runtime> {
    let mut new: Vec<Runtime> = now
        .into_iter()
        .filter(|runtime| !before.iter().any(|old| old.name == runtime.name))
        .collect();
    let wanted = new.iter().position(|runtime| is_of_kind(runtime, spec));
    match wanted {
        Some(at) => Some(new.swap_remove(at)),
        None => new.pop(),
    }
}

/// Whether a runtime is of the kind that was asked for.
pub(super) fn is_of_kind(runtime: &Runtime, spec: &SpecKey) -> bool {
    let same = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
    same(&spec.variant, &runtime.runtime_spec.variant)
        && same(&spec.accelerator, &runtime.runtime_spec.accelerator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colab::mcp::errors::Code;

    const REQUEST: &str = "0F8FAD5B-D9CB-469F-A165-70867728950E";

    fn gpu() -> SpecKey {
        SpecKey {
            variant: "VARIANT_GPU".into(),
            accelerator: "T4".into(),
            shape: String::new(),
        }
    }

    fn built(schema: Value) -> Value {
        Value::Object(creation(&gpu(), REQUEST, Some(&schema)).arguments)
    }

    #[test]
    fn a_creation_takes_the_form_of_the_schema() {
        let key = json!({"variant": "VARIANT_GPU", "accelerator": "T4"});
        assert_eq!(
            Value::Object(creation(&gpu(), REQUEST, None).arguments),
            json!({"runtime": {"runtimeSpec": key}})
        );
        assert_eq!(
            built(json!({"properties": {"runtime": {}, "requestId": {}}})),
            json!({"runtime": {"runtimeSpec": key}, "requestId": REQUEST})
        );
        assert_eq!(
            built(
                json!({"properties": {"runtime": {"$ref": "#/$defs/R"}, "request_id": {}, "runtimeId": {}},
                "$defs": {"R": {"properties": {"runtime_spec": {}}}}})
            ),
            json!({"runtime": {"runtime_spec": key}, "request_id": REQUEST})
        );
        assert_eq!(
            built(json!({"properties": {"runtimeSpec": {}}})),
            json!({"runtimeSpec": key})
        );
        assert_eq!(
            built(json!({"properties": {"variant": {}, "accelerator": {}}})),
            key
        );
    }

    #[test]
    fn a_runtime_id_is_given_where_nothing_else_makes_a_retry_safe() {
        let id = "ck-0f8fad5bd9cb469fa16570867728950e";
        assert_eq!(
            built(json!({"properties": {"runtimeSpec": {}, "runtimeId": {}}}))["runtimeId"],
            id
        );
        let both = json!({"properties": {"runtimeSpec": {}, "runtimeId": {}, "requestId": {}}, "required": ["runtimeId"]});
        assert_eq!(built(both)["runtimeId"], id);
        assert!(id.len() <= 63);
    }

    #[test]
    fn every_answer_to_a_creation_is_understood() {
        let runtime = json!({"name": "runtimes/r1", "runtimeSpec": {"variant": "VARIANT_CPU"}});
        for answer in [
            runtime.clone(),
            json!({"runtime": runtime}),
            json!({"name": "operations/o1", "done": true, "response": runtime}),
            json!({"name": "operations/o1", "response": {"@type": "x", "name": "runtimes/r1"}}),
        ] {
            let Created::Runtime(read) = Created::read(answer.clone()).unwrap() else {
                panic!("{answer}");
            };
            assert_eq!(read.name, "runtimes/r1");
        }
        assert!(
            matches!(Created::read(json!({"name": "operations/o1"})).unwrap(), Created::Pending(Some(name)) if name == "operations/o1")
        );
        assert!(matches!(
            Created::read(json!({})).unwrap(),
            Created::Pending(None)
        ));
        assert!(matches!(
            Created::read(json!("Created.")).unwrap(),
            Created::Pending(None)
        ));
        let failed = Created::read(
            json!({"name": "operations/o1", "done": true, "error": {"code": 9, "message": "no"}}),
        );
        assert_eq!(failed.unwrap_err().code, Code::FailedPrecondition);
    }

    #[test]
    fn the_newcomer_is_the_one_of_the_wanted_kind() {
        let runtime = |name: &str, variant: &str| Runtime {
            name: name.into(),
            runtime_spec: SpecKey {
                variant: variant.into(),
                accelerator: "T4".into(),
                ..SpecKey::default()
            },
            ..Runtime::default()
        };
        let before = [runtime("old", "VARIANT_GPU")];
        let now = vec![
            before[0].clone(),
            runtime("cpu", "VARIANT_CPU"),
            runtime("gpu", "VARIANT_GPU"),
        ];
        assert_eq!(newcomer(now, &gpu(), &before).unwrap().name, "gpu");
        assert!(newcomer(before.to_vec(), &gpu(), &before).is_none());
    }
}
