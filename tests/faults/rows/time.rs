//! The server's clock.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::super::clock::now;
use super::super::world::ms;
use super::{Row, USUAL};

/// The row whose server must be started with the shim.
pub const SHIMMED: u32 = 43;

pub fn rows() -> Vec<Row> {
    vec![Row {
        number: SHIMMED,
        class: 'T',
        name: "server clock +60 s",
        run: |world| {
            let file =
                OpenOptions::new().write(true).open(std::env::var_os("FAULTS_CLOCK").expect("the shim's file")).expect("it is there");
            let seconds = |world: &mut super::super::world::World| match world.command(&["TIME"]) {
                Some(redis::Value::Array(parts)) => redis::from_redis_value::<i64>(parts[0].clone()).unwrap_or(0),
                _ => 0,
            };
            let mut offset = 0_i64;
            world.repeat((ms(300), ms(700)), |world| {
                let before = seconds(world);
                offset += 60_000_000;
                file.write_all_at(&offset.to_le_bytes(), 0).expect("it can be written");
                let at = now();
                world.taken.extend((0..world.tune.load.keys).map(|key| (key, at)));
                world.faults += u64::from(seconds(world) - before >= 59);
            });
        },
        ..USUAL
    }]
}
