//! `distlock watch`: a table of locks that is shown again and again, as `top` shows processes.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use rustix::termios::tcgetwinsize;

use crate::args::Watch;
use crate::exit::{Exit, Failure, print};
use crate::look::{Seen, all};
use crate::say::say;
use crate::who::no_look;
use crate::{server, table};

/// The shortest pause between two looks, for the server's sake.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// Ends when a signal ends it, as Ctrl-C does, or when nobody reads it any more. It changes no
/// setting of the terminal, so there is nothing to restore.
pub(crate) fn watch(args: &Watch) -> Result<Exit, Failure> {
    let client = server::builder(&args.who.server)?.build()?;
    let in_terminal = !args.who.json && io::stdout().is_terminal();
    // What cannot work at all ends this at once.
    let mut seen = all(&client, &args.who.keys).map_err(no_look)?;
    let mut problem: Option<Failure> = None;
    loop {
        let is_read = match &problem {
            _ if in_terminal => print(&screen(&seen, problem.as_ref()))?,
            Some(problem) => {
                say(format_args!("{}", problem.why));
                true
            }
            None if args.who.json => print(&table::json(&seen))?,
            None => print(&format!("{}\n", table::holders_only(&seen)))?,
        };
        if !is_read {
            return Ok(Exit::SUCCESS);
        }
        thread::sleep(args.every.max(SHORTEST_PAUSE));
        problem = match all(&client, &args.who.keys) {
            Ok(now) => {
                seen = now;
                None
            }
            Err(error) => Some(no_look(error)),
        };
    }
}

/// The whole screen: as much of the table as there is room for. The cursor goes below it, where the
/// shell goes on.
fn screen(seen: &[Seen], problem: Option<&Failure>) -> String {
    let size = tcgetwinsize(io::stdout()).ok();
    let (rows, columns) = size
        .filter(|size| size.ws_row > 0 && size.ws_col > 0)
        .map_or((24, 80), |size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    let held = seen.iter().filter(|seen| !seen.state.holders.is_empty()).count();
    let waiting: usize = seen.iter().map(|seen| seen.state.waiters.len()).sum();
    let head = match problem {
        Some(problem) => format!("Not updated: {}", problem.why),
        None => format!("{held} held, {waiting} waiting. Ctrl-C ends this."),
    };
    let table = table::holders_only(seen);
    let lines = table.lines().count();
    // Without the head, and the line of the cursor.
    let room = rows.saturating_sub(2);
    let shown = if lines > room { room.saturating_sub(1) } else { lines };
    let more = (lines > shown).then(|| format!("… {} more", lines - shown));
    let all = [head.as_str()].into_iter().chain(table.lines().take(shown)).chain(more.as_deref());
    let line = |line: &str| {
        // Not the last column: a terminal may clear it with the rest of what stood there before.
        let cut: String = line.chars().take(columns - 1).collect();
        format!("{cut}\x1b[K\r\n")
    };
    // From the upper left corner, and below the last line nothing.
    format!("\x1b[H{}\x1b[J", all.map(line).collect::<String>())
}
