//! `colab-kernel install`: makes the kernel known to Jupyter's front-ends.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use super::kernelspec::{
    Environment, Found, LOGOS, Place, TEMPLATE, checked_name, inspect, scratch, set_aside,
};
use crate::auth;

/// Make the kernel known to Jupyter, VS Code and other front-ends.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: Place,

    /// Name of the kernelspec, as in `jupyter nbconvert --ExecutePreprocessor.kernel_name=NAME`
    #[arg(long, value_name = "NAME", default_value = "colab")]
    pub name: String,

    /// Name that front-ends show
    #[arg(long, value_name = "TEXT")]
    pub display_name: Option<String>,

    /// Accelerator of the runtime, such as T4 or A100
    #[arg(long, value_name = "NAME")]
    pub accelerator: Option<String>,

    /// Use a runtime with more memory
    #[arg(long)]
    pub highmem: bool,

    /// Runtime to use: its name, or `new`
    #[arg(long, value_name = "NAME")]
    pub runtime: Option<String>,

    /// MCP endpoint to use instead of Colab's
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,

    /// Environment variable that the kernel is started with (may be repeated)
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
}

/// Installs the kernelspec and says where, and what to do next.
pub fn run(args: Args) -> anyhow::Result<()> {
    install(&args, &Environment::from_process(), &mut std::io::stdout())
}

/// Installs the kernelspec where this environment points.
pub fn install(
    args: &Args,
    environment: &Environment,
    output: &mut impl Write,
) -> anyhow::Result<()> {
    let name = checked_name(&args.name)?;
    let data_dir = environment.data_dir(&args.place)?;
    let spec = spec(args, &environment.executable()?)?;
    let directory = data_dir.join("kernels").join(&name);

    let found = inspect(&directory)?;
    if let Found::Foreign(why) = &found {
        bail!(
            "{} is not a kernelspec of colab-kernel: {why}\n\
             Choose another name with --name, or remove it with: jupyter kernelspec remove {name}",
            directory.display()
        );
    }
    write(&spec, &directory, &data_dir, found == Found::Ours)?;

    let shown = spec["display_name"].as_str().unwrap_or_default();
    let mut lines = vec![
        format!(
            "Installed the kernel \"{shown}\" in {}",
            directory.display()
        ),
        format!(
            "Next: start jupyter lab and pick \"{shown}\", or choose it as the kernel in VS Code"
        ),
    ];
    if args.place.prefix.is_some() {
        lines.push(format!(
            "If it is not offered there: set JUPYTER_PATH={}",
            data_dir.display()
        ));
    }
    // A closed terminal changes nothing of what was done.
    let _ = writeln!(output, "{}", lines.join("\n"));
    Ok(())
}

/// The `kernel.json` for these options.
fn spec(args: &Args, executable: &Path) -> anyhow::Result<Value> {
    let mut spec: Value = serde_json::from_str(TEMPLATE).context("The template is damaged")?;
    let Some(executable) = executable.to_str() else {
        bail!(
            "The path of this program is not valid Unicode, which kernel.json cannot hold: {}\n\
             Move the program to another directory",
            executable.display()
        );
    };
    // VS Code tells a kernel by its arguments: with the same options they stay the same from version to version.
    let mut argv = vec![executable, "kernel", "-f", "{connection_file}"];
    for (flag, value) in [
        ("--accelerator", &args.accelerator),
        ("--runtime", &args.runtime),
        ("--endpoint", &args.endpoint),
    ] {
        let Some(value) = value.as_deref() else {
            continue;
        };
        if value.trim().is_empty() || value.starts_with('-') {
            bail!("{flag} needs a value, not \"{value}\"");
        }
        if flag == "--endpoint" {
            check_endpoint(value)?;
        }
        argv.extend([flag, value]);
    }
    if args.highmem {
        argv.push("--highmem");
    }
    spec["argv"] = argv.into();

    if let Some(display_name) = &args.display_name {
        // `isDefaultKernelSpec` of the Jupyter extension hides the two others.
        if ["", "Python 3", "Python 3 (ipykernel)"].contains(&display_name.trim()) {
            bail!(
                "\"{display_name}\" cannot be told from a local Python\n\
                 Choose another name, such as --display-name \"Colab T4\""
            );
        }
        spec["display_name"] = display_name.trim().into();
    }
    let env = environment_variables(&args.env)?;
    if !env.is_empty() {
        spec["env"] = env.into();
    }
    Ok(spec)
}

fn check_endpoint(text: &str) -> anyhow::Result<()> {
    let Ok(url) = url::Url::parse(text) else {
        bail!("--endpoint is not a URL: {text}");
    };
    if !["http", "https"].contains(&url.scheme()) {
        bail!("--endpoint is not an http or https URL: {text}");
    }
    if url.password().is_some() || !url.username().is_empty() {
        bail!(
            "--endpoint has a user name or password in it, and a kernelspec is no place for secrets\n\
             Leave it out"
        );
    }
    Ok(())
}

fn environment_variables(pairs: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut variables = Map::new();
    for pair in pairs {
        let Some((name, value)) = pair.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            // The text may be a secret without its name.
            bail!("--env needs NAME=VALUE");
        };
        if name.eq_ignore_ascii_case("COLAB_KERNEL_TOKEN") {
            bail!(
                "A token expires, and a kernelspec is no place for secrets: others may read it\n\
                 Set COLAB_KERNEL_TOKEN where the front-end is started, or sign in instead:\n{}",
                auth::SIGN_IN
            );
        }
        if name.contains('\0') || value.contains('\0') {
            bail!("--env {name} has a NUL character in it");
        }
        variables.insert(name.to_owned(), value.into());
    }
    Ok(variables)
}

/// Writes the files elsewhere and puts them in place together.
fn write(spec: &Value, directory: &Path, data_dir: &Path, replace: bool) -> anyhow::Result<()> {
    let kernels = data_dir.join("kernels");
    fs::create_dir_all(&kernels)
        .with_context(|| format!("{} cannot be made", kernels.display()))?;
    let scratch = scratch(data_dir)?;
    // A directory inside, because the scratch directory itself is readable by its owner only.
    let new = scratch.path().join("new");
    let failed = || format!("{} cannot be written", new.display());
    fs::create_dir(&new).with_context(failed)?;
    let mut text = serde_json::to_string_pretty(spec).context("The kernelspec is not JSON")?;
    text.push('\n');
    fs::write(new.join("kernel.json"), text).with_context(failed)?;
    for (name, bytes) in LOGOS {
        fs::write(new.join(name), bytes).with_context(failed)?;
    }

    let old = if replace {
        Some(set_aside(directory, scratch.path())?)
    } else {
        None
    };
    let placed = fs::rename(&new, directory);
    if let (Err(_), Some(old)) = (&placed, &old) {
        // Better the former one than none.
        let _ = fs::rename(old, directory);
    }
    placed.with_context(|| format!("{} cannot be written", directory.display()))
}
