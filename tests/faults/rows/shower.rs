//! Faults that hit single commands.

use std::time::Duration;

use super::super::support::{Fault, Planned, Rule};
use super::super::world::World;

/// Between two faults, from and to.
pub type Pause = (Duration, Duration);

pub fn clear_rules(world: &World) {
    world.apart.clear_rules();
    world.proxy.clear_rules();
}

/// Hits single commands with a fault, again and again.
pub fn shower(
    world: &mut World,
    pause: Pause,
    aim: fn(&[Vec<u8>]) -> bool,
    fault: fn(&mut World) -> Fault,
) {
    let mut planned: Vec<Planned> = Vec::new();
    world.repeat(pause, |world| {
        let before = planned.len();
        planned.retain(|planned| planned.fired() == 0);
        world.faults += (before - planned.len()) as u64;
        // Where little is sent for a while, faults must not pile up until they hit one command
        // after another.
        if planned.len() < 2 {
            let (fault, skip) = (fault(world), world.random.below(30));
            planned.push(
                world
                    .some_link()
                    .add(Rule::any(fault).when(aim).skip(usize::try_from(skip).unwrap()).next(1)),
            );
        }
    });
    clear_rules(world);
    world.faults += planned.iter().map(|planned| planned.fired() as u64).sum::<u64>();
}

pub fn any(_: &[Vec<u8>]) -> bool {
    true
}

/// A script with this many keys.
pub fn is_script(command: &[Vec<u8>], keys: &[u8]) -> bool {
    let name = command.first().map_or(&[][..], Vec::as_slice);
    let is_script = name.eq_ignore_ascii_case(b"EVALSHA") || name.eq_ignore_ascii_case(b"EVAL");
    is_script && command.get(2).is_some_and(|number| number == keys)
}

/// The bare `SET … NX PX …`, or the script: it has five keys, and four arguments or eight.
pub fn is_acquire(command: &[Vec<u8>]) -> bool {
    command.first().is_some_and(|name| name.eq_ignore_ascii_case(b"SET"))
        || is_script(command, b"5") && matches!(command.len(), 12 | 16)
}

/// The extend script has one key.
pub fn is_extend(command: &[Vec<u8>]) -> bool {
    is_script(command, b"1")
}
