//! The clocks of servers.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::clock::{nanos, now};
use super::super::limits;
use super::super::load::Habit;
use super::super::support::Server;
use super::super::tune::ms;
use super::{Row, USUAL};

/// The rows whose servers must be started with the shim.
pub const SHIMMED: [u32; 4] = [43, 53, 61, 70];

pub fn rows() -> Vec<Row> {
    vec![clock(), clock_back(), rate_limits()]
}

fn clock() -> Row {
    Row {
        number: 43,
        class: 'T',
        name: "server clock +60 s",
        run: |world| {
            let port = world.server.port();
            let mut offset = 0_i64;
            world.repeat((ms(300), ms(700)), |world| {
                offset += 60;
                set_clock(port, offset);
                let at = now();
                world.taken.extend((0..world.tune.load.all_keys()).map(|key| (key, at)));
                world.faults += u64::from(clock_error(&world.server).abs_diff(offset) <= 1);
            });
        },
        ..USUAL
    }
}

/// A clock that is set back makes leases longer, and never shorter, so exclusion holds. Nobody dies
/// here: the lock of a dead holder would last for ten minutes more.
fn clock_back() -> Row {
    Row {
        number: 70,
        name: "server clock -600 s",
        // The values of a third party last longer, too.
        tune: |tune| tune.load.bait_keys = 0,
        may_lose: false,
        may_be_unknown: false,
        may_fail: false,
        run: |world| {
            let port = world.server.port();
            let mut offset = 0_i64;
            world.repeat((ms(300), ms(700)), |world| {
                offset -= 600;
                set_clock(port, offset);
                world.faults += u64::from(clock_error(&world.server).abs_diff(offset) <= 1);
            });
        },
        ..USUAL
    }
}

fn rate_limits() -> Row {
    Row {
        number: 61,
        class: 'T',
        name: "rate limiter: clock +60 s and -30 s, FLUSHALL, restart empty",
        // No locks here: the row counts what its limits let through.
        holds: 0,
        recovers: false,
        tune: |tune| (tune.load.habit, tune.load.long_threads) = (Habit::Limit, 0),
        run: |world| {
            let (port, mut offset, begun) = (world.server.port(), 0_i64, now());
            // Each epoch ends before the state of the limits is lost, or before the clock jumps
            // forward, and the next one begins after that. If the clock goes back, nothing more may
            // be let through: that does not end an epoch.
            let (mut ends, mut begins) = (Vec::new(), vec![begun]);
            let faulted = nanos(world.tune.faulted);
            while now() - begun < faulted {
                let off = world.draw((ms(200), ms(500)));
                thread::sleep(off);
                let how = world.random.below(4);
                let at = now();
                match how {
                    0 => offset += 60,
                    1 => offset -= 30,
                    2 => drop(world.command(&["FLUSHALL"])),
                    _ => world.server.restart(),
                }
                set_clock(port, offset);
                if how != 1 {
                    ends.push(at);
                    begins.push(now());
                }
                world.faults += 1;
            }
            ends.push(now());
            world.times.push((begun, now()));
            let epochs: Vec<_> = begins.into_iter().zip(ends).collect();
            let [fixed, smooth] = limits::read_all(world.dir());
            // Around the end of a fixed window, twice the count can pass.
            for (form, passed, windows) in [("fixed", &fixed, 2), ("smooth", &smooth, 1)] {
                let overrun = limits::overrun(passed, &epochs, windows);
                if overrun > 0 {
                    world.red(format!("the {form} limit was overrun by {overrun}"));
                }
            }
            world.remarks.push(format!(
                "{} and {} calls let through (fixed, smooth) in {} epochs",
                fixed.len(),
                smooth.len(),
                epochs.len()
            ));
            if fixed.len().min(smooth.len()) < 500 || fixed.len() + smooth.len() < 1000 {
                world.little("so few prove nothing");
            }
        },
        under_fault: 0,
        ..USUAL
    }
}

/// Sets the clock of the server on this port this many seconds ahead of the machine's clock. It
/// jumps at once.
pub fn set_clock(port: u16, seconds: i64) {
    let clocks = std::env::var_os("FAULTS_CLOCKS").expect("the directory of the shim's files");
    let file = OpenOptions::new()
        .write(true)
        .open(Path::new(&clocks).join(port.to_string()))
        .expect("a server of this port has started");
    file.write_all_at(&(seconds * 1_000_000).to_le_bytes(), 0).expect("it can be written");
}

/// By how many seconds a server's clock is ahead of the machine's clock.
pub fn clock_error(server: &Server) -> i64 {
    let time: Vec<i64> =
        redis::cmd("TIME").query(&mut server.connection()).expect("the server tells the time");
    let machine = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    time[0] - i64::try_from(machine).expect("a time of this age")
}
