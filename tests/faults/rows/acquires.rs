//! Acquires that arrive, or whose answers would arrive, after their callers have gone.

use std::thread;
use std::time::Duration;

use super::super::clock::{nanos, now};
use super::super::support::{Fault, Held, Mode, Planned, Rule};
use super::super::tune::ms;
use super::super::world::World;
use super::shower::{clear_rules, is_acquire};
use super::{Row, USUAL};

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            number: 69,
            name: "acquires that arrive when their callers have gone, or unlocked",
            // An attempt that nobody withdraws lasts for its whole lease.
            free_within: Some(|_| ms(3000)),
            tune: |tune| tune.load.lease = ms(5000),
            run: late_acquires,
            ..USUAL
        },
        Row {
            number: 74,
            name: "the way to the server ends behind an acquire, for 0.1 to 0.3 s",
            // An attempt that nobody withdraws lasts for its whole lease.
            free_within: Some(|_| ms(3000)),
            tune: |tune| tune.load.lease = ms(5000),
            run: ends_behind_an_acquire,
            ..USUAL
        },
    ]
}

/// Requests that are held on their way: their callers ask again over another connection, or give
/// up. When the first request arrives, they may already have had the lock and unlocked it.
fn late_acquires(world: &mut World) {
    let mut held: Vec<(u64, Held)> = Vec::new();
    let mut planned: Option<Planned> = None;
    world.repeat((ms(30), ms(120)), |world| {
        if let Some(caught) = planned.take_if(|caught| caught.fired() > 0) {
            let late =
                nanos(world.tune.load.command) + nanos(world.draw((Duration::ZERO, ms(1500))));
            held.push((now() + late, caught.wait_held(ms(1000))));
        }
        if planned.is_none() {
            let skip = usize::try_from(world.random.below(30)).expect("a few");
            planned = Some(
                world
                    .some_link()
                    .add(Rule::any(Fault::HoldRequest).when(is_acquire).skip(skip).next(1)),
            );
        }
        let (arrives, waits) =
            std::mem::take(&mut held).into_iter().partition(|(late, _)| *late <= now());
        held = waits;
        for (_, request) in arrives {
            request.release();
            world.faults += 1;
        }
    });
    clear_rules(world);
    held.into_iter().for_each(|(_, request)| request.release());
}

/// The server has granted or refused a lock, and nobody can ask it again before callers with short
/// timeouts have given up.
fn ends_behind_an_acquire(world: &mut World) {
    world.repeat((ms(400), ms(700)), |world| {
        let aim = |command: &[Vec<u8>]| is_acquire(command);
        let ends = world.some_link().add(Rule::any(Fault::CutAfter).when(aim).next(1));
        let (begun, length) = (now(), world.draw((ms(100), ms(300))));
        while ends.fired() == 0 && now() - begun < 300_000_000 {
            thread::sleep(ms(1));
        }
        ends.remove();
        if ends.fired() > 0 {
            world.links().for_each(|link| link.set_mode(Mode::Refuse));
            world.faults += world.cut_all().min(1) as u64;
            thread::sleep(length);
            world.links().for_each(|link| link.set_mode(Mode::Forward));
        }
    });
}
