//! Clients that are closed while their server cannot be reached.

use std::fs;
use std::thread;

use super::super::clock::{nanos, now};
use super::super::load::TIME_TO_CLOSE;
use super::super::support::Mode;
use super::super::tune::ms;
use super::super::world::World;
use super::{Row, USUAL, a_lease};

pub fn rows() -> Vec<Row> {
    vec![Row {
        number: 75,
        name: "a client is closed in an outage, of its own or of all",
        free_within: Some(a_lease),
        known_within: Some(|load| load.lease),
        // The places of a closed client in a queue expire by themselves if the server did not learn
        // of the closing.
        leaves_no_queue: false,
        faults: (4, 20),
        tune: |tune| {
            tune.on = (ms(100), tune.load.lease * 3 / 2);
            tune.faulted = tune.faulted.max(ms(6000));
        },
        run: close,
        ..USUAL
    }]
}

/// A client that is closed releases its locks as soon as the server is back, long before its time
/// is over, and reports that.
fn close(world: &mut World) {
    let mut longest = 0;
    let mut round = 0_u64;
    world.repeat((ms(300), ms(800)), |world| {
        let from = now();
        // Every other time only the first process cannot reach the server.
        world.choose_first();
        world.only_first = round.is_multiple_of(2);
        let index = if world.only_first {
            0
        } else {
            usize::try_from(world.random.below(world.tune.processes)).expect("a few processes")
        };
        world.links().for_each(|link| link.set_mode(Mode::Refuse));
        world.cut_all();
        let process = world.process_of(index).expect("it has started");
        fs::write(world.dir().join(format!("{process}.close")), "").expect("a file");
        let length = world.draw(world.tune.on);
        thread::sleep(length);
        world.links().for_each(|link| link.set_mode(Mode::Forward));
        let healed = now();
        world.cut_offs.push((from, healed));
        if !world.only_first {
            world.outages.push((from, healed));
        }
        let ended = loop {
            let status = world.status(process);
            if let Some(line) = status.lines().find_map(|line| line.strip_prefix("closed ")) {
                break Some(line.to_owned());
            }
            if now() - from > nanos(TIME_TO_CLOSE + ms(2000)) {
                break None;
            }
            thread::sleep(ms(5));
        };
        match ended.as_deref().and_then(|line| line.split_once(' ')) {
            Some(("true", took)) => longest = longest.max(took.parse().unwrap_or(u64::MAX)),
            _ => world
                .late(format!("close in an outage of {} ms failed: {ended:?}", length.as_millis())),
        }
        world.replace_client(index);
        (round, world.faults) = (round + 1, world.faults + 1);
    });
    world.remarks.push(format!("close took up to {longest} ms"));
}
