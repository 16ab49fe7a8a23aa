//! Runs rows one after another, each in a process of its own, and writes the report.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::judge::{HEAD, LOAD_OVER, REMARKS};
use super::legend::LEGEND;
use super::problems::{is_open, reasons, settle, verdict_of};
use super::rows::packets::{IN_NAMESPACE, Namespace};
use super::rows::{self, NOT_RUN, Row, versions};
use super::tune::Size;

/// The seed of a run that is given none: two of them test the same, and a full run that was
/// interrupted goes on. A soak looks for what no run has shown yet, so each one draws a new seed.
const SEED: u64 = 1;
/// How many rows that mostly wait run at once in a quick run.
const AT_ONCE: usize = 3;

/// Arguments: a seed, and numbers of rows. Without arguments: the usual seed and every row. The
/// exit status: 0 if every row is green.
pub fn run(size: Size, arguments: &[&str]) -> i32 {
    let mut numbers =
        arguments.iter().map(|word| word.parse::<u64>().expect("a seed, then numbers of rows"));
    let seed = numbers.next().unwrap_or_else(|| usual_seed(size));
    let wanted: Vec<u64> = numbers.collect();
    println!("seed {seed}");
    let rows: Vec<_> = rows::all()
        .into_iter()
        .filter(|row| wanted.is_empty() || wanted.contains(&u64::from(row.number)))
        .collect();
    let started = Instant::now();
    let needs_namespace = rows.iter().any(|row| row.namespace != Namespace::No);
    let run = Run {
        size,
        seed,
        chosen: !wanted.is_empty(),
        missing: needs_namespace.then(rows::packets::missing).flatten(),
        pieces: (size == Size::Full).then(|| pieces(seed)).flatten(),
    };
    println!("{HEAD}");
    let mut not_run: Vec<(u32, &str)> = NOT_RUN.to_vec();
    let (out, to_run): (Vec<_>, Vec<_>) =
        rows.iter().map(|row| (row, run.why_not(row))).partition(|(_, why_not)| why_not.is_some());
    for (row, why) in out.into_iter().filter_map(|(row, why)| Some((row, why?))) {
        println!("row {} not run: {why}", row.number);
        not_run.push((row.number, why));
    }
    let rows: Vec<&Row> = to_run.into_iter().map(|(row, _)| row).collect();
    let (mut lines, mut took) = (Vec::new(), 0);
    run.lines(&rows, &mut |seconds, line| {
        if !run.runs_again(&line) {
            say(&line);
        }
        took += seconds;
        lines.push(line);
    });
    took += run.settle(&rows, &mut lines);
    let red = lines.iter().filter(|line| verdict_of(line).is_some()).count();
    println!("{} green, {red} red in {} s", lines.len() - red, started.elapsed().as_secs());
    if let Ok(path) = std::env::var("FAULTS_REPORT") {
        fs::write(&path, report(size, seed, &lines, &not_run, took))
            .expect("the report can be written");
        println!("written: {path}");
    }
    i32::from(red > 0 || lines.is_empty())
}

fn usual_seed(size: Size) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    if size == Size::Soak { now.as_secs() } else { SEED }
}

/// Prints a line for those who watch the run, too.
fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

/// What all rows of a run have in common.
struct Run {
    size: Size,
    seed: u64,
    /// Whether the rows were given by their numbers.
    chosen: bool,
    /// What is missing for rows in a namespace.
    missing: Option<&'static str>,
    pieces: Option<PathBuf>,
}

