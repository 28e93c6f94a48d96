//! Choosing the machine that cells run on.
//!
//! The one that the user names; else the one that this process used before; else the newest running one of the wanted kind; else a
//! new one. The API tells no creation times: the last one listed is taken as the newest. Invariants: a machine is created only
//! where none can be used or the user asked for a new one; what was chosen, and why, is said in one line.

use super::api::{Runtime, RuntimeSpec, SpecKey};
use super::companion::CompanionSettings;
use super::mcp::errors::{Code, Status};
use super::names::{self, reason};
use super::service::Service;
use super::waiting::Waiting;
use crate::backend::{BackendError, ErrorName};

/// What the user wants to run on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackendSettings {
    /// The accelerator's name, such as `T4` or `V5E1`; `None` is a machine without.
    pub accelerator: Option<String>,
    /// Whether it shall have more memory.
    pub highmem: bool,
    /// Which runtime.
    pub runtime: RuntimeChoice,
    /// Whether, and how, the session's kernel is reached beside `execute_code`.
    pub companion: Option<CompanionSettings>,
}

/// Which runtime cells run on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// A running one of the wanted kind, or else a new one.
    #[default]
    Any,
    /// This one, with or without `runtimes/` before its id.
    Named(String),
    /// A new one.
    New,
}

/// What earlier attempts of this process leave for the next choice.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// The runtime that was used last.
    pub used: Option<&'a str>,
    /// A runtime that was listed but is not there.
    pub avoid: Option<&'a str>,
    /// The request id of `create_runtime`, the same until it has succeeded.
    pub request_id: &'a str,
}

/// Finds or creates the runtime.
pub async fn choose<S: Service>(
    service: &S,
    settings: &BackendSettings,
    memory: Memory<'_>,
    waiting: Waiting<'_>,
) -> Result<Runtime, BackendError> {
    let listed = waiting
        .persist("list_runtimes", || service.list_runtimes())
        .await
        .map_err(|status| names::named(&status))?;
    let mut running = listed.clone();
    running.retain(|runtime| Some(runtime.name.as_str()) != memory.avoid);

    if let RuntimeChoice::Named(name) = &settings.runtime {
        let name = full_name(name);
        let Some(runtime) = running.iter().find(|runtime| runtime.name == name) else {
            return Err(no_such_runtime(&name, &running));
        };
        waiting
            .notice(format!("Using {}, as asked", titled(runtime)))
            .await;
        return Ok(runtime.clone());
    }
    let used = memory
        .used
        .and_then(|used| running.iter().find(|runtime| runtime.name == used));
    if let Some(runtime) = used {
        waiting
            .notice(format!("Using {}, as before", titled(runtime)))
            .await;
        return Ok(runtime.clone());
    }
    let wanted = Wanted::of(settings);
    let newest = running
        .iter()
        .rev()
        .find(|runtime| wanted.fits(&runtime.runtime_spec))
        .filter(|_| settings.runtime == RuntimeChoice::Any);
    if let Some(runtime) = newest {
        waiting
            .notice(format!(
                "Using {}, the newest running one of its kind",
                titled(runtime)
            ))
            .await;
        return Ok(runtime.clone());
    }
    create(service, settings, &wanted, &listed, memory, waiting).await
}

async fn create<S: Service>(
    service: &S,
    settings: &BackendSettings,
    wanted: &Wanted,
    running: &[Runtime],
    memory: Memory<'_>,
    waiting: Waiting<'_>,
) -> Result<Runtime, BackendError> {
    let why = match settings.runtime {
        RuntimeChoice::New => "as asked",
        _ => "none of this kind is running",
    };
    waiting
        .notice(format!("Starting a Colab runtime with {wanted}: {why}"))
        .await;
    // The list of kinds is needed for how the service spells one; without it a plain machine can still be asked for.
    let specs = waiting
        .persist("list_runtime_specs", || service.list_runtime_specs())
        .await
        .unwrap_or_default();
    let spec = wanted.spec(&specs)?;
    let mut is_first = true;
    let created = waiting
        .persist("create_runtime", || {
            let looks_first = !std::mem::replace(&mut is_first, false);
            create_once(service, &spec, running, memory.request_id, looks_first)
        })
        .await;
    created.map_err(|status| refused(&status, wanted, running, &specs))
}

/// One attempt to create a runtime; after a failed one, what that has brought about is looked for first.
async fn create_once<S: Service>(
    service: &S,
    spec: &SpecKey,
    before: &[Runtime],
    request_id: &str,
    looks_first: bool,
) -> Result<Runtime, Status> {
    if looks_first {
        let mut now = service.list_runtimes().await?;
        now.retain(|runtime| {
            runtime.runtime_spec == *spec && before.iter().all(|old| old.name != runtime.name)
        });
        if let Some(runtime) = now.pop() {
            return Ok(runtime);
        }
    }
    service.create_runtime(spec, request_id, before).await
}

