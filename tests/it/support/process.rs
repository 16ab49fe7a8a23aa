//! A child process that cannot outlive the test, however the test ends.
//!
//! A destructor is not enough: it does not run when the test binary is killed by SIGKILL or aborts.
//! The kernel's parent-death signal (`setpriv --pdeathsig`) is wrong here as well: it fires when
//! the *thread* that started the child ends, and every test runs in a thread of its own. So each
//! child is started by a small shell that waits for lines on a pipe whose other end only this
//! process holds. However this process ends, the kernel closes that end, the shell reads
//! end-of-file, kills its child and removes its directory. The shell does not reap the child before
//! that, so meanwhile no other process can get the child's id; signals go through the shell for the
//! same reason. It is in a process group of its own, so that Ctrl-C in a terminal cannot end it
//! before its work is done, and it ignores SIGHUP: the kernel sends one to a group that loses its
//! parent while a member is stopped, and a frozen server would otherwise outlive us. It ignores the
//! signal only after it has started the child, as the child must not inherit that.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::eventually;

const GUARD: &str = r#"
dir=$1; log=$2; shift 2
"$@" </dev/null >>"$log" 2>&1 &
pid=$!
trap '' HUP INT QUIT TERM
echo "$pid"
while read -r word; do
    case $word in
        keep) keep=yes ;;
        *) kill -s "$word" "$pid" ;;
    esac
    echo done
done
kill -s KILL "$pid"
wait "$pid"
[ "$keep" ] || rm -rf "$dir"
"#;

/// A running child process; killed (and its directory removed) when dropped, or when this process
/// dies.
pub struct Guarded {
    shell: Child,
    /// Our end of the pipe. Closing it is what kills the child.
    say: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
    pid: u32,
}

impl Guarded {
    /// Starts `program`, found in the path, with its output appended to `dir/output.log`.
    pub fn start(dir: &Path, program: &str, args: &[String]) -> Guarded {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", GUARD, "guard"])
            .arg(dir)
            .arg(dir.join("output.log"))
            .arg(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("/bin/sh runs");
        let say = shell.stdin.take();
        let mut hear = BufReader::new(shell.stdout.take().expect("stdout is a pipe"));
        let mut line = String::new();
        hear.read_line(&mut line).expect("the guard tells the child's id");
        let pid = line.trim().parse().expect("the guard tells a number");
        Guarded { shell, say, hear, pid }
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal (`"TERM"`, `"USR1"`, …). Returns once it has been sent.
    pub fn signal(&mut self, name: &str) {
        let say = self.say.as_mut().expect("the pipe is open until the drop");
        writeln!(say, "{name}").expect("the guard listens");
        let mut line = String::new();
        self.hear.read_line(&mut line).expect("the guard answers");
        assert_eq!(line, "done\n");
    }

    /// Freezes the child. Returns once all its threads have stopped.
    pub fn stop(&mut self) {
        self.signal("STOP");
        eventually(Duration::from_secs(20), || state(self.pid) == Some('T'));
    }

    /// Continues a frozen child.
    pub fn cont(&mut self) {
        self.signal("CONT");
    }

    /// Whether the child still exists, running or frozen, and has not ended by itself.
    pub fn is_running(&self) -> bool {
        is_running(self.pid)
    }

    /// Kills the child with SIGKILL and returns once it is gone. The directory stays.
    pub fn kill_and_keep_dir(mut self) {
        self.signal("keep");
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.say.take());
        let _ = self.shell.wait();
    }
}

/// Ends a forked child with this code, as another program: `exit` would lock what the standard
/// library knows of threads, and one of the parent's threads may have held that lock when the child
/// was copied.
pub fn end_forked(code: i32) -> ! {
    let _ = Command::new("/bin/sh").args(["-c", &format!("exit {code}")]).exec();
    std::process::abort()
}

/// Whether a process with this id runs; false for one that has ended and only waits to be reaped.
pub fn is_running(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The state letter in `/proc/pid/stat`, which follows the name in parentheses.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