impl Run {
    fn why_not(&self, row: &Row) -> Option<&'static str> {
        match row.number {
            versions::NUMBER if versions::found().is_empty() => {
                Some("tests/faults/servers has fetched none")
            }
            // Nine rows in one take a minute, which is too much for a quick run.
            versions::NUMBER if self.size == Size::Quick && !self.chosen => Some("in `full` only"),
            _ => self.missing.filter(|_| row.namespace == Namespace::Must),
        }
    }

    /// Runs rows one after another, and those that mostly wait a few at once in a quick run. `done`
    /// gets each of them, in their order: how long it took, and its line.
    fn lines(&self, rows: &[&Row], done: &mut dyn FnMut(u64, String)) {
        let beside = |row: &Row| self.size == Size::Quick && row.waits;
        let groups = rows.chunk_by(|a, b| beside(a) && beside(b));
        thread::scope(|scope| {
            let mut running = Vec::new();
            for group in groups.flat_map(|group| group.chunks(AT_ONCE)) {
                let (over, is_over) = mpsc::channel::<()>();
                for row in group {
                    let over = over.clone();
                    running.push(scope.spawn(move || self.line(row, over)));
                }
                drop(over);
                // Nothing is sent: the load of these rows is over when nobody could.
                let _ = is_over.recv();
                // Only these rows may still be under way when the next ones begin.
                let ended = running.len() - group.len();
                for row in running.drain(..ended) {
                    let (seconds, line) = row.join().expect("it gives a line");
                    done(seconds, line);
                }
            }
            for row in running {
                let (seconds, line) = row.join().expect("it gives a line");
                done(seconds, line);
            }
        });
    }

    /// Whether the row with this line runs again: a row of a soak takes too long for that.
    fn runs_again(&self, line: &str) -> bool {
        self.size != Size::Soak && is_open(line)
    }

    /// Runs the rows whose lines are open again, alone, so that nothing else keeps the machine
    /// busy: first with the same seed, then with the next one. Returns how long that took.
    fn settle(&self, rows: &[&Row], lines: &mut [String]) -> u64 {
        let (mut took, mut flaky) = (0, Vec::new());
        for (row, line) in rows.iter().zip(lines) {
            if !self.runs_again(line) {
                continue;
            }
            let begun = Instant::now();
            let (last, how) = settle(std::mem::take(line), |before, seeds| {
                let seed = self.seed + seeds;
                say(&format!("again: row {} with seed {seed}: {}", row.number, reasons(before)));
                self.once(row, seed, None)
            });
            say(&last);
            let seconds = begun.elapsed().as_secs();
            self.keep(row, seconds, &last);
            took += seconds;
            flaky.push(format!("{} ({how})", row.number));
            *line = last;
        }
        if !flaky.is_empty() {
            say(&format!("flaky: {}", flaky.join(", ")));
        }
        took
    }

    /// Runs a row, unless its piece is known: how long that took, and its line. In a quick run
    /// `over` is dropped once its load is over. Then it only waits for leases to end, and judges,
    /// and the next row may begin.
    fn line(&self, row: &Row, over: Sender<()>) -> (u64, String) {
        // A row that is given by its number runs again.
        let known = self
            .piece(row)
            .filter(|_| !self.chosen)
            .and_then(|piece| fs::read_to_string(piece).ok())
            .and_then(|piece| Some((piece.lines().nth(1)?.parse().ok()?, piece)));
        if let Some((seconds, piece)) = known {
            return (seconds, piece.lines().take(1).collect());
        }
        let begun = Instant::now();
        let line = self.once(row, self.seed, Some(over));
        let seconds = begun.elapsed().as_secs();
        if !self.runs_again(&line) {
            self.keep(row, seconds, &line);
        }
        (seconds, line)
    }

    /// Runs a row once, and gives its line.
    fn once(&self, row: &Row, seed: u64, over: Option<Sender<()>>) -> String {
        if row.number == versions::NUMBER {
            return on_each(seed, &versions::found());
        }
        let in_namespace = row.namespace != Namespace::No && self.missing.is_none();
        one(self.size, seed, row, in_namespace, None, over)
    }

    /// Where the line of this row is kept.
    fn piece(&self, row: &Row) -> Option<PathBuf> {
        self.pieces.as_ref().map(|dir| dir.join(row.number.to_string()))
    }

    fn keep(&self, row: &Row, seconds: u64, line: &str) {
        if let Some(piece) = self.piece(row) {
            fs::write(piece, format!("{line}\n{seconds}")).expect("a piece can be written");
        }
    }
}

