//! One widget model: what of it has another name or shape in the other version, and what has to be remembered for that.
//!
//! The differences are those between ipywidgets 7.7.1 (`base` 1.2.0, `controls` 1.5.0) and 8.1 (2.0.0 both), read from the Python
//! classes and from the models and views of `@jupyter-widgets/base` 6 and `@jupyter-widgets/controls` 5.
//! `docs/WIDGETS.md` has them all.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::object::{Object, Path, raw};
use super::upload::Upload;

/// The version that the front-end has of both modules.
const FRONT_END_VERSION: &str = "2.0.0";

/// A title beyond this page is left out; no widget has as many.
const MAX_TITLES: usize = 10_000;

const SIDES: [&str; 4] = ["border_top", "border_right", "border_bottom", "border_left"];

/// The two modules whose versions are bridged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Module {
    Base,
    Controls,
}

impl Module {
    fn named(name: &str) -> Option<Self> {
        match name {
            "@jupyter-widgets/base" => Some(Self::Base),
            "@jupyter-widgets/controls" => Some(Self::Controls),
            _ => None,
        }
    }
}

/// What the kernel calls its versions of the two modules, as far as it has said.
#[derive(Debug, Clone, Default)]
pub(super) struct Versions {
    base: Option<String>,
    controls: Option<String>,
}

impl Versions {
    fn learn(&mut self, module: Module, version: &str) {
        let known = match module {
            Module::Base => &mut self.base,
            Module::Controls => &mut self.controls,
        };
        *known = Some(version.to_owned());
    }

    fn of(&self, module: Module) -> Option<&str> {
        match module {
            Module::Base => self.base.as_deref(),
            Module::Controls => self.controls.as_deref(),
        }
    }
}

/// A model of version 7 in the kernel that is one of version 8 in the front-end.
#[derive(Debug)]
pub(super) struct Model {
    /// The version that the kernel gave, where it is bridged.
    model_version: Option<String>,
    view_version: Option<String>,
    tooltip: Tooltip,
    kind: Kind,
}

/// What is special about a model beside its tooltip.
#[derive(Debug)]
enum Kind {
    Layout(Overflow),
    Pages,
    Play,
    Upload(Upload),
    Other,
}

/// How the model tells what to show when the pointer rests on it.
#[derive(Debug)]
enum Tooltip {
    /// `description_tooltip` in 7, `tooltip` in 8. In 7 null means the description itself.
    Described {
        description: String,
        tooltip: Option<String>,
    },
    /// `tooltip` in both; null is known to 8 alone.
    Own,
    None,
}

