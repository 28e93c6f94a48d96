//! What code asks of Colab's web page, answered here, where there is no page.
//!
//! `google.colab`'s helpers publish a `colab_request` and wait on stdin for a `colab_reply`, some of them for ever. Each is answered at
//! once: a secret with the local variable that the user forwards, everything else with what to do instead. Requests without an
//! id (about the display of a running command) want no answer. The shapes are those of the public `google.colab` package
//! (googlecolab/colabtools, `_message.py`, `userdata.py`, `_kernel.py`).

use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::Message;

/// The local variables that code on Colab may read.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Page {
    secrets: Vec<(String, String)>,
}

/// Never shows values.
impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.secrets.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    colab_request_type: String,
    colab_msg_id: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Content {
    request: Value,
}

/// Whether it is a request to the web page.
pub fn is_request(message: &Message) -> bool {
    message
        .head()
        .is_some_and(|head| head.msg_type == "colab_request")
}

impl Page {
    /// A page that knows these variables.
    pub fn new(secrets: Vec<(String, String)>) -> Self {
        Self { secrets }
    }

    /// The variables, by name.
    pub fn secrets(&self) -> &[(String, String)] {
        &self.secrets
    }

    /// The content of the `input_reply` that answers a request, if it wants one.
    pub fn answer(&self, request: &Message) -> Option<Value> {
        let metadata: Metadata = request.metadata().ok()?;
        let id = metadata.colab_msg_id.filter(|id| !id.is_null())?;
        let content: Content = request.content().unwrap_or_default();
        let mut reply = json!({"type": "colab_reply", "colab_msg_id": id});
        match metadata.colab_request_type.as_str() {
            "GetSecret" => match self.secret(&content.request) {
                Ok(value) => {
                    reply["data"] = json!({"exists": true, "access": true, "payload": value});
                }
                Err(sentence) => reply["error"] = sentence.into(),
            },
            kind => reply["error"] = instead_of(kind).into(),
        }
        Some(json!({"value": reply}))
    }

    fn secret(&self, request: &Value) -> Result<&str, String> {
        let key = request["key"].as_str().unwrap_or_default();
        let found = self.secrets.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).ok_or_else(|| {
            format!(
                "colab-kernel has no secret named {key:?}: Colab's secrets are in its web page. Set {key} in the environment \
                 of your notebook editor, name it in COLAB_KERNEL_FORWARD_ENV and restart the kernel"
            )
        })
    }
}

/// What works here in place of a helper of the web page.
fn instead_of(kind: &str) -> String {
    let what = match kind {
        "request_auth" => {
            "signing in through Colab's web page is not possible here. For Google Cloud use a service account's key file or \
             gcloud auth login --no-browser in a cell; for Drive use rclone or the Drive API with credentials of your own"
        }
        "cell_javascript_eval" => {
            "there is no Colab web page to run JavaScript in, so files.upload(), files.download() and output.eval_js() do not \
             work here. Read and write files of the runtime under /content; your own files stay with your notebook editor"
        }
        _ => "it needs Colab's web page, which is not there when cells run from a local editor",
    };
    format!("colab-kernel: {what}")
}

#[cfg(test)]
mod tests {
    use super::super::wire::Channel;
    use super::*;

    fn request(kind: &str, id: Value, request: Value) -> Message {
        let content = json!({"request": request});
        let mut message = Message::new(Channel::IoPub, "s", "colab_request", &content);
        let metadata = json!({"colab_request_type": kind, "colab_msg_id": id});
        message.metadata = metadata.to_string().into();
        message
    }

    #[test]
    fn a_forwarded_variable_is_a_secret() {
        let page = Page::new(vec![("HF_TOKEN".into(), "s3cret".into())]);
        let answer = page.answer(&request("GetSecret", json!(7), json!({"key": "HF_TOKEN"})));
        let value = answer.unwrap()["value"].take();
        assert_eq!(value["colab_msg_id"], 7);
        assert_eq!(
            value["data"],
            json!({"exists": true, "access": true, "payload": "s3cret"})
        );
        assert!(value.get("error").is_none());
        assert!(!format!("{page:?}").contains("s3cret"));
    }

    #[test]
    fn everything_else_fails_with_what_to_do() {
        let page = Page::default();
        for (kind, words) in [
            ("GetSecret", "COLAB_KERNEL_FORWARD_ENV"),
            ("cell_javascript_eval", "/content"),
            ("request_auth", "service account"),
            ("SomethingNew", "web page"),
        ] {
            let answer = page
                .answer(&request(kind, json!(1), json!({"key": "K"})))
                .unwrap();
            let error = answer["value"]["error"].as_str().unwrap();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn requests_without_an_id_want_no_answer() {
        let page = Page::default();
        let mut bare = request("cell_display_stdin", Value::Null, json!({}));
        assert_eq!(page.answer(&bare), None);
        bare.metadata = "{}".into();
        assert_eq!(page.answer(&bare), None);
        assert!(is_request(&bare));
    }
}
