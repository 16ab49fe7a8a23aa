//! Where client and server run. On a virtual machine with two cores this changes a cycle fourfold:
//! a message to another core has to wake it first. So each bench chooses a placement, reports it,
//! and places every contender alike.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A placement, set by sched_setaffinity. Every thread and process that is started later inherits
/// it.
#[derive(Clone, Copy, PartialEq)]
pub enum Place {
    /// Everything on one core.
    One,
    /// The server on one core, all clients on another.
    Split,
    /// Wherever the kernel decides.
    Free,
}

impl Place {
    /// Puts this thread, and what it starts from now on, where clients belong.
    pub fn of_clients(self) {
        match self {
            Self::One | Self::Split => pin(&[cores().last().copied().unwrap()]),
            Self::Free => {}
        }
    }

    /// Runs `section` where clients belong, on a thread of its own: the rest of the bench stays
    /// where it is.
    pub fn of_section<T: Send>(self, section: impl FnOnce() -> T + Send) -> T {
        let placed = || {
            self.of_clients();
            section()
        };
        std::thread::scope(|scope| scope.spawn(placed).join().unwrap())
    }

    /// Runs `start` where the server belongs.
    pub fn of_server<T>(self, start: impl FnOnce() -> T) -> T {
        let before = sched_getaffinity(None).unwrap();
        if self == Self::Split {
            pin(&[first_core()]);
        }
        let started = start();
        sched_setaffinity(None, &before).unwrap();
        started
    }

    pub fn in_words(self) -> String {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            Self::One => format!(
                "Placement: clients and server pinned to core {} (sched_setaffinity)",
                cores().last().unwrap()
            ),
            Self::Split => {
                format!(
                    "Placement: the server pinned to core {}, all clients to core {} \
                     (sched_setaffinity)",
                    first_core(),
                    cores().last().unwrap()
                )
            }
            Self::Free => format!("Placement: not pinned, {all} cores"),
        }
    }
}

/// The cores that this thread may use now.
fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// The server's core in a split: a core that the clients do not use.
fn first_core() -> usize {
    let own = cores();
    usize::from(own.first() == Some(&0) && own.len() == 1)
}

fn pin(to: &[usize]) {
    let mut set = CpuSet::new();
    to.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).unwrap();
}
