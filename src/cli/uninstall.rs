//! `colab-kernel uninstall`: takes back what `install` did.

use std::io::Write;

use anyhow::bail;

use super::kernelspec::{Environment, Found, Place, checked_name, inspect, scratch, set_aside};

/// Take the kernel away from Jupyter, VS Code and other front-ends.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub place: Place,

    /// Name of the kernelspec
    #[arg(long, value_name = "NAME", default_value = "colab")]
    pub name: String,
}

/// Removes the kernelspec and says so.
pub fn run(args: Args) -> anyhow::Result<()> {
    uninstall(&args, &Environment::from_process(), &mut std::io::stdout())
}

/// Removes the kernelspec from where this environment points.
pub fn uninstall(
    args: &Args,
    environment: &Environment,
    output: &mut impl Write,
) -> anyhow::Result<()> {
    let name = checked_name(&args.name)?;
    let data_dir = environment.data_dir(&args.place)?;
    let directory = data_dir.join("kernels").join(&name);
    match inspect(&directory)? {
        Found::Nothing => bail!(
            "There is no kernelspec in {}\n\
             If it was installed elsewhere, say where with --sys-prefix, --prefix DIR or --name NAME; \
             jupyter kernelspec list shows all",
            directory.display()
        ),
        Found::Foreign(why) => bail!(
            "{} is not a kernelspec of colab-kernel: {why}\n\
             To remove it all the same: jupyter kernelspec remove {name}",
            directory.display()
        ),
        Found::Ours => {}
    }
    let scratch = scratch(&data_dir)?;
    set_aside(&directory, scratch.path())?;
    // What is left of it is out of the way; a failure to delete it is told all the same.
    scratch.close()?;
    let _ = writeln!(output, "Removed {}", directory.display());
    Ok(())
}
