//! The first step of the process that becomes CMD.
//!
//! The kernel can kill a process when its parent dies, but only the process itself can ask for it,
//! between its start and CMD. The standard library has no safe way to run code there. So this
//! program starts itself, asks, and becomes CMD.

use std::env;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::exit::Exit;
use crate::say::say;

/// The first argument of this program when it is to become CMD.
const BECOME: &str = "__become";

/// The command that starts CMD. `dies_with_us`: the kernel kills CMD if this process ends before
/// it, where the kernel can do that.
pub(crate) fn starter(cmd: &[OsString], dies_with_us: bool) -> io::Result<Command> {
    let mut starter = Command::new(this_program()?);
    let parent = if dies_with_us { process::id() } else { 0 };
    starter.arg(BECOME).arg(parent.to_string()).args(cmd);
    Ok(starter)
}

/// The file of this program. On Linux by a link that reaches it even after the file was replaced;
/// where `/proc` is not mounted, as this process was called.
fn this_program() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        return Ok(link.into());
    }
    let called = || env::args_os().next().map(PathBuf::from);
    env::current_exe().or_else(|error| called().ok_or(error))
}

/// Becomes CMD if these are the arguments of a [`starter`]; returns only if that failed.
pub(crate) fn start_if_told(mut args: impl Iterator<Item = OsString>) -> Option<Exit> {
    if args.nth(1)? != BECOME {
        return None;
    }
    let parent = args.next()?.to_str()?.parse().ok()?;
    let program = args.next()?;
    if parent != 0 && !dies_with(parent) {
        say(format_args!("the process that holds the lock has ended"));
        return Some(Exit::LOST);
    }
    let error = Command::new(&program).args(args).exec();
    say(format_args!("{}: {error}", program.display()));
    let is_there = error.kind() != ErrorKind::NotFound;
    Some(if is_there { Exit::NOT_EXECUTABLE } else { Exit::NOT_FOUND })
}

/// Has the kernel kill this process when its parent ends. `false`: that has ended already.
#[cfg(target_os = "linux")]
fn dies_with(parent: i32) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have ended before the kernel knew: then this process has another parent.
    getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent)
}

/// Other kernels do not.
#[cfg(not(target_os = "linux"))]
fn dies_with(_parent: i32) -> bool {
    true
}