/// Why `create_runtime` was refused.
fn refused(
    status: &Status,
    wanted: &Wanted,
    running: &[Runtime],
    specs: &[RuntimeSpec],
) -> BackendError {
    let limits = [reason::TOO_MANY, reason::USAGE_TIME, reason::DENYLISTED];
    if limits.iter().any(|limit| names::has_reason(status, limit)) {
        let running: Vec<String> = running.iter().map(named_with_spec).collect();
        return names::quota(status, &running);
    }
    match (status.code, &wanted.accelerator) {
        (Code::FailedPrecondition, Some(_)) => names::accelerator(
            &wanted.to_string(),
            &format!("Colab refused it{}", names::said(status)),
            &eligible(specs),
        ),
        (Code::FailedPrecondition, None) => names::quota(status, &[]),
        _ => names::named(status),
    }
}

fn no_such_runtime(name: &str, running: &[Runtime]) -> BackendError {
    let choice = if running.is_empty() {
        "No runtime is running: leave out --runtime (and COLAB_KERNEL_RUNTIME) to start one"
            .to_owned()
    } else {
        let names: Vec<String> = running.iter().map(named_with_spec).collect();
        format!(
            "Running now: {}. Pick one with --runtime NAME (or COLAB_KERNEL_RUNTIME=NAME), or leave it out",
            names.join(", ")
        )
    };
    BackendError::new(
        ErrorName::ColabRuntimeLost,
        format!("There is no Colab runtime {name} (any more). {choice}."),
    )
}

/// The kind of machine that is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted {
    accelerator: Option<String>,
    highmem: bool,
}

impl Wanted {
    fn of(settings: &BackendSettings) -> Self {
        let accelerator = settings
            .accelerator
            .as_deref()
            .map(str::trim)
            .filter(|name| !is_none(name) && !name.eq_ignore_ascii_case("cpu"));
        Self {
            accelerator: accelerator.map(str::to_owned),
            highmem: settings.highmem,
        }
    }

    fn fits(&self, key: &SpecKey) -> bool {
        self.same_accelerator(key) && self.highmem == is_highmem(key)
    }

    fn same_accelerator(&self, key: &SpecKey) -> bool {
        match &self.accelerator {
            Some(name) => key.accelerator.eq_ignore_ascii_case(name),
            None => is_none(&key.accelerator),
        }
    }

    /// The configuration to ask for, in the service's spelling.
    fn spec(&self, specs: &[RuntimeSpec]) -> Result<SpecKey, BackendError> {
        let known: Vec<&RuntimeSpec> = specs
            .iter()
            .filter(|spec| self.same_accelerator(&spec.key))
            .collect();
        let exact = known.iter().find(|spec| self.fits(&spec.key));
        // Some accelerators come with one amount of memory only; more than asked for is no harm.
        let larger = known
            .iter()
            .find(|spec| spec.eligible && !self.highmem && self.accelerator.is_some());
        match (exact, larger) {
            (Some(spec), _) if spec.eligible => Ok(spec.key.clone()),
            (_, Some(spec)) => Ok(spec.key.clone()),
            (Some(_), None) => Err(self.unavailable("this account may not have it", specs)),
            (None, None) if specs.is_empty() || self.is_default() => Ok(self.guess()),
            (None, None) => Err(self.unavailable("Colab does not offer it", specs)),
        }
    }

    fn is_default(&self) -> bool {
        self.accelerator.is_none() && !self.highmem
    }

    fn unavailable(&self, why: &str, specs: &[RuntimeSpec]) -> BackendError {
        names::accelerator(&self.to_string(), why, &eligible(specs))
    }

    /// The configuration where the service lists none.
    fn guess(&self) -> SpecKey {
        let variant = match self.accelerator.as_deref() {
            None => "VARIANT_CPU",
            Some(name) if is_tpu(name) => "VARIANT_TPU",
            Some(_) => "VARIANT_GPU",
        };
        SpecKey {
            variant: variant.to_owned(),
            accelerator: self
                .accelerator
                .as_ref()
                .map_or_else(|| "NONE".to_owned(), |name| name.to_ascii_uppercase()),
            shape: if self.highmem {
                "SHAPE_HIGHMEM"
            } else {
                "SHAPE_STANDARD"
            }
            .to_owned(),
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.accelerator.as_deref().unwrap_or("CPU"))?;
        if self.highmem {
            f.write_str(" and high memory")?;
        }
        Ok(())
    }
}

