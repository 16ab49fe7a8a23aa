//! The examples do what they say, leave nothing behind, and answer bad input with one line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

use super::support::Server;

/// The folder of the examples. They have been built when this returns: `cargo test` builds them
/// too, but `cargo test --test it` does not, and would run old ones.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/debug/deps/it-0123456789abcdef
        let this = env::current_exe().unwrap();
        let folder = this.ancestors().nth(2).unwrap();
        // Whoever has just built them can say so: a build here would take time from the tests that
        // run beside it.
        if env::var("DISTLOCK_EXAMPLES_BUILT").is_ok_and(|built| built == "1") {
            return folder.join("examples");
        }
        let profile = folder.file_name().unwrap().to_str().unwrap();
        let profile = if profile == "debug" { "dev" } else { profile };
        let mut build = Command::new(env!("CARGO"));
        // The variables that cargo has set for this test would make build scripts run again (ring's
        // script watches them), and everything that depends on them would be built again.
        let ours = |name: &str| {
            ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_PRIMARY_"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
            build.env_remove(name);
        }
        let build = build
            .args([
                "build",
                "--examples",
                "--quiet",
                "--offline",
                "--profile",
                profile,
                "--target-dir",
            ])
            .arg(folder.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .unwrap();
        assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
        folder.join("examples")
    })
}

/// The example with these arguments, separated by spaces, and a directory for its temporary files,
/// which must be empty after [`run`].
struct Example {
    command: Command,
    temporary: tempfile::TempDir,
}

impl Example {
    fn new(name: &str, args: &str) -> Self {
        // Short: the path of a unix socket must fit into 108 bytes.
        let temporary = tempfile::Builder::new().prefix("ex").tempdir_in("/tmp").unwrap();
        let mut command = Command::new(built().join(name));
        command
            .args(args.split_whitespace())
            .env_remove("REDIS_URL")
            .env_remove("RUST_LOG")
            .env("TMPDIR", temporary.path());
        Self { command, temporary }
    }

    fn on(mut self, server: &Server) -> Self {
        self.command.env("REDIS_URL", server.url());
        self
    }

    /// Runs it, and returns its standard output.
    #[track_caller]
    fn run(mut self, code: i32) -> String {
        let Output { status, stdout, stderr } = self.command.output().unwrap();
        let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        assert!(!out.contains("DOES NOT AGREE"), "a lost update: {out}{err}");
        assert_eq!(status.code(), Some(code), "{out}{err}");
        assert!(!err.contains("panicked at"), "{err}");
        let left: Vec<_> = fs::read_dir(self.temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        if code == 2 { err } else { out }
    }
}

#[track_caller]
fn says(text: &str, part: &str) {
    assert!(text.contains(part), "does not say {part:?}:\n{text}");
}

#[test]
fn batch_workers_agree_with_one_thread() {
    let out = Example::new("batch_workers", "").run(0);
    says(&out, "The ledger agrees");
    says(&out, "locks in ");
}

#[test]
fn batch_workers_lose_updates_without_the_lock() {
    let out = Example::new("batch_workers", "--unlocked").run(0);
    says(&out, "updates were lost");
    assert!(!out.contains("Without the lock, 0 of"), "{out}");
}

#[test]
fn a_batch_worker_killed_with_the_lock_changes_nothing() {
    let server = Server::start();
    let out = Example::new("batch_workers", "--kill").on(&server).run(0);
    says(&out, "The ledger agrees");
    // The others had to wait until the dead process's lease ran out: so it was killed, and while it
    // held the lock.
    let wait = out.split("the longest wait for one was ").nth(1).unwrap().lines().next().unwrap();
    let seconds: f64 = wait.strip_suffix('s').unwrap().parse().unwrap_or(0.0);
    assert!((1.0..30.0).contains(&seconds), "{out}");
}

#[test]
fn batch_workers_run_without_a_server() {
    // A PATH without redis-server, but with the programs that clean up.
    let path = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/rm", path.path().join("rm")).unwrap();
    let mut example = Example::new("batch_workers", "");
    example.command.env("PATH", path.path());
    let out = example.run(0);
    says(&out, "memory://");
    says(&out, "The ledger agrees");
}

#[test]
fn one_instance_of_the_lottery_draws() {
    let out = Example::new("lottery", "--instances 12").run(0);
    says(&out, "  11 instances see that it is done\nDraws: 1.");
}

#[test]
fn a_long_job_outlives_its_lease() {
    says(&Example::new("long_job", "--seconds 2").run(0), "Done under one lock");
}

#[test]
fn a_frozen_job_learns_of_its_loss_and_the_fence_stops_one_that_does_not_check() {
    let server = Server::start();
    let out = Example::new("long_job", "--freeze").on(&server).run(0);
    says(&out, "it: looks before it writes: lock \"long_job\": the lease was lost");
    says(&out, "it: is told as well, by on_lost: Expired");
    says(&out, "it: writes without a look: refused");
    says(&out, "under the lock: yes");
}

#[test]
fn nobody_reads_a_torn_catalogue() {
    let server = Server::start();
    let out = Example::new("catalogue", "--rebuilds 10").on(&server).run(0);
    says(&out, "Torn reads: 0; all saw whole editions.");
    let out = Example::new("catalogue", "--rebuilds 10 --unlocked").on(&server).run(0);
    says(&out, "of the looks were torn");
    assert!(!out.contains("the lock, 0 of"), "{out}");
}

#[test]
fn exports_keep_to_their_licence_also_when_a_worker_is_killed() {
    let server = Server::start();
    let out = Example::new("exports", "--exports 100").on(&server).run(0);
    says(&out, "Exports done: 100 of 100");
    says(&out, "More than 10 at a time: never.");
    // The dead worker's lease was to run for two thirds of its length at least.
    let free = out.split("free again after ").nth(1).unwrap().split('s').next().unwrap();
    assert!((1.0..30.0).contains(&free.parse::<f64>().unwrap_or(0.0)), "{out}");
    let out = Example::new("exports", "--exports 100 --unlimited").on(&server).run(0);
    says(&out, "the licence was exceeded");
    assert!(!out.contains("by 0 exports"), "{out}");
}

#[test]
fn examples_answer_bad_input_with_one_line() {
    for (name, args) in [
        ("batch_workers", "/no/such/file"),
        ("batch_workers", "--kill --processes 1"),
        ("lottery", "--winners 3 --tickets 2"),
    ] {
        let err = Example::new(name, args).run(2);
        assert!(err.starts_with("error: ") && err.lines().count() == 1, "{err}");
    }
    for url in ["nonsense", "redis://:secret@127.0.0.1:1/"] {
        for name in ["batch_workers", "lottery", "long_job"] {
            let mut example = Example::new(name, "");
            example.command.env("REDIS_URL", url);
            let err = example.run(2);
            assert!(
                err.starts_with("error: ") && err.lines().count() == 1 && !err.contains("secret"),
                "{err}"
            );
        }
    }
}
