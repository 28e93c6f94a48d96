//! Inspection of a kernel that answers with data alone, as text in the layout of IPython's `?` and `??`.
//!
//! google.colab's kernel sends IPython's info dict as `application/json`, which Colab's page lays out and JupyterLab would show as
//! a tree, also where there is text beside it: so the text takes its place. The fields and their order are those of IPython 7.34,
//! Colab's version (`IPython/core/oinspect.py`); code is not coloured.

use serde_json::Value;

use crate::backend::JsonMap;

/// Puts `text/plain` in the place of the info dict in the content of an `inspect_reply` that has nothing else. `true`: it did.
pub fn to_text(content: &mut JsonMap, detail_level: u64) -> bool {
    let Some(data) = content.get_mut("data").and_then(Value::as_object_mut) else {
        return false;
    };
    if data.contains_key("text/plain") {
        return false;
    }
    let info = data.get("application/json").and_then(Value::as_object);
    let Some(text) = info.and_then(|info| render(info, detail_level > 0)) else {
        return false;
    };
    data.remove("application/json");
    data.insert("text/plain".into(), text.into());
    true
}

fn render(info: &JsonMap, detailed: bool) -> Option<String> {
    if info.get("found") == Some(&Value::Bool(false)) {
        return None;
    }
    let fields: Vec<_> = fields(info, detailed)
        .into_iter()
        .filter_map(|(title, key)| Some((title, text(info.get(key)?)?)))
        .collect();
    let width = fields.iter().map(|(title, _)| title.len()).max()?;
    let mut rendered = String::new();
    for (title, body) in fields {
        let body = body.trim_matches('\n');
        let padding = " ".repeat(width - title.len());
        let delimiter = if body.contains('\n') { '\n' } else { ' ' };
        rendered += &format!("\x1b[0;31m{title}:\x1b[0m{padding}{delimiter}{body}\n");
    }
    Some(rendered)
}

/// Titles and keys, in the order in which they are shown.
fn fields(info: &JsonMap, detailed: bool) -> Vec<(&'static str, &'static str)> {
    let is = |key: &str| info.get(key) == Some(&Value::Bool(true));
    let source = detailed
        && info
            .get("source")
            .and_then(Value::as_str)
            .is_some_and(|source| !source.is_empty());
    let docstring = ("Docstring", "docstring");
    let shown = if source {
        ("Source", "source")
    } else {
        docstring
    };
    if is("isalias") {
        return vec![("Repr", "string_form")];
    }
    if is("ismagic") {
        return vec![shown, ("File", "file")];
    }
    if is("isclass") || is_function(info) {
        let second = if source {
            ("Source", "source")
        } else {
            ("Init docstring", "init_docstring")
        };
        return vec![
            ("Signature", "definition"),
            ("Init signature", "init_definition"),
            docstring,
            second,
            ("File", "file"),
            ("Type", "type_name"),
            ("Subclasses", "subclasses"),
        ];
    }
    let mut fields = vec![
        ("Signature", "definition"),
        ("Call signature", "call_def"),
        ("Type", "type_name"),
        ("String form", "string_form"),
    ];
    if info.get("namespace").and_then(Value::as_str) != Some("Interactive") {
        fields.push(("Namespace", "namespace"));
    }
    fields.extend([
        ("Length", "length"),
        ("File", "file"),
        shown,
        ("Class docstring", "class_docstring"),
        ("Init docstring", "init_docstring"),
        ("Call docstring", "call_docstring"),
    ]);
    fields
}

/// Functions and methods, of Python and of C.
fn is_function(info: &JsonMap) -> bool {
    let names = ["function", "method", "builtin_function_or_method"];
    info.get("type_name")
        .and_then(Value::as_str)
        .is_some_and(|name| names.contains(&name))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn assert_rendered(info: &Value, detail_level: u64, expected: &str) {
        let content = json!({"status": "ok", "found": true, "data": {"application/json": info}, "metadata": {}});
        let mut content = content.as_object().unwrap().clone();
        assert!(to_text(&mut content, detail_level));
        let text = content["data"]["text/plain"].as_str().unwrap();
        assert_eq!(
            text.replace("\x1b[0;31m", "").replace("\x1b[0m", ""),
            expected
        );
        assert_eq!(content["data"].as_object().unwrap().len(), 1);
    }

    #[test]
    fn a_function_shows_its_signature_and_docstring_or_its_source() {
        let info = json!({"type_name": "function", "base_class": "<class 'function'>", "string_form": "<function f>",
            "namespace": "Interactive", "length": null, "file": "/tmp/x.py", "definition": "f(a, b=1)",
            "docstring": "Doc of f.\n\nMore.", "isclass": null, "ismagic": false, "isalias": false, "found": true});
        assert_rendered(
            &info,
            0,
            "Signature: f(a, b=1)\nDocstring:\nDoc of f.\n\nMore.\nFile:      /tmp/x.py\nType:      function\n",
        );
        let mut info = info;
        info["docstring"] = Value::Null;
        info["source"] = "def f(a, b=1):\n    return a\n".into();
        assert_rendered(
            &info,
            1,
            "Signature: f(a, b=1)\nSource:   \ndef f(a, b=1):\n    return a\nFile:      /tmp/x.py\nType:      function\n",
        );
    }

    #[test]
    fn a_class_shows_how_it_is_made() {
        let info = json!({"type_name": "type", "string_form": "<class 'C'>", "namespace": "Interactive",
            "docstring": "Doc C", "init_definition": "C(x)", "init_docstring": "Init doc", "isclass": true,
            "found": true, "subclasses": ""});
        assert_rendered(
            &info,
            0,
            "Init signature: C(x)\nDocstring:      Doc C\nInit docstring: Init doc\nType:           type\nSubclasses:     \n",
        );
    }

    #[test]
    fn a_value_shows_its_type_form_length_and_docstring() {
        let info = json!({"type_name": "list", "string_form": "[1, 2, 3]", "namespace": "Interactive", "length": "3",
            "docstring": "Built-in mutable sequence.\n\nMore.", "isclass": null, "found": true});
        let expected = "Type:        list\nString form: [1, 2, 3]\nLength:      3\nDocstring:  \n\
                        Built-in mutable sequence.\n\nMore.\n";
        assert_rendered(&info, 0, expected);
        assert_rendered(&info, 1, expected);
        let mut info = info;
        info["namespace"] = "Python builtin".into();
        info["length"] = 3.into();
        let expected = expected.replace("Length", "Namespace:   Python builtin\nLength");
        assert_rendered(&info, 0, &expected);
    }

    #[test]
    fn an_object_that_can_be_called_shows_both() {
        let info = json!({"type_name": "C", "string_form": "<C object>", "namespace": "Interactive",
            "definition": "c(y)", "docstring": "Doc C", "init_docstring": "Init doc", "call_docstring": "Call doc",
            "isclass": false, "found": true});
        assert_rendered(
            &info,
            0,
            "Signature:      c(y)\nType:           C\nString form:    <C object>\nDocstring:      Doc C\n\
             Init docstring: Init doc\nCall docstring: Call doc\n",
        );
    }

    #[test]
    fn what_has_text_or_was_not_found_stays() {
        for data in [
            json!({"text/plain": "x", "application/json": {"type_name": "int"}}),
            json!({"application/json": {"found": false, "type_name": null}}),
            json!({"application/json": {}}),
            json!({"application/json": "x"}),
            json!({}),
        ] {
            let content = json!({"found": true, "data": data});
            let mut changed = content.as_object().unwrap().clone();
            assert!(!to_text(&mut changed, 0));
            assert_eq!(Value::Object(changed), content);
        }
    }
}