/// `overflow_x` and `overflow_y` of 7 are in 8's `overflow`; a change of one needs to know the others.
#[derive(Debug, Default)]
struct Overflow {
    both: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl Model {
    /// The model whose full state the kernel tells, if it needs the bridge.
    pub(super) fn of_7(state: &Object, versions: &mut Versions) -> Option<Self> {
        let bridged = |module: &str, version: &str| {
            let module = Module::named(&state.text(module)?)?;
            let version = state.text(version).filter(|version| is_7(version))?;
            Some((module, version))
        };
        let model = bridged("_model_module", "_model_module_version");
        if let Some((module, version)) = &model {
            versions.learn(*module, version);
        }
        let model_version = model.map(|(_, version)| version);
        let view = bridged("_view_module", "_view_module_version");
        let view_version = view.map(|(_, version)| version);
        if model_version.is_none() {
            // A model of another module whose view is of ours: its attributes are its own.
            return view_version.is_some().then_some(Self {
                model_version,
                view_version,
                tooltip: Tooltip::None,
                kind: Kind::Other,
            });
        }
        let tooltip = if state.has("tooltip") {
            Tooltip::Own
        } else if state.has("description_tooltip") {
            Tooltip::Described {
                description: String::new(),
                tooltip: None,
            }
        } else {
            Tooltip::None
        };
        Some(Self {
            model_version,
            view_version,
            tooltip,
            kind: Kind::of(state),
        })
    }

    /// A model that the front-end makes, if the kernel is known to have version 7 of its module.
    pub(super) fn of_8(state: &Object, versions: &Versions) -> Option<Self> {
        let version = |module: &str| {
            let module = Module::named(&state.text(module)?)?;
            versions.of(module).map(str::to_owned)
        };
        let model_version = Some(version("_model_module")?);
        let name = state.text("_model_name").unwrap_or_default();
        let tooltip = if ["ButtonModel", "ToggleButtonModel"].contains(&&*name) {
            Tooltip::Own
        } else if state.has("description") {
            Tooltip::Described {
                description: state.text("description").unwrap_or_default(),
                tooltip: None,
            }
        } else {
            Tooltip::None
        };
        Some(Self {
            model_version,
            view_version: version("_view_module"),
            tooltip,
            kind: Kind::of(state),
        })
    }

    /// Translates a state, or part of one, for the front-end.
    pub(super) fn upgrade(&mut self, state: &mut Object) {
        let version = || raw(&FRONT_END_VERSION);
        if self.model_version.is_some() {
            state.replace("_model_module_version", version());
        }
        if self.view_version.is_some() {
            state.replace("_view_module_version", version());
        }
        self.tooltip.upgrade(state);
        match &mut self.kind {
            Kind::Layout(overflow) => {
                if let Some(border) = state.take("border") {
                    for side in SIDES {
                        state.set_raw(side, border.clone());
                    }
                }
                overflow.upgrade(state);
            }
            Kind::Pages => upgrade_titles(state),
            Kind::Play => {
                state.rename("_playing", "playing");
                state.rename("_repeat", "repeat");
            }
            Kind::Upload(upload) => upload.upgrade(state),
            Kind::Other => {}
        }
    }

    /// Adds what version 8 needs to be told to behave as version 7 does.
    pub(super) fn complete(&self, state: &mut Object) {
        if matches!(self.tooltip, Tooltip::Described { .. }) {
            // In 7 descriptions are HTML; 8 shows it, cleaned, only if asked.
            state.set("description_allow_html", &true);
        }
    }

    /// Translates where the buffers of a message belong. The path into the state begins behind `prefix` other keys.
    pub(super) fn upgrade_paths(&self, paths: &mut [Path], prefix: usize) {
        if matches!(self.kind, Kind::Upload(_)) {
            Upload::upgrade_paths(paths, prefix);
        }
    }

    /// Translates a state, or part of one, and its paths for the kernel.
    pub(super) fn downgrade(&mut self, state: &mut Object, paths: &mut [Path]) {
        if let Some(version) = &self.model_version {
            state.replace("_model_module_version", raw(version));
        }
        if let Some(version) = &self.view_version {
            state.replace("_view_module_version", raw(version));
        }
        self.tooltip.downgrade(state);
        match &mut self.kind {
            Kind::Layout(overflow) => {
                downgrade_borders(state);
                overflow.downgrade(state);
            }
            Kind::Pages => downgrade_titles(state),
            Kind::Play => {
                state.rename("playing", "_playing");
                state.rename("repeat", "_repeat");
            }
            Kind::Upload(upload) => upload.downgrade(state, paths),
            Kind::Other => {}
        }
    }
}

impl Kind {
    fn of(state: &Object) -> Self {
        match state.text("_model_name").unwrap_or_default().as_str() {
            "LayoutModel" => Self::Layout(Overflow::default()),
            "PlayModel" => Self::Play,
            "FileUploadModel" => Self::Upload(Upload::default()),
            // Accordion and Tab, and what is made of them.
            _ if state.has("_titles") || state.has("titles") => Self::Pages,
            _ => Self::Other,
        }
    }
}

impl Tooltip {
    fn upgrade(&mut self, state: &mut Object) {
        let (description, tooltip) = match self {
            Self::Described {
                description,
                tooltip,
            } => (description, tooltip),
            Self::Own => {
                // `ToggleButton` has both, and its view of 7 showed only the other.
                state.take("description_tooltip");
                return;
            }
            Self::None => return,
        };
        let described = state.text("description");
        let told = state.parsed::<Option<String>>("description_tooltip");
        if let Some(described) = &described {
            description.clone_from(described);
        }
        if let Some(told) = &told {
            tooltip.clone_from(told);
        }
        let falls_back = tooltip.is_none() && described.is_some();
        if told.is_some() || falls_back {
            // Views of 8 would write the word "null" for null.
            let shown = raw(tooltip.as_ref().unwrap_or(description));
            state.rename("description_tooltip", "tooltip");
            state.set_raw("tooltip", shown);
        }
    }