/// Where the lines of a full run are kept until it is whole, so that an interrupted run can be
/// resumed with its seed; none if the sources are not those of a commit.
fn pieces(seed: u64) -> Option<PathBuf> {
    let commit = said("git", &["describe", "--always", "--dirty", "--exclude=*"]);
    if commit.is_empty() || commit.ends_with("-dirty") {
        return None;
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{commit}-{seed}"));
    fs::create_dir_all(&dir).expect("a directory for the pieces");
    Some(dir)
}

/// The rows for other servers, on each of them: nine in all, so each is a quick one.
fn on_each(seed: u64, servers: &[(String, PathBuf)]) -> String {
    let rows: Vec<_> =
        rows::all().into_iter().filter(|row| versions::ROWS.contains(&row.number)).collect();
    let each = |(name, program): &(String, PathBuf)| -> Vec<_> {
        rows.iter()
            .map(|row| {
                let line = one(Size::Quick, seed, row, false, Some(program), None);
                (name.clone(), row.number, line)
            })
            .collect()
    };
    versions::together(&servers.iter().flat_map(each).collect::<Vec<_>>())
}

/// Runs a row, on this server or the usual one, and returns its line; a red line if the row gave
/// none.
fn one(
    size: Size,
    seed: u64,
    row: &Row,
    in_namespace: bool,
    server: Option<&Path>,
    over: Option<Sender<()>>,
) -> String {
    attempt(size, seed, row, in_namespace, server, over).unwrap_or_else(|why| {
        format!(
            "| {} | {} | {} |{} {why} | red |",
            row.number,
            row.class,
            row.name,
            " |".repeat(REMARKS - 4)
        )
    })
}

/// Runs one row in a process of its own: nothing outlives that process, and a driver that dies is a
/// red row.
fn attempt(
    size: Size,
    seed: u64,
    row: &Row,
    in_namespace: bool,
    server: Option<&Path>,
    mut over: Option<Sender<()>>,
) -> Result<String, String> {
    let (number, word) = (row.number, format!("{size:?}").to_lowercase());
    let program = std::env::current_exe().expect("the driver's own program");
    let mut command = Command::new(&program);
    if in_namespace {
        command = Command::new(IN_NAMESPACE[0]);
        command.args(&IN_NAMESPACE[1..]).arg(&program);
    }
    command.envs(server.map(|server| ("DISTLOCK_REDIS_SERVER", server)));
    let _clock = rows::time::SHIMMED.contains(&number).then(|| shim(&mut command)).transpose()?;
    let mut child = command
        .args(["row", &word, &(seed ^ u64::from(number) << 32).to_string(), &number.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the row did not start: {error}"))?;
    let output = child.stdout.take().expect("stdout is a pipe");
    let found = BufReader::new(output)
        .lines()
        .map_while(Result::ok)
        .inspect(|line| {
            if line == LOAD_OVER && size == Size::Quick {
                over = None;
            }
        })
        .find_map(|line| line.strip_prefix("LINE ").map(str::to_owned));
    let status = child.wait().map_err(|error| error.to_string())?;
    found.filter(|_| status.success()).ok_or_else(|| format!("the driver failed: {status}"))
}

/// Lets the row start its servers with wall clocks that it can move, each by a file named after its
/// port. The files exist as long as the returned value.
fn shim(command: &mut Command) -> Result<tempfile::TempDir, String> {
    let shim = std::env::var("FAULTS_SHIM")
        .map_err(|_| "the clock shim is built by tests/faults/run".to_owned())?;
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let server = dir.path().join("redis-server");
    let redis = std::env::var("DISTLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    let script = format!(
        "#!/bin/sh\nport=${{*#*--port }}; port=${{port%% *}}; clock='{}'/$port\n\
         [ -e \"$clock\" ] || head -c 8 /dev/zero >\"$clock\"\n\
         LD_PRELOAD='{shim}' FAULTS_CLOCK=$clock exec '{redis}' \"$@\"\n",
        dir.path().display()
    );
    fs::write(&server, script).map_err(|error| error.to_string())?;
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&server, executable).map_err(|error| error.to_string())?;
    command.env("FAULTS_CLOCKS", dir.path()).env("DISTLOCK_REDIS_SERVER", server);
    Ok(dir)
}

/// The version that a program prints.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or("unknown".into(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

fn report(size: Size, seed: u64, lines: &[String], not_run: &[(u32, &str)], took: u64) -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("", |line| line.trim_start_matches(['\t', ' ', ':']));
    let mut text = String::from(
        "# Faults\n\nWritten by `tests/faults/run`; what each row does is in the driver, \
         `tests/faults/rows`.\n\n",
    );
    let server = std::env::var("DISTLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    for (what, value) in [
        ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("size", format!("{size:?}").to_lowercase()),
        (
            "seed",
            format!(
                "{seed} (again: `tests/faults/run {} {seed}`)",
                format!("{size:?}").to_lowercase()
            ),
        ),
        ("took", format!("{took} s, all rows together")),
        ("machine", format!("{cpus} CPUs, {model}, {}", said("uname", &["-sr"]))),
        ("server", said(&server, &["--version"])),
        ("rustc", said("rustc", &["--version"])),
        (
            "distlock",
            format!(
                "{} {}",
                env!("CARGO_PKG_VERSION"),
                said("git", &["describe", "--always", "--dirty", "--exclude=*"])
            ),
        ),
    ] {
        text += &format!("- {what}: {value}\n");
    }
    text += &format!("\n{LEGEND}\n{HEAD}\n{}\n\nNot run:\n\n", lines.join("\n"));
    for (number, why) in not_run {
        text += &format!("- {number}: {why}\n");
    }
    text
}
