//! A client has an inbox at each node where it waits. Slots move, so inboxes come and go.

use distlock::{Client, LockOptions};

use super::client;
use super::wake_ups::{channels, has_a_waiter, pass, patient, waits};
use crate::helpers::{SOON, Underway, ms, on_another_thread};
use crate::support::shards::Shards;
use crate::support::{eventually, fd_count, in_own_process};

/// Moves the slot of a lock that nobody has. Returns when these clients know.
fn move_free(shards: &Shards, clients: [&Client; 2], name: &str, from: usize, to: usize) {
    shards.begin_move(name, from, to);
    shards.end_move(name, from, to);
    clients.iter().for_each(|client| client.lock(name).with(|_| ()).unwrap());
}

#[test]
fn inboxes_do_not_pile_up_when_slots_move() {
    in_own_process("cluster::inboxes::inboxes_do_not_pile_up_when_slots_move", || {
        let shards = Shards::start(2);
        if !shards.have_channels() {
            return;
        }
        let (client, other) = (client(&shards), client(&shards));
        let count = |place| channels(&shards, place).len();
        for n in 0..3 {
            let name = shards.name_at(0, &format!("lock-{n}"));
            pass(&shards, [&client, &other], &name, LockOptions::new());
            if n < 2 {
                let before = count(1);
                shards.move_slot(&[&name], 0, 1);
                eventually(SOON, || count(0) == 0 && count(1) == before + 1);
            }
        }
        // The second is not needed beside the first.
        eventually(SOON, || count(0) == 1 && count(1) == 1);
    });
}

#[test]
fn closing_waits_for_an_inbox_that_is_not_needed_any_more() {
    let test = "cluster::inboxes::closing_waits_for_an_inbox_that_is_not_needed_any_more";
    in_own_process(test, || {
        let shards = Shards::start(2);
        if !shards.have_channels() {
            return;
        }
        let before = fd_count();
        let (client, other) = (client(&shards), client(&shards));
        let clients = [&client, &other];
        let [first, second, third] =
            [(1, "a"), (0, "b"), (1, "c")].map(|(place, begin)| shards.name_at(place, begin));
        pass(&shards, clients, &first, LockOptions::new());
        pass(&shards, clients, &second, LockOptions::new());
        move_free(&shards, clients, &first, 1, 0);
        eventually(SOON, || channels(&shards, 0).len() == 2);
        // Now the second inbox ends.
        pass(&shards, clients, &third, LockOptions::new());
        for client in clients {
            client.close(SOON).unwrap();
        }
        // A thread closes its connection before it ends, and can be seen for a moment after that.
        assert_eq!(fd_count(), before);
    });
}

/// 1. The client has inboxes at two nodes, and one of them moves to the node of the other.
/// 2. The other ends, and reads messages for up to a second more.
/// 3. The first moves back, and the client waits for the same lock as at the beginning.
///
/// What ends does not know the grant for this waiter, and must not hear it: it would have the lock
/// withdrawn, which the waiter has.
#[test]
fn an_inbox_that_ends_hears_nothing_that_is_for_the_next() {
    let shards = Shards::start(2);
    let (client, other, third) = (client(&shards), client(&shards), client(&shards));
    let clients = [&client, &other];
    let [moving, name, late] =
        [(1, "a"), (0, "b"), (1, "c")].map(|(place, begin)| shards.name_at(place, begin));
    pass(&shards, clients, &moving, LockOptions::new());
    pass(&shards, clients, &name, LockOptions::new());
    move_free(&shards, clients, &moving, 1, 0);
    let mut before = Vec::new();
    if shards.have_channels() {
        eventually(SOON, || channels(&shards, 0).len() == 2);
        before = channels(&shards, 0);
    }
    let guards = [&name, &late].map(|name| client.lock(name).guard().unwrap());
    // The inbox of `name` ends: it is the second at its node.
    let _waiting = waits(&shards, other.clone(), &late, LockOptions::new());
    move_free(&shards, clients, &moving, 0, 1);
    let waiter = other.lock(&name);
    let waiting = Underway::start(move || {
        let guard = waiter.guard().unwrap();
        let taken = !on_another_thread(|| third.lock(waiter.name()).try_lock(ms(500))).unwrap();
        taken && guard.is_valid() && guard.release().is_ok()
    });
    if shards.have_channels() {
        eventually(SOON, || has_a_waiter(&shards, &name));
        let is_new = |address| !before.contains(address);
        assert!(channels(&shards, 0).iter().any(is_new), "no address is used twice");
    }
    guards.into_iter().for_each(|guard| guard.release().unwrap());
    assert!(waiting.result(), "nobody else gets in");
}

#[test]
fn every_name_may_be_the_first_that_is_waited_for_at_a_node() {
    let shards = Shards::start(1);
    for first in ["or|ders", "a|5||x", "|", "a{", "x y"] {
        let (client, other) = (client(&shards), client(&shards));
        for name in [first, "neighbour"] {
            pass(&shards, [&client, &other], name, patient(&shards));
        }
    }
}
