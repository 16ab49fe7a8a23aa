//! The gate of a node: while the node is down, one thread at a time tries to reach it, and the others fail fast (R14).

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::base::locked;

/// Between two attempts to reach a node that is down: at most 14 a second, and its return is seen soon.
const PAUSE: Duration = Duration::from_millis(75);

static GATES: Mutex<Vec<(String, Weak<Gate>)>> = Mutex::new(Vec::new());

/// One per address and process, however many clients there are.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// `None`: open.
    shut: Mutex<Option<Shut>>,
}

#[derive(Debug)]
struct Shut {
    next: Instant,
    probing: bool,
}

/// Leave to open a connection; says at its end whether the node answered.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    /// Whether this is the one that finds out for all.
    probe: bool,
}

impl Gate {
    /// The gate of the node at this address.
    pub(super) fn at(address: String) -> Arc<Self> {
        let mut gates = locked(&GATES);
        gates.retain(|(_, gate)| gate.strong_count() > 0);
        if let Some(gate) = gates.iter().find(|(at, _)| *at == address).and_then(|(_, gate)| gate.upgrade()) {
            return gate;
        }
        let gate = Arc::new(Self::default());
        gates.push((address, Arc::downgrade(&gate)));
        gate
    }

    /// Leave to connect; `None`: the node is down, and another thread is trying or has just tried.
    pub(super) fn enter(&self, now: Instant) -> Option<Pass<'_>> {
        match &mut *locked(&self.shut) {
            None => Some(Pass { gate: self, probe: false }),
            Some(shut) if !shut.probing && now >= shut.next => {
                shut.probing = true;
                Some(Pass { gate: self, probe: true })
            }
            Some(_) => None,
        }
    }

    /// The node did not answer.
    pub(super) fn shut(&self) {
        let next = Instant::now() + PAUSE;
        let mut shut = locked(&self.shut);
        let probing = shut.as_ref().is_some_and(|shut| shut.probing);
        *shut = Some(Shut { next, probing });
    }
}

impl Pass<'_> {
    /// The node answered.
    pub(super) fn answered(&self) {
        *locked(&self.gate.shut) = None;
    }
}

impl Drop for Pass<'_> {
    /// Without an answer the gate stays as it is, and the next may try.
    fn drop(&mut self) {
        if self.probe
            && let Some(shut) = &mut *locked(&self.gate.shut)
        {
            *shut = Shut { next: Instant::now() + PAUSE, probing: false };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_probes_while_the_others_fail_fast() {
        let gate = Gate::default();
        let now = Instant::now();
        assert!(gate.enter(now).is_some() && gate.enter(now).is_some());
        gate.shut();
        assert!(gate.enter(now).is_none());
        let later = Instant::now() + PAUSE;
        let probe = gate.enter(later).expect("its time has come");
        assert!(gate.enter(later).is_none());
        drop(probe);
        assert!(gate.enter(later).is_none(), "a failed probe has a pause after it");
        let probe = gate.enter(Instant::now() + PAUSE).expect("the next probe");
        probe.answered();
        assert!(gate.enter(Instant::now()).is_some());
    }

    #[test]
    fn clients_of_one_address_share_a_gate() {
        let gate = Gate::at("test:1".into());
        assert!(Arc::ptr_eq(&gate, &Gate::at("test:1".into())));
        assert!(!Arc::ptr_eq(&gate, &Gate::at("test:2".into())));
    }
}
