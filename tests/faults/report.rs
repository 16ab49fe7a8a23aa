//! Runs rows one after another, each in a process of its own, and writes the report.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::judge::{HEAD, REMARKS};
use super::rows::packets::{IN_NAMESPACE, Namespace};
use super::rows::{self, NOT_RUN, Row, versions};
use super::world::Size;

/// Arguments: a seed, and numbers of rows; without, a new seed and every row. The exit status: 0 if every row is green.
pub fn run(size: Size, arguments: &[&str]) -> i32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let mut numbers = arguments.iter().map(|word| word.parse::<u64>().expect("a seed, then numbers of rows"));
    let seed = numbers.next().unwrap_or(now.as_secs());
    let wanted: Vec<u64> = numbers.collect();
    println!("seed {seed}");
    let rows: Vec<_> = rows::all().into_iter().filter(|row| wanted.is_empty() || wanted.contains(&u64::from(row.number))).collect();
    let started = Instant::now();
    let mut lines = Vec::new();
    println!("{HEAD}");
    let mut not_run: Vec<(u32, &str)> = NOT_RUN.to_vec();
    let missing = rows.iter().any(|row| row.namespace != Namespace::No).then(rows::packets::missing).flatten();
    for row in &rows {
        let servers = if row.number == versions::NUMBER { versions::found() } else { Vec::new() };
        let why = match row.number {
            versions::NUMBER if servers.is_empty() => Some("tests/faults/servers has fetched none"),
            // Nine rows in one, and a minute in CI is dear.
            versions::NUMBER if size == Size::Quick && wanted.is_empty() => Some("in `full` only"),
            _ => missing.filter(|_| row.namespace == Namespace::Must),
        };
        if let Some(why) = why {
            println!("row {} not run: {why}", row.number);
            not_run.push((row.number, why));
            continue;
        }
        let in_namespace = row.namespace != Namespace::No && missing.is_none();
        let line = if servers.is_empty() { one(size, seed, row, in_namespace, None) } else { on_each(seed, &servers) };
        println!("{line}");
        let _ = std::io::stdout().flush();
        lines.push(line);
    }
    let red = lines.iter().filter(|line| line.ends_with("| red |")).count();
    println!("{} green, {red} red in {} s", lines.len() - red, started.elapsed().as_secs());
    if let Ok(path) = std::env::var("FAULTS_REPORT") {
        fs::write(&path, report(size, seed, &lines, &not_run, started.elapsed())).expect("the report can be written");
        println!("written: {path}");
    }
    i32::from(red > 0)
}

/// The rows for other servers, on each of them: nine in all, and so each of them quick.
fn on_each(seed: u64, servers: &[(String, PathBuf)]) -> String {
    let rows: Vec<_> = rows::all().into_iter().filter(|row| versions::ROWS.contains(&row.number)).collect();
    let each = |(name, program): &(String, PathBuf)| -> Vec<_> {
        rows.iter().map(|row| (name.clone(), row.number, one(Size::Quick, seed, row, false, Some(program)))).collect()
    };
    versions::together(&servers.iter().flat_map(each).collect::<Vec<_>>())
}

/// Runs a row, on this server or the usual one, and gives its line: a red one if there was none.
fn one(size: Size, seed: u64, row: &Row, in_namespace: bool, server: Option<&Path>) -> String {
    attempt(size, seed, row, in_namespace, server)
        .unwrap_or_else(|why| format!("| {} | {} | {} |{} {why} | red |", row.number, row.class, row.name, " |".repeat(REMARKS - 4)))
}

/// Runs one row in a process of its own: nothing of it outlives it, and a driver that dies is a red row.
fn attempt(size: Size, seed: u64, row: &Row, in_namespace: bool, server: Option<&Path>) -> Result<String, String> {
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
    let found = BufReader::new(output).lines().map_while(Result::ok).find_map(|line| line.strip_prefix("LINE ").map(str::to_owned));
    let status = child.wait().map_err(|error| error.to_string())?;
    found.ok_or_else(|| format!("the driver failed: {status}"))
}

/// Has the row start its servers with wall clocks that it can move, each by a file named after its port. The files last as long as what is returned.
fn shim(command: &mut Command) -> Result<tempfile::TempDir, String> {
    let shim = std::env::var("FAULTS_SHIM").map_err(|_| "the clock shim is built by tests/faults/run".to_owned())?;
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

fn report(size: Size, seed: u64, lines: &[String], not_run: &[(u32, &str)], took: Duration) -> String {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")).map_or("", |line| line.trim_start_matches(['\t', ' ', ':']));
    let mut text =
        String::from("# Faults\n\nWritten by `tests/faults/run`; what each row means is in the driver, `tests/faults/rows`.\n\n");
    let server = std::env::var("DISTLOCK_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    for (what, value) in [
        ("date", said("date", &["-u", "+%Y-%m-%d %H:%M UTC"])),
        ("size", format!("{size:?}").to_lowercase()),
        ("seed", format!("{seed} (again: `tests/faults/run {} {seed}`)", format!("{size:?}").to_lowercase())),
        ("took", format!("{} s", took.as_secs())),
        ("machine", format!("{cpus} CPUs, {model}, {}", said("uname", &["-sr"]))),
        ("server", said(&server, &["--version"])),
        ("rustc", said("rustc", &["--version"])),
        ("distlock", format!("{} {}", env!("CARGO_PKG_VERSION"), said("git", &["describe", "--always", "--dirty", "--exclude=*"]))),
    ] {
        text += &format!("- {what}: {value}\n");
    }
    text += &format!("\n{HEAD}\n{}\n\nNot run:\n\n", lines.join("\n"));
    for (number, why) in not_run {
        text += &format!("- {number}: {why}\n");
    }
    text
}
