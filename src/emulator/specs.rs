//! What machines there are, and which of them the emulated account may have.
//!
//! The machines are those that Colab is known to offer; the accounts are of the Pro tier. Whatever is asked for, the emulator
//! runs it on this machine's processor.

use serde_json::{Map, Value, json};

use super::errors::Failure;

/// The tier of every account.
pub(super) const TIER: &str = "PRO";

/// `RuntimeSpec.Key`
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpecKey {
    pub variant: &'static str,
    pub accelerator: &'static str,
    pub shape: &'static str,
}

struct Spec {
    key: SpecKey,
    eligible: bool,
}

const fn spec(
    variant: &'static str,
    accelerator: &'static str,
    shape: &'static str,
    eligible: bool,
) -> Spec {
    Spec {
        key: SpecKey {
            variant,
            accelerator,
            shape,
        },
        eligible,
    }
}

const SPECS: [Spec; 9] = [
    spec("VARIANT_CPU", "NONE", "SHAPE_STANDARD", true),
    spec("VARIANT_CPU", "NONE", "SHAPE_HIGHMEM", true),
    spec("VARIANT_GPU", "T4", "SHAPE_STANDARD", true),
    spec("VARIANT_GPU", "T4", "SHAPE_HIGHMEM", true),
    spec("VARIANT_GPU", "L4", "SHAPE_HIGHMEM", true),
    spec("VARIANT_GPU", "A100", "SHAPE_STANDARD", false),
    spec("VARIANT_GPU", "A100", "SHAPE_HIGHMEM", false),
    spec("VARIANT_TPU", "V5E1", "SHAPE_HIGHMEM", true),
    spec("VARIANT_TPU", "V6E1", "SHAPE_HIGHMEM", false),
];

impl SpecKey {
    /// The JSON of it.
    pub fn json(&self) -> Value {
        json!({"variant": self.variant, "accelerator": self.accelerator, "shape": self.shape})
    }
}

/// The answer of `list_runtime_specs`.
pub(super) fn list() -> Value {
    let specs = SPECS.iter().map(|spec| {
        // proto-JSON leaves out what is false.
        if spec.eligible {
            json!({"key": spec.key.json(), "eligible": true})
        } else {
            json!({"key": spec.key.json()})
        }
    });
    json!({"runtimeSpecs": specs.collect::<Vec<_>>()})
}

/// The machine that a `RuntimeSpec.Key` asks for, if the account may have it. All three fields are required.
pub(super) fn find(key: &Map<String, Value>) -> Result<SpecKey, Failure> {
    const FIELDS: [&str; 3] = ["variant", "accelerator", "shape"];
    if let Some(unknown) = key.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(Failure::invalid(format!(
            "Unknown field in runtimeSpec: {unknown}"
        )));
    }
    let mut wanted = [""; 3];
    for (field, wanted) in FIELDS.iter().zip(&mut wanted) {
        let Some(value) = key
            .get(*field)
            .and_then(Value::as_str)
            .filter(|v| !v.is_empty())
        else {
            return Err(Failure::invalid(format!("runtimeSpec.{field} is required")));
        };
        *wanted = value;
    }
    let [variant, accelerator, shape] = wanted;
    let found = SPECS.iter().find(|spec| {
        spec.key.variant == variant
            && spec.key.accelerator == accelerator
            && spec.key.shape == shape
    });
    let described = format!("{variant} {accelerator} {shape}");
    match found {
        Some(spec) if spec.eligible => Ok(spec.key.clone()),
        Some(_) => Err(Failure::new(
            super::errors::Code::FailedPrecondition,
            "INELIGIBLE_RUNTIME_SPEC",
            format!("The account is not eligible for {described}"),
        )
        .with("accelerator", accelerator)),
        None => Err(Failure::invalid(format!(
            "There is no runtime spec {described}"
        ))),
    }
}
