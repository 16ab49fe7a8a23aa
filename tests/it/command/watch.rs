//! `distlock watch`: in a terminal and in a pipe.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use super::{Running, Scene, UNTIL_TOLD};
use crate::helpers::SOON;
use crate::support::eventually;

/// A terminal of its own, by a tmux server of its own; it ends with the test.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// Runs this line of shell in it, in a window of this size.
    fn start(scene: &Scene, columns: usize, rows: usize, line: &str) -> Self {
        let terminal = Self { socket: scene.path("tmux").display().to_string() };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let url = format!("DISTLOCK_URL={}", scene.server.url());
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            "-e",
            &url,
            line,
        ]);
        terminal
    }

    #[track_caller]
    fn tmux(&self, args: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).args(args).env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = tmux.output().expect("tmux is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it shows.
    fn shows(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn comes_to_show(&self, what: impl Fn(&str) -> bool) {
        eventually(SOON, || what(&self.shows()));
    }

    fn types(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-S", &self.socket, "kill-server"]).output();
    }
}

fn line(args: &str) -> String {
    // The shell does not end with it.
    format!("trap : INT; {} {args}; echo ended with $?; cat", env!("CARGO_BIN_EXE_distlock"))
}

#[test]
fn in_a_terminal_it_is_a_table_that_changes_until_ctrl_c() {
    let scene = Scene::new();
    let terminal = Terminal::start(&scene, 100, 10, &line("watch --every 100ms"));
    terminal.comes_to_show(|shown| shown.contains("0 held, 0 waiting."));
    let job = scene.start("run job", UNTIL_TOLD);
    let holder = format!("-{}-", job.pid());
    terminal.comes_to_show(|shown| shown.contains(&holder));
    let next = Running::start(scene.distlock("run job", "true"));
    terminal.comes_to_show(|shown| shown.starts_with("1 held, 1 waiting."));
    assert!(!terminal.shows().contains(&format!("-{}-", next.pid())), "only counted");
    scene.tell("end");
    job.end().is(0);
    next.end().is(0);
    terminal.comes_to_show(|shown| shown.contains("0 held, 0 waiting.") && !shown.contains("job"));
    // More than there is room for.
    let many: Vec<_> = (0..20).map(|n| scene.lock(&format!("k{n:02}")).guard().unwrap()).collect();
    terminal.comes_to_show(|shown| shown.contains("… 14 more"));
    let shown = terminal.shows();
    assert!(shown.contains("k05") && !shown.contains("k06"), "{shown}");
    // The server is away for a while: what was seen last stands.
    scene.server.stop_process();
    terminal.comes_to_show(|shown| shown.starts_with("Not updated: ") && shown.contains("k05"));
    scene.server.cont();
    terminal.comes_to_show(|shown| shown.contains("20 held, 0 waiting."));
    terminal.types("C-c");
    terminal.comes_to_show(|shown| shown.contains("more\n^Cended with 130"));
    drop(many);
}

#[test]
fn in_a_pipe_it_writes_one_look_after_another() {
    let scene = Scene::new();
    let guard = scene.lock("job").guard().unwrap();
    let mut command = scene.distlock_alone("watch --every 100ms --json job");
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut kind = || {
        let line = lines.next().unwrap().unwrap();
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        json["kind"].as_str().unwrap().to_owned()
    };
    assert_eq!((kind(), kind()), ("lock".into(), "lock".into()));
    guard.release().unwrap();
    eventually(SOON, || kind() == "free");
    super::signal(watch.id(), "TERM");
    assert_eq!(watch.wait().unwrap().signal(), Some(15));
    // Whoever reads may have read enough.
    let mut command = scene.distlock_alone("watch --every 0s job");
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("KEY"), "{first}");
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_work_at_all_ends_it_at_once() {
    let scene = Scene::new();
    redis::cmd("LPUSH").arg("list").arg(1).exec(&mut scene.server.connection()).unwrap();
    scene.ask("watch list").is(64);
    scene.server.kill();
    scene.ask("watch job").is(69);
}
