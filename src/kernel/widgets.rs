//! The widget bridge: lets widgets of ipywidgets 7, which stock Colab has, live in a front-end that has those of ipywidgets 8.
//!
//! JupyterLab 4 registers version 2.0.0 of the modules `@jupyter-widgets/base` and `@jupyter-widgets/controls`; a model that asks
//! for 1.2.0 or 1.5.0 is not drawn at all. The two differ little beyond the number, so the bridge rewrites the number on the way
//! to the front-end and translates what was renamed or retyped, both ways. `docs/WIDGETS.md` lists what was compared and what is
//! done about each difference; [`model`] does it.
//!
//! * Only models of those two modules with a version 1.x are touched. Widgets of ipywidgets 8, other modules' attributes and
//!   comms of other targets pass as the bytes that came.
//! * Attributes that are not translated keep their bytes, numbers of any length included.
//! * The buffers of a message are never touched: there are as many paths to them afterwards, in the same order.
//! * What is remembered about a model ends with its comm, or with [`Bridge::forget_all`].
//!
//! A page that is loaded anew asks for all states on a comm of the target `jupyter.widget.control`; the answer is translated too.

mod model;
mod object;
mod upload;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use serde::Deserialize;
use serde_json::value::RawValue;

use self::model::{Model, Versions};
use self::object::{Object, Path};

/// Comms of widget models.
const WIDGET_TARGET: &str = "jupyter.widget";

/// Comms on which a front-end asks for the states of all models.
const CONTROL_TARGET: &str = "jupyter.widget.control";

/// When the bridge works: `COLAB_KERNEL_WIDGETS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Unless the front-end is VS Code, which has the widgets of both versions.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always.
    On,
}

/// What a mode may be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of auto, off, on")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        match name {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            _ => Err(UnknownMode(name.to_owned())),
        }
    }
}

/// Translates between one kernel's widgets and its front-end.
#[derive(Debug)]
pub struct Bridge {
    mode: Mode,
    /// The models that are translated, by the id of their comm.
    models: HashMap<String, Model>,
    /// Open comms of [`CONTROL_TARGET`].
    controls: HashSet<String>,
    /// What the kernel's models said their versions are.
    versions: Versions,
}

/// As much of a comm's message as tells whether to look further.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    comm_id: Cow<'a, str>,
    #[serde(borrow, default)]
    target_name: Option<Cow<'a, str>>,
}