/// TPU names begin with their version: `V2-8`, `V5E1`, `V6E1`. (`V100` is a GPU.)
fn is_tpu(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let Some(rest) = name.strip_prefix('V') else {
        return name.starts_with("TPU");
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    digits == 1 && rest.len() > 1
}

fn is_none(accelerator: &str) -> bool {
    accelerator.is_empty() || accelerator.eq_ignore_ascii_case("none")
}

fn is_highmem(key: &SpecKey) -> bool {
    key.shape.to_ascii_uppercase().ends_with("HIGHMEM")
}

fn eligible(specs: &[RuntimeSpec]) -> Vec<String> {
    specs
        .iter()
        .filter(|spec| spec.eligible)
        .map(|spec| kind(&spec.key))
        .collect()
}

/// A kind in words: `T4`, `CPU, high memory`.
fn kind(key: &SpecKey) -> String {
    let name = if is_none(&key.accelerator) {
        "CPU"
    } else {
        &key.accelerator
    };
    let memory = if is_highmem(key) { " high memory" } else { "" };
    format!("{name}{memory}")
}

fn named_with_spec(runtime: &Runtime) -> String {
    format!("{} ({})", runtime.name, kind(&runtime.runtime_spec))
}

fn titled(runtime: &Runtime) -> String {
    format!("the Colab runtime {}", named_with_spec(runtime))
}

/// `runtimes/{id}`, whichever way the user wrote it.
fn full_name(name: &str) -> String {
    let id = name.trim().trim_start_matches("runtimes/");
    format!("runtimes/{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(accelerator: &str, shape: &str, eligible: bool) -> RuntimeSpec {
        let variant = match accelerator {
            "NONE" => "VARIANT_CPU",
            "V5E1" => "VARIANT_TPU",
            _ => "VARIANT_GPU",
        };
        RuntimeSpec {
            key: SpecKey {
                variant: variant.into(),
                accelerator: accelerator.into(),
                shape: format!("SHAPE_{shape}"),
            },
            eligible,
        }
    }

    fn specs() -> Vec<RuntimeSpec> {
        vec![
            spec("NONE", "STANDARD", true),
            spec("NONE", "HIGHMEM", false),
            spec("T4", "STANDARD", true),
            spec("A100", "HIGHMEM", true),
            spec("H100", "HIGHMEM", false),
            spec("V5E1", "STANDARD", true),
        ]
    }

    fn wanted(accelerator: Option<&str>, highmem: bool) -> Wanted {
        Wanted::of(&BackendSettings {
            accelerator: accelerator.map(str::to_owned),
            highmem,
            runtime: RuntimeChoice::Any,
            companion: None,
        })
    }

    #[test]
    fn a_kind_is_looked_up_whatever_its_case() {
        for (name, expected) in [
            (None, "NONE"),
            (Some("cpu"), "NONE"),
            (Some("NONE"), "NONE"),
            (Some("t4"), "T4"),
            (Some("v5e1"), "V5E1"),
            (Some("a100"), "A100"),
        ] {
            let key = wanted(name, false).spec(&specs()).unwrap();
            assert_eq!(key.accelerator, expected);
        }
    }

    #[test]
    fn what_is_not_offered_names_what_is() {
        for (name, highmem) in [
            (Some("h100"), false),
            (Some("L4"), false),
            (Some("T4"), true),
            (None, true),
        ] {
            let error = wanted(name, highmem).spec(&specs()).unwrap_err();
            assert_eq!(error.name, ErrorName::ColabAcceleratorUnavailable);
            assert!(error.message.contains("CPU, T4, A100 high memory, V5E1"));
        }
    }

    #[test]
    fn without_a_list_the_variant_follows_from_the_name() {
        for (name, variant) in [
            (None, "VARIANT_CPU"),
            (Some("t4"), "VARIANT_GPU"),
            (Some("V100"), "VARIANT_GPU"),
            (Some("V2-8"), "VARIANT_TPU"),
            (Some("v6e1"), "VARIANT_TPU"),
        ] {
            assert_eq!(wanted(name, false).spec(&[]).unwrap().variant, variant);
        }
    }

    #[test]
    fn absent_fields_mean_a_plain_machine() {
        assert!(wanted(None, false).fits(&SpecKey::default()));
        assert!(!wanted(Some("T4"), false).fits(&SpecKey::default()));
    }

    #[test]
    fn names_come_with_or_without_their_prefix() {
        assert_eq!(full_name("abc"), "runtimes/abc");
        assert_eq!(full_name(" runtimes/abc "), "runtimes/abc");
    }
}
