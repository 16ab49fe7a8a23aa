//! The load of the row for the rate limiter: threads that ask as fast as they can, and the calls
//! that were let through.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::clock::{Random, nanos, now};
use super::load::Process;

/// The count and the window of the limit, in both forms.
pub const COUNT: u64 = 50;
pub const WINDOW: Duration = Duration::from_millis(100);

/// How long a caller waits, if it waits.
const WAIT: Duration = Duration::from_millis(5);

/// A call that was let through: when it was asked, and when it was answered. The server counted it
/// at some moment between the two.
pub type Passed = (u64, u64);

/// One thread: asks both forms of limit in turn, now and then with a short wait, until told to
/// stop. The owner's file has three numbers for each call that was let through.
pub fn ask(process: &Process, owner: u64, random: &mut Random) {
    let path = process.dir.join(format!("{owner}-{}.passed", std::process::id()));
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .expect("a file for what was let through");
    let limiter = process.client.rate_limiter("fault-limit", COUNT, WINDOW);
    let forms = [limiter.clone(), limiter.smooth()];
    for form in (0..2).cycle() {
        if process.stop.load(Ordering::SeqCst) {
            return;
        }
        let asked = now();
        // The wait is so short that its time of passing is known nearly as well as with a check.
        let waits = random.below(4) == 0;
        let allowed = if waits {
            forms[form].acquire(WAIT)
        } else {
            forms[form].check().map(|decision| decision.allowed)
        };
        match allowed {
            Ok(true) => {
                let numbers = [form as u64, asked, now()];
                let bytes: Vec<u8> =
                    numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
                file.write_all(&bytes).expect("it can be written");
            }
            Ok(false) => {}
            Err(error) if error.is_unavailable() => thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("a limit refused with {error}"),
        }
        thread::sleep(random.between((Duration::ZERO, process.load.pause)));
    }
}

/// What was let through by the fixed form and by the smooth one, in the order of asking.
pub fn read_all(dir: &Path) -> [Vec<Passed>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for entry in fs::read_dir(dir).expect("the files").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "passed") {
            let bytes = fs::read(entry.path()).expect("a file of what was let through");
            let numbers: Vec<u64> = bytes
                .chunks_exact(8)
                .map(|number| u64::from_le_bytes(number.try_into().expect("eight bytes")))
                .collect();
            for passed in numbers.chunks_exact(3) {
                all[usize::try_from(passed[0]).expect("one of two")].push((passed[1], passed[2]));
            }
        }
    }
    all.iter_mut().for_each(|passed| passed.sort_unstable());
    all
}

/// The largest excess over the limit in any period within one of these epochs. `windows`: how many
/// times the count may pass at once.
///
/// Only calls that were both asked and answered within the period are counted: these certainly
/// passed in it.
pub fn overrun(passed: &[Passed], epochs: &[(u64, u64)], windows: u64) -> u64 {
    let mut worst = 0;
    for &(from, to) in epochs {
        let inside: Vec<Passed> = passed
            .iter()
            .copied()
            .filter(|&(asked, answered)| asked >= from && answered <= to)
            .collect();
        for (index, &(start, _)) in inside.iter().enumerate() {
            let mut answers: Vec<u64> =
                inside[index..].iter().map(|&(_, answered)| answered).collect();
            answers.sort_unstable();
            for (count, end) in (1_u64..).zip(answers) {
                let back = (u128::from(end - start) * u128::from(COUNT))
                    .div_ceil(u128::from(nanos(WINDOW)));
                let most = COUNT * windows + u64::try_from(back).expect("not so many");
                worst = worst.max(count.saturating_sub(most));
            }
        }
    }
    worst
}
