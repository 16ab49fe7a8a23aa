//! `distlock man` and `distlock completions`: what a packager installs beside the program.

use clap::CommandFactory;

use crate::args::{Args, Completions, Man};
use crate::exit::{Exit, Failure, print};

/// Writes a manual page for the command and each of its subcommands into a folder.
pub(crate) fn man(args: &Man) -> Result<Exit, Failure> {
    let written = clap_mangen::generate_to(Args::command(), &args.dir);
    let dir = args.dir.display();
    written.map_err(|error| Failure::system(&format!("cannot write to {dir}"), &error))?;
    Ok(Exit::SUCCESS)
}

/// Writes what a shell needs to complete the arguments to standard output.
pub(crate) fn completions(args: &Completions) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "distlock", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(Exit::SUCCESS)
}
