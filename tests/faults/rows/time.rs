//! The clocks of servers.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::clock::now;
use super::super::support::Server;
use super::super::world::ms;
use super::{Row, USUAL};

/// The rows whose servers must be started with the shim.
pub const SHIMMED: [u32; 3] = [43, 53, 61];

pub fn rows() -> Vec<Row> {
    vec![Row {
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
                world.taken.extend((0..world.tune.load.keys).map(|key| (key, at)));
                world.faults += u64::from(clock_error(&world.server).abs_diff(offset) <= 1);
            });
        },
        ..USUAL
    }]
}

/// Sets the clock of the server on this port so many seconds before that of the machine. It jumps at once.
pub fn set_clock(port: u16, seconds: i64) {
    let clocks = std::env::var_os("FAULTS_CLOCKS").expect("the directory of the shim's files");
    let file = OpenOptions::new().write(true).open(Path::new(&clocks).join(port.to_string())).expect("a server of this port has started");
    file.write_all_at(&(seconds * 1_000_000).to_le_bytes(), 0).expect("it can be written");
}

/// By how many seconds a server's clock is before that of the machine.
pub fn clock_error(server: &Server) -> i64 {
    let time: Vec<i64> = redis::cmd("TIME").query(&mut server.connection()).expect("the server tells the time");
    let machine = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    time[0] - i64::try_from(machine).expect("a time of this age")
}