/// What a message does to the comms it is about, told by its type.
enum Step<'a> {
    Open(Envelope<'a>),
    Message(Envelope<'a>),
    Close(Envelope<'a>),
}

impl<'a> Step<'a> {
    fn read(msg_type: &str, content: &'a RawValue) -> Option<Self> {
        let step = match msg_type {
            "comm_open" => Self::Open,
            "comm_msg" => Self::Message,
            "comm_close" => Self::Close,
            _ => return None,
        };
        serde_json::from_str(content.get()).ok().map(step)
    }
}

impl Bridge {
    /// A bridge that has seen no widget yet.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            models: HashMap::new(),
            controls: HashSet::new(),
            versions: Versions::default(),
        }
    }

    /// The front-end has turned out to be VS Code: [`Mode::Auto`] becomes [`Mode::Off`].
    pub fn is_vs_code(&mut self) {
        if self.mode == Mode::Auto {
            self.mode = Mode::Off;
            self.forget_all();
        }
    }

    /// All comms are gone: the session was lost or restarted.
    pub fn forget_all(&mut self) {
        self.models.clear();
        self.controls.clear();
        self.versions = Versions::default();
    }

    /// Translates the content of a message of the kernel. `None`: it goes out as it came.
    pub fn to_front_end(&mut self, msg_type: &str, content: &RawValue) -> Option<Box<RawValue>> {
        if self.mode == Mode::Off {
            return None;
        }
        match Step::read(msg_type, content)? {
            Step::Open(comm) if comm.target_name.as_deref() == Some(WIDGET_TARGET) => {
                self.kernel_opens(&comm.comm_id, content)
            }
            Step::Open(_) => None,
            Step::Message(comm) if self.controls.contains(&*comm.comm_id) => {
                self.kernel_tells_all(content)
            }
            Step::Message(comm) => {
                let model = self.models.get_mut(&*comm.comm_id)?;
                rewrite_state(content, |method, state, paths| match method {
                    "update" | "echo_update" => {
                        model.upgrade(state);
                        model.upgrade_paths(paths, 0);
                        true
                    }
                    _ => false,
                })
            }
            Step::Close(comm) => self.forget(&comm),
        }
    }

    /// Translates the content of a message of the front-end. `None`: it goes on as it came.
    pub fn to_kernel(&mut self, msg_type: &str, content: &RawValue) -> Option<Box<RawValue>> {
        if self.mode == Mode::Off {
            return None;
        }
        match Step::read(msg_type, content)? {
            Step::Open(comm) => match comm.target_name.as_deref() {
                Some(CONTROL_TARGET) => {
                    self.controls.insert(comm.comm_id.into_owned());
                    None
                }
                Some(WIDGET_TARGET) => self.front_end_opens(&comm.comm_id, content),
                _ => None,
            },
            Step::Message(comm) => {
                let model = self.models.get_mut(&*comm.comm_id)?;
                rewrite_state(content, |method, state, paths| {
                    let update = method == "update";
                    if update {
                        model.downgrade(state, paths);
                    }
                    update
                })
            }
            Step::Close(comm) => self.forget(&comm),
        }
    }

    fn forget(&mut self, comm: &Envelope) -> Option<Box<RawValue>> {
        self.models.remove(&*comm.comm_id);
        self.controls.remove(&*comm.comm_id);
        None
    }

    fn kernel_opens(&mut self, id: &str, content: &RawValue) -> Option<Box<RawValue>> {
        // An id that is used again means another model.
        self.models.remove(id);
        rewrite_state(content, |_, state, paths| {
            let Some(mut model) = Model::of_7(state, &mut self.versions) else {
                return false;
            };
            model.upgrade(state);
            model.complete(state);
            model.upgrade_paths(paths, 0);
            self.models.insert(id.to_owned(), model);
            true
        })
    }

    /// A model that the front-end makes is of the kernel's version from the start, where that is known.
    fn front_end_opens(&mut self, id: &str, content: &RawValue) -> Option<Box<RawValue>> {
        rewrite_state(content, |_, state, paths| {
            let Some(mut model) = Model::of_8(state, &self.versions) else {
                return false;
            };
            model.downgrade(state, paths);
            self.models.insert(id.to_owned(), model);
            true
        })
    }

    /// The answer to `request_states`: what each model would say at its opening.
    fn kernel_tells_all(&mut self, content: &RawValue) -> Option<Box<RawValue>> {
        let mut message: Object = parse(content)?;
        let mut data: Object = parse(message.get("data")?)?;
        if data.text("method").as_deref() != Some("update_states") {
            return None;
        }
        let mut states: Object = parse(data.get("states")?)?;
        let mut paths: Vec<Path> = data.parsed("buffer_paths").unwrap_or_default();
        let mut changed = false;
        for (id, entry) in states.iter_mut() {
            let Some(mut outer) = parse::<Object>(entry) else {
                continue;
            };
            let Some(mut state) = outer.parsed::<Object>("state") else {
                continue;
            };
            let Some(mut model) = Model::of_7(&state, &mut self.versions) else {
                continue;
            };
            model.upgrade(&mut state);
            model.complete(&mut state);
            if let Some(version) = state.get("_model_module_version") {
                outer.replace("model_module_version", version.to_owned());
            }
            for path in &mut paths {
                if path.first().and_then(|first| first.as_str()) == Some(id) {
                    model.upgrade_paths(std::slice::from_mut(path), 2);
                }
            }
            outer.set("state", &state);
            *entry = object::raw(&outer);
            self.models.insert(id.clone(), model);
            changed = true;
        }
        changed.then(|| {
            data.set("states", &states);
            data.replace("buffer_paths", object::raw(&paths));
            message.set("data", &data);
            object::raw(&message)
        })
    }
}

/// Opens a comm's message as far as its state, lets it be changed, and closes it again. What is asked to change it says whether
/// it did; it is told the `method` (empty in a `comm_open`).
fn rewrite_state(
    content: &RawValue,
    change: impl FnOnce(&str, &mut Object, &mut Vec<Path>) -> bool,
) -> Option<Box<RawValue>> {
    let mut message: Object = parse(content)?;
    let mut data: Object = parse(message.get("data")?)?;
    let method = data.text("method").unwrap_or_default();
    let mut state: Object = parse(data.get("state")?)?;
    let mut paths: Vec<Path> = data.parsed("buffer_paths").unwrap_or_default();
    let before = (state.clone(), paths.clone());
    if !change(&method, &mut state, &mut paths) {
        return None;
    }
    let (old_state, old_paths) = before;
    if state.same_as(&old_state) && paths == old_paths {
        return None;
    }
    data.set("state", &state);
    if paths != old_paths {
        data.set("buffer_paths", &paths);
    }
    message.set("data", &data);
    Some(object::raw(&message))
}

fn parse<T: serde::de::DeserializeOwned>(json: &RawValue) -> Option<T> {
    serde_json::from_str(json.get()).ok()
}

#[cfg(test)]
mod tests;
