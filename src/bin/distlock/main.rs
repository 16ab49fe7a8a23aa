//! `distlock`, the command: a lock around a command of a shell script or a crontab.
#![forbid(unsafe_code)]

#[cfg(not(unix))]
compile_error!("the command needs a Unix: it sends signals");

mod args;
mod exit;
mod force;
mod hold;
mod job;
mod look;
mod pages;
mod run;
mod say;
mod search;
mod server;
mod signals;
mod starter;
mod table;
mod watch;
mod who;

use std::env;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use exit::Exit;
use say::say;

fn main() -> ExitCode {
    let exit = starter::start_if_told(env::args_os()).unwrap_or_else(command);
    say::flush();
    exit.into()
}

fn command() -> Exit {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(told) => {
            // Help and the version were asked for, and go to standard output.
            let exit = if told.use_stderr() { Exit::USAGE } else { Exit::SUCCESS };
            return match told.print() {
                Err(error) if error.kind() != ErrorKind::BrokenPipe => Exit::SYSTEM,
                _ => exit,
            };
        }
    };
    show_log();
    let ended = match args.command {
        Command::Run(args) => run::run(&args),
        Command::Who(args) => who::who(&args),
        Command::Watch(args) => watch::watch(&args),
        Command::Force(args) => force::force(&args),
        Command::Man(args) => pages::man(&args),
        Command::Completions(args) => pages::completions(&args),
    };
    ended.unwrap_or_else(|failure| failure.report())
}

/// Shows what the crate logs at `warn`, or as `DISTLOCK_LOG` says: `RUST_LOG` may be CMD's.
fn show_log() {
    let filter = env_logger::Env::new().filter_or("DISTLOCK_LOG", "warn");
    let mut log = env_logger::Builder::from_env(filter);
    log.format(|_, record| {
        say(format_args!("{}", record.args()));
        Ok(())
    });
    log.init();
}