    fn downgrade(&mut self, state: &mut Object) {
        let told = state.parsed::<Option<String>>("tooltip");
        match self {
            Self::Described {
                description,
                tooltip,
            } => {
                if let Some(described) = state.text("description") {
                    *description = described;
                }
                let Some(told) = told else { return };
                // What stands in for null comes back as null.
                let stand_in = tooltip.is_none() && told.as_ref() == Some(description);
                *tooltip = told.filter(|_| !stand_in);
                state.rename("tooltip", "description_tooltip");
                state.set("description_tooltip", tooltip);
            }
            Self::Own if told == Some(None) => state.set("tooltip", &""),
            Self::Own | Self::None => {}
        }
    }
}

impl Overflow {
    fn upgrade(&mut self, state: &mut Object) {
        let mut told = false;
        for (name, known) in [
            ("overflow", &mut self.both),
            ("overflow_x", &mut self.x),
            ("overflow_y", &mut self.y),
        ] {
            if let Some(value) = state.parsed(name) {
                *known = value;
                told = true;
            }
        }
        state.take("overflow_x");
        state.take("overflow_y");
        if told {
            state.set("overflow", &self.shorthand());
        }
    }

    fn downgrade(&mut self, state: &Object) {
        if let Some(both) = state.parsed("overflow") {
            self.both = both;
        }
    }

    /// The value of the property that says the same: first across, then down. One of its own wins over the one for both, as in 7.
    fn shorthand(&self) -> Option<String> {
        if self.x.is_none() && self.y.is_none() {
            return self.both.clone();
        }
        let both = self.both.as_deref().unwrap_or("visible");
        let (first, last) = both.split_once(' ').unwrap_or((both, both));
        let across = self.x.as_deref().unwrap_or(first);
        let down = self.y.as_deref().unwrap_or(last);
        Some(format!("{across} {down}"))
    }
}

/// `{"1": "b"}` to `["", "b"]`.
fn upgrade_titles(state: &mut Object) {
    let Some(by_page) = state.parsed::<BTreeMap<String, Option<String>>>("_titles") else {
        return;
    };
    let mut titles: Vec<String> = Vec::new();
    for (page, title) in by_page {
        let Some(page) = page.parse().ok().filter(|&page: &usize| page < MAX_TITLES) else {
            continue;
        };
        if titles.len() <= page {
            titles.resize(page + 1, String::new());
        }
        titles[page] = title.unwrap_or_default();
    }
    state.rename("_titles", "titles");
    state.set("titles", &titles);
}

fn downgrade_titles(state: &mut Object) {
    let Some(titles) = state.parsed::<Vec<Box<RawValue>>>("titles") else {
        return;
    };
    let mut by_page = Object::default();
    for (page, title) in titles.into_iter().enumerate() {
        by_page.set_raw(&page.to_string(), title);
    }
    state.rename("titles", "_titles");
    state.set("_titles", &by_page);
}

/// Four sides that agree are a border. One side alone has no name in 7.
fn downgrade_borders(state: &mut Object) {
    let sides: Vec<_> = SIDES.iter().filter_map(|side| state.take(side)).collect();
    if let [top, rest @ ..] = &sides[..]
        && rest.len() == SIDES.len() - 1
        && rest.iter().all(|side| side.get() == top.get())
    {
        state.set_raw("border", top.clone());
    }
}

/// Whether a version, or the requirement of one, is that of ipywidgets 7.
fn is_7(version: &str) -> bool {
    version
        .trim_start_matches(['^', '~', '='])
        .starts_with("1.")
}
